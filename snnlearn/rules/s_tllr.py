"""S-TLLR: STDP-inspired temporal local learning rule (Apolinario and Roy, TMLR 2025, doi:10.48550/arXiv.2306.15220).

Two terms meet the spatial signal u_t = dL_t/ds_t of the step: the causal one pairs the unit now with its past inputs,
the other the input now with the unit's past, where ds/dy takes the place of a spike:

    a_t = lp * a_{t-1} + x_t              p_t = lq * p_{t-1} + ds_t/dy
    dL/dW = sum_t (u_t * ap * ds_t/dy)^T a_t + (u_t * aq * p_{t-1})^T x_t

The signal passed down has ds_t/dy alone. Exact for: nothing by itself; with aq = 0, ap = 1 and lp the leak of the
neuron it is OTTT, and with lp = 0 SLTT. Memory: one number per input and one per unit.

Unlike in the paper's code the bias is a weight from a constant one in both terms (there dL/db = sum_t u_t * ds_t/dy),
the losses are averaged over the steps, and surrogate, leak, threshold and weight standardisation are the network's.
Blocks that integrate without firing, as a leaky readout, have no second term.
"""

from snnlearn.nn.factored_trace import PostTrace
from snnlearn.rules.arguments import check_number, check_share, check_steps
from snnlearn.rules.axes import LearningRule


def STLLR(
    pre_decay: float | None = 0.75,
    post_decay: float = 0.2,
    acausal: float = -1.0,
    causal: float = 1.0,
    last_steps: int | None = None,
) -> LearningRule:
    """Return S-TLLR with the paper's factors for DVS Gesture: leak transition, a trace per input and one per unit.

    `pre_decay` lp per step in [0, 1], None for the leak of each block's neuron; `post_decay` lq per step in [0, 1);
    `acausal` aq and `causal` ap weigh the two terms; `last_steps` learns at the last so many steps of a sequence alone
    (None: at all). Raises RuleChoiceError outside these ranges.

    >>> STLLR(last_steps=5).learn_on
    'last'
    """
    check_share("pre_decay", pre_decay, "0.75")
    check_share("post_decay", check_number("post_decay", post_decay, "0.2"), "0.2", below_one=True)
    check_number("acausal", acausal, "-1.0")
    check_number("causal", causal, "1.0")
    check_steps("last_steps", last_steps)
    return LearningRule(
        transition="leak",
        storage="pre",
        trace_decay=pre_decay,
        post=PostTrace(post_decay, acausal, causal),
        learn_on="all" if last_steps is None else "last",
        learn_steps=last_steps,
        title="S-TLLR",
    )


__all__ = ["STLLR"]
