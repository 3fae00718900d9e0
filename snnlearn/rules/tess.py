"""TESS: temporally and spatially local learning (Apolinario et al. 2025, doi:10.48550/arXiv.2502.01837).

S-TLLR's eligibility, a causal term and one that pairs earlier activity of the unit with this step's input, meets the
cross entropy of a fixed readout of sinusoids that the block computes and need not store:

    a_t = causal_decay * a_{t-1} + x_t      p_t = acausal_decay * p_{t-1} + psi_t      psi_t = ds_t/dy_t
    u_t = G^T dl(G pool(s_t), y)      dL/dW = sum_t (u_t * causal * psi_t)^T a_t + (u_t * acausal * p_{t-1})^T x_t

with G of `snnlearn.functional.signals.sinusoids` and `pool` the mean over a 4 by 4 grid of a map. Thrown away: the
network's loss in every block but the readout; the trace's decay is the rule's, not the neuron's. Memory: B x I + B x
O. The paper sets `acausal` 1 for static images and 0 for event cameras. Unlike in the reference code a bias has traces
like a weight, linear blocks are not pooled, and all blocks share one optimizer.
"""

from snnlearn.functional.signals import LOCAL_LOSSES
from snnlearn.nn.factored_trace import PostTrace
from snnlearn.rules.arguments import check_flag, check_number, check_one_of, check_share
from snnlearn.rules.axes import LearningRule, LocalHead


def TESS(
    acausal_decay: float = 0.2,
    causal_decay: float = 0.5,
    acausal: float = 1.0,
    causal: float = 1.0,
    square: bool = False,
    loss: str = "cross_entropy",
) -> LearningRule:
    """Return TESS: its four factors, and `square` for the sign of the sinusoids.

    `acausal_decay` of the unit's trace and `causal_decay` of the input's, both per step; `acausal` and `causal` weigh
    the two terms; `loss` of the local readouts: cross_entropy, mse or smooth_l1.

    >>> TESS(acausal=0.0).post
    PostTrace(decay=0.2, acausal=0.0, causal=1.0)
    """
    check_share("acausal_decay", check_number("acausal_decay", acausal_decay, "0.2"), "0.2", below_one=True)
    check_share("causal_decay", check_number("causal_decay", causal_decay, "0.5"), "0.5")
    check_flag("square", square)
    check_number("acausal", acausal, "1.0")
    check_number("causal", causal, "1.0")
    check_one_of("loss", loss, LOCAL_LOSSES)
    return LearningRule(
        transition="leak",
        storage="pre",
        trace_decay=causal_decay,
        post=PostTrace(acausal_decay, acausal, causal),
        signal="local_readout",
        head=LocalHead(kind="square" if square else "sinusoid", loss=loss),
        title="TESS",
    )


__all__ = ["TESS"]
