"""ES-D-RTRL: D-RTRL with a rank-one eligibility (Wang et al. 2024, doi:10.1101/2024.09.24.614728).

The eligibility of a synapse is held to be the product of a trace of its input and of a running mean over the neuron's
own derivatives, with the neuron's Jacobian (A, p, c, r) of the step and alpha the forgetting factor:

    z_t = decay * z_{t-1} + x_t                     dL/dW = sum_t (dL_t/ds_t * f_t / (1 - alpha^n))^T z_t
    F_t = alpha A_t F_{t-1} + (1 - alpha) p_t       f_t = alpha c_t . F_{t-1} + (1 - alpha) r_t

n counts the steps since the reset, so a reset row counts afresh. Exact for: nothing, but with alpha = 0 it is OTTT with
the given decay, and exact where that is. Memory: B x (I + O).

Unlike in the paper, where one factor smooths both sides, the decay of the input is its own knob: by default the leak of
the neuron, so that the input side alone is the true trace. The mean over calls there is a mean over steps here.
"""

from snnlearn.rules.arguments import check_share
from snnlearn.rules.axes import LearningRule


def ESDRTRL(input_decay: float | None = None, forgetting: float = 0.9) -> LearningRule:
    """Return ES-D-RTRL: local transition, spatial signal, one factor per input and one per unit.

    `input_decay` per step in [0, 1] of the input's trace, None for the leak of each block's neuron; `forgetting` alpha
    per step in [0, 1) of the output factor.

    >>> ESDRTRL(forgetting=0.5).storage
    'rank_one'
    """
    check_share("input_decay", input_decay, "0.5")
    check_share("forgetting", forgetting, "0.9", below_one=True)
    return LearningRule(
        transition="local", storage="rank_one", trace_decay=input_decay, forgetting=forgetting, title="ES-D-RTRL"
    )


__all__ = ["ESDRTRL"]
