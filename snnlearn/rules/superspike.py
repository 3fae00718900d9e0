"""SuperSpike (Zenke and Ganguli, Neural Computation 2018, doi:10.1162/neco_a_01086).

The eligibility of a synapse is the neuron's surrogate derivative times the trace a of the input, filtered by the kernel
that the paper applies to the output's error as well; a fixed random broadcast of the error teaches:

    R1_t = rise * R1_{t-1} + ds_t/dy (x) a_t      R2_t = fall * (R2_{t-1}) + R1_t      dL/dW = sum_t (B e_t) * R2_t

rise = exp(-1/tau_rise), fall = exp(-1/tau_fall); a decays by the leak of the neuron (two cascaded traces behind a
synaptic current). Exact for: nothing, the broadcast is no derivative of the loss. Memory: twice B x O x I.

Unlike in the paper the error is that of the network's loss; for the van Rossum distance filter the outputs by the same
kernel before the loss. The kernel is not normalised, and the paper's step size per parameter is the optimizer's.
"""

import math

from snnlearn.functional.arguments import is_number
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.legality import RuleChoiceError


def SuperSpike(
    tau_rise: float = 5.0,
    tau_fall: float = 10.0,
    broadcast: str = "random",
    seed: int = 0,
    truncate_trace: bool = False,
) -> LearningRule:
    """Return SuperSpike: leak transition, double filter, random broadcast, one eligibility per synapse.

    `tau_rise`, `tau_fall` time constants of the kernel, in steps, above 0; `broadcast` random, or symmetric as the
    paper compares; `seed` of the random one. `truncate_trace` lets convolutions drop what came before each chunk, which
    nobody can keep. Raises RuleChoiceError for other values.

    >>> SuperSpike().trace_filter
    'double'
    """
    for name, tau in (("tau_rise", tau_rise), ("tau_fall", tau_fall)):
        if not (is_number(tau) and tau > 0):
            raise RuleChoiceError(f"{name}={tau!r}: a time constant in steps is finite and above 0; write {name}=5.0")
    if broadcast not in ("random", "symmetric"):
        raise RuleChoiceError(f"broadcast={broadcast!r}: choose random or symmetric; write broadcast='random'")
    return LearningRule(
        transition="leak",
        trace_filter="double",
        storage="synaptic",
        signal=broadcast,
        filter_decay=(math.exp(-1 / tau_rise), math.exp(-1 / tau_fall)),
        seed=seed,
        truncate_trace=truncate_trace,
        title="SuperSpike",
    )


__all__ = ["SuperSpike"]
