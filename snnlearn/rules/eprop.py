"""e-prop: eligibility propagation (Bellec et al. 2020, doi:10.1038/s41467-020-17236-y).

Each synapse follows how the spike of its unit depends on it through the unit's own state, reset and adaptation
included; the leak kappa of the readout filters that, and a broadcast of the output's error e_t = dL_t/do_t teaches:

    Q_t = c_t . E_{t-1} + r_t (x) x_t     R_t = kappa * R_{t-1} + Q_t     dL/dW = sum_t u_t * R_t     u_t = B e_t

B is the transposed readout weight (symmetric), fixed and random, or learned like the readout (adaptive); `spatial`
takes backpropagation at step t, the same as symmetric in a block that feeds the readout. With a rate target f*, the
gradient of c/2 sum_j (f_j - f*)^2 joins u_t, f_j the mean rate so far. In the reward form u_t = -r_t (per sample and
divided by the batch), r_t shown with `show_reward`, and kappa is then the decay of the paper's further filter.

Exact for (symmetric, spatial): BPTT with every recurrent spike cut and the temporal edges from the second block above
on cut, so for one hidden block full BPTT but for its recurrent spikes; LIF and ALIF alike, resets as the neuron has
them (the paper detaches the reset). Memory: B x O x I for the filter and for each hidden value; for the filter alone
where the neuron's Jacobian is a constant (a LIF with a detached soft reset), since E is then one trace of the inputs.

Unlike in the paper's code nothing is normalised by (1 - alpha) or (1 - kappa), the pseudo-derivative is the neuron's
surrogate, and there is no refractory time. Kolen-Pollack weight decay of the adaptive form is the optimizer's.
"""

from snnlearn.rules.arguments import check_number, check_share
from snnlearn.rules.axes import LearningRule, RateTarget
from snnlearn.rules.legality import RuleChoiceError

BROADCASTS = ("symmetric", "random", "adaptive", "spatial", "reward")
"""What teaches the hidden blocks under e-prop."""


def EProp(
    broadcast: str = "symmetric",
    rate: float | None = None,
    rate_weight: float = 1.0,
    kappa: float | None = None,
    seed: int = 0,
) -> LearningRule:
    """Return e-prop: local transition, kappa filter, a broadcast signal, one eligibility per synapse.

    `broadcast` one of BROADCASTS; `rate` f* to hold every hidden unit near, in spikes per step (None: no such term),
    with the weight `rate_weight` c in the loss; `kappa` per step in [0, 1), None for the leak of the readout; `seed`
    of the random and adaptive broadcasts. Raises RuleChoiceError for another broadcast.

    >>> EProp(broadcast="random", rate=0.05).signal
    'random'
    """
    if broadcast not in BROADCASTS:
        raise RuleChoiceError(
            f"broadcast={broadcast!r}: choose one of {', '.join(BROADCASTS)}; write broadcast='symmetric'"
        )
    check_share("rate", rate, "0.05")
    check_number("rate_weight", rate_weight, "1.0")
    check_share("kappa", kappa, "0.9", below_one=True)
    return LearningRule(
        transition="local",
        trace_filter="kappa",
        storage="synaptic",
        signal=broadcast,
        filter_decay=kappa,
        rate=None if rate is None else RateTarget(rate=rate, weight=rate_weight),
        seed=seed,
        title="e-prop",
    )


__all__ = ["BROADCASTS", "EProp"]
