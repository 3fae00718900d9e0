"""OTTT: online training through time (Xiao et al., NeurIPS 2022, doi:10.48550/arXiv.2210.04195).

The presynaptic trace decays with the leak of the neuron behind the weights and contains the current step:

    a_t = decay * a_{t-1} + x_t      dL/dW = sum_t d_t^T a_t      dL/db = sum_t d_t c_t      c_t = decay * c_{t-1} + 1

d_t is the spatial signal of step t. Exact for: BPTT with the temporal edges of the later blocks cut, when the
reset is soft and detached or absent and one decay serves the layer; for the last block with memory that is full
BPTT. Unlike in the reference code the bias is traced, a static readout is not, and the first layer is.
"""

from snnlearn.rules.axes import LearningRule


def OTTT() -> LearningRule:
    """Return OTTT: leak transition, spatial signal, one trace per input.

    >>> OTTT().storage
    'pre'
    """
    return LearningRule(transition="leak", storage="pre", title="OTTT")


__all__ = ["OTTT"]
