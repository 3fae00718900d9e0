"""BPTT: backpropagation through time, the yardstick every online rule is measured by.

The whole sequence stays in memory and one backward pass runs through it, spikes replaced by their surrogate
derivative (Neftci et al. 2019, doi:10.1109/MSP.2019.2931595). Exact for: itself. Not online: memory grows with T.
"""

from snnlearn.rules.axes import LearningRule


def BPTT() -> LearningRule:
    """Return BPTT: autograd through the whole sequence.

    >>> BPTT().online
    False
    """
    return LearningRule(transition="through_time", storage="none", title="BPTT")


__all__ = ["BPTT"]
