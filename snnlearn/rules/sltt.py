"""SLTT: spatial learning through time (Meng et al., ICCV 2023, doi:10.48550/arXiv.2302.14311).

The gradient of a step is that step's alone: the state carried from the step before is a constant.

    dL/dW = sum_t d_t^T x_t          dL/db = sum_t d_t          d_t = dL_t/dy_t

Exact for: BPTT with every temporal edge cut, for any neuron, reset and normalisation.
"""

from snnlearn.rules.axes import LearningRule


def SLTT() -> LearningRule:
    """Return SLTT: no trace, spatial signal.

    >>> SLTT().transition
    'none'
    """
    return LearningRule(transition="none", storage="none", title="SLTT")


__all__ = ["SLTT"]
