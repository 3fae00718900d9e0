"""NDOT: neuronal dynamics-based online training (Jiang et al., ICML 2024).

The trace of an input decays by how the membrane r = v - threshold s of the neuron that sends it changed:

    a_t = e_{t-1} * a_{t-1} + x_t      e_t = r_t / r_{t-1}, held within +-decay      dL/dW = sum_t d_t^T a_t

d_t is the spatial signal of step t; at r_{t-1} = 0 the ratio is the decay with the sign of r_t. Exact for: the first
block, whose input has no membranes, so that its trace decays by its own leak as under OTTT. For the others nothing: the
ratio is the sender's, not d v_t / d v_{t-1} of the neuron behind the weights, and only where every sender stays silent
after its first spikes is it the leak. Memory: one number per input, and two membranes.

Unlike in the paper, where all layers share one leak, the bound is the leak of the block itself; the bias has the trace
of OTTT, and a static readout none. Needs blocks that follow each other directly, since the membranes come with the
spikes: pooling, dropout or reshaping between two blocks is refused.
"""

from snnlearn.rules.axes import LearningRule


def NDOT() -> LearningRule:
    """Return NDOT: transition by the ratio of the senders' membranes, spatial signal, one trace per input.

    >>> NDOT().transition
    'ratio'
    """
    return LearningRule(transition="ratio", storage="pre", title="NDOT")


__all__ = ["NDOT"]
