"""Truncated BPTT: backpropagation through time within windows of a fixed length.

Williams and Peng 1990, doi:10.1162/neco.1990.2.4.490. The graph is kept for `window` steps, one backward goes through
it, then state (and the loss's running mean) is cut and the next window begins; the last one may be shorter. So step t
reaches back to the start of its own window, not a fixed distance.

Exact for: BPTT with every temporal edge cut between windows; window 1 is SLTT, one as long as the sequence is BPTT.
Memory: grows with the window, not with the sequence.
"""

from snnlearn.rules.axes import LearningRule


def TruncatedBPTT(window: int = 10) -> LearningRule:
    """Return truncated BPTT with windows of `window` steps, at least 1.

    >>> TruncatedBPTT(window=5).window
    5
    """
    return LearningRule(transition="through_time", storage="none", window=window, title="TBPTT")


__all__ = ["TruncatedBPTT"]
