"""Knobs of the group `rule`: what each paper leaves open, under the names that `snnlearn.rules` gives it."""

from dataclasses import dataclass
from typing import Literal

from snnlearn.config.knob import knob
from snnlearn.config.schema_signals import TRUNCATE, SignalRuleConfig

__all__ = ["PER_SYNAPSE", "RuleConfig"]

PER_SYNAPSE = ("drtrl", "ostl", "hypr", "otpe", "eprop", "superspike", "osttp", "etlp")
"""Rules with an eligibility per synapse, which a convolution has within one chunk alone."""


@dataclass(frozen=True, kw_only=True)
class SLTTConfig:
    """Gradient through the present step only."""

    name: Literal["sltt"] = knob("spatial learning through time: no trace at all")


@dataclass(frozen=True, kw_only=True)
class SLTTKConfig:
    """Gradient through the present step only, at some steps."""

    name: Literal["sltt_k"] = knob("SLTT at a few random steps of every sequence")
    steps: int = knob("steps drawn for every sequence, which alone learn", unit="steps", at_least=1)


@dataclass(frozen=True, kw_only=True)
class OTTTConfig:
    """Online training through time."""

    name: Literal["ottt"] = knob("online training through time: a trace of the input, decaying with the neuron's leak")


@dataclass(frozen=True, kw_only=True)
class NDOTConfig:
    """Neuronal dynamics-based online training."""

    name: Literal["ndot"] = knob("a trace of the input, decaying with the ratio of the sending neurons' membranes")


@dataclass(frozen=True, kw_only=True)
class STLLRConfig:
    """STDP-inspired temporal local learning rule."""

    name: Literal["s_tllr"] = knob("S-TLLR: a trace of the input and one of the unit, as in spike-timing dependence")
    pre_decay: float | None = knob(
        "decay of the input's trace per step; null: the neuron's leak", at_least=0, at_most=1
    )
    post_decay: float = knob("decay of the unit's trace per step", at_least=0, below=1)
    acausal: float = knob("weight of the term with the unit's trace")
    causal: float = knob("weight of the term with the input's trace")
    last_steps: int | None = knob("learn at the last so many steps alone; null: at all", unit="steps", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ApproximateOTPEConfig:
    """Online training with postsynaptic estimates, factored."""

    name: Literal["approximate_otpe"] = knob("OTPE with two traces per input in place of those per synapse")


@dataclass(frozen=True, kw_only=True)
class OTPEConfig:
    """Online training with postsynaptic estimates."""

    name: Literal["otpe"] = knob("a trace per synapse, filtered by the leak of the next layer")
    relay: Literal["instantaneous", "mean"] = knob(
        "what the signal passed down is multiplied by: the step's surrogate derivative, or its leaky mean"
    )
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class DRTRLConfig:
    """Real-time recurrent learning, cut to each unit's own states."""

    name: Literal["drtrl"] = knob("D-RTRL: a trace per synapse, exact for any neuron")
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class TBPTTConfig:
    """Backpropagation through time within windows."""

    name: Literal["tbptt"] = knob("truncated backpropagation through time; its memory grows with the window")
    window: int = knob("steps of a window, between two cuts of the graph", unit="steps", at_least=1)


@dataclass(frozen=True, kw_only=True)
class OSTLConfig:
    """Online spatio-temporal learning."""

    name: Literal["ostl"] = knob("online spatio-temporal learning: the numbers of drtrl under another paper's name")
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class HYPRConfig:
    """Hybrid propagation."""

    name: Literal["hypr"] = knob("hybrid propagation: the numbers of drtrl, made to run in chunks of steps")
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class ESDRTRLConfig:
    """D-RTRL with a rank-one eligibility."""

    name: Literal["es_drtrl"] = knob("D-RTRL whose trace per synapse is one factor per input times one per unit")
    input_decay: float | None = knob(
        "decay of the input factor per step; null: the neuron's leak", at_least=0, at_most=1
    )
    forgetting: float = knob("share of the output factor that each step keeps", at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class EPropConfig:
    """Eligibility propagation."""

    name: Literal["eprop"] = knob("e-prop: a trace per synapse, filtered by the leak of the readout; a broadcast error")
    broadcast: Literal["symmetric", "random", "adaptive", "spatial"] = knob(
        "how the output's error reaches the hidden layers: by the readout's own weights (one hidden layer), by fixed "
        "random or learned ones, or by backpropagation at the same step"
    )
    rate: float | None = knob(
        "firing rate that every hidden unit is held near; null: none", unit="spikes per step", at_least=0, at_most=1
    )
    rate_weight: float = knob("weight of the firing rate in the loss", at_least=0)
    kappa: float | None = knob("decay of the filter per step; null: the readout's leak", at_least=0, below=1)
    seed: int = knob("seed of the random and learned broadcasts", at_least=0)
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class SuperSpikeConfig:
    """SuperSpike."""

    name: Literal["superspike"] = knob("a trace per synapse, filtered by a rise and a fall; a broadcast error")
    tau_rise: float = knob("time constant of the filter's rise", unit="steps", above=0)
    tau_fall: float = knob("time constant of the filter's fall", unit="steps", above=0)
    broadcast: Literal["random", "symmetric"] = knob(
        "how the output's error reaches the hidden layers: by fixed random weights, or by the readout's own (one "
        "hidden layer)"
    )
    seed: int = knob("seed of the random broadcast", at_least=0)
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class BPTTConfig:
    """Backpropagation through time."""

    name: Literal["bptt"] = knob("backpropagation through time: the yardstick; its memory grows with the steps")


RuleConfig = (
    OTTTConfig
    | SLTTConfig
    | SLTTKConfig
    | NDOTConfig
    | STLLRConfig
    | ApproximateOTPEConfig
    | OTPEConfig
    | DRTRLConfig
    | OSTLConfig
    | HYPRConfig
    | ESDRTRLConfig
    | EPropConfig
    | SuperSpikeConfig
    | SignalRuleConfig
    | TBPTTConfig
    | BPTTConfig
)
