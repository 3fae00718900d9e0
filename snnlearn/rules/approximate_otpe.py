"""Approximate OTPE: the factored form of OTPE (Summe, Schaefer and Joshi 2023, doi:10.48550/arXiv.2311.16151).

The trace of the input is filtered instead of the eligibility of each synapse, and ds/dy is replaced by its leaky mean,
whose weights are those of the trace (decay of the block's neuron, lambda of the next block's):

    a_t = decay * a_{t-1} + x_t           z_t = lambda * z_{t-1} + a_t          n_t = decay * n_{t-1} + 1
    g_t = g_{t-1} + (ds_t/dy - g_{t-1}) / n_t                      dL/dW = sum_t (dL_t/ds_t * g_t)^T z_t

The same g_t stands for ds/dy in the signal passed down. A block that nothing with memory follows has no filter, so
there is nothing to average either, and it learns and relays as under OTTT. Exact for: that block and the readout, where
OTTT is. The others keep the direction of OTPE (`snnlearn.rules.otpe`) better than the scale. Memory: two numbers per
input, one per unit; any connection, so that convolutions have it too.

Unlike in the paper's code each block has its own two decays, and the bias is a weight from a constant one.
"""

from snnlearn.rules.axes import LearningRule


def ApproximateOTPE() -> LearningRule:
    """Return approximate OTPE: leak transition, filter of the block above, mean relay, two traces per input.

    >>> ApproximateOTPE().relay
    'mean'
    """
    return LearningRule(transition="leak", trace_filter="above", storage="pre", relay="mean", title="approximate OTPE")


__all__ = ["ApproximateOTPE"]
