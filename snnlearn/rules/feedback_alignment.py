"""Feedback alignment (Lillicrap et al. 2016, doi:10.1038/ncomms13276), with a trace in time.

The error goes down layer by layer as in backpropagation, through fixed random matrices B in place of the transposed
weights, the readout's included:

    g^{l-1}_t = d^l_t B^l      d^l_t = g^l_t * ds^l_t/dy^l_t      dL/dW^l = sum_t d^l_t^T a^l_t

with OTTT's trace a of the input (`snnlearn.rules.ottt`). The last layer's own gradient is exact. Thrown away: the true
direction of the error in every layer below, until the weights above have aligned with B. Memory: that of OTTT, and a
second set of weights that never changes. The paper has no time and no spikes.
"""

from snnlearn.rules.axes import LearningRule


def FeedbackAlignment(seed: int = 0) -> LearningRule:
    """Return feedback alignment: leak transition, one trace per input, random matrices on the way down from `seed`.

    >>> FeedbackAlignment().signal
    'alignment'
    """
    return LearningRule(transition="leak", storage="pre", signal="alignment", seed=seed, title="feedback alignment")


__all__ = ["FeedbackAlignment"]
