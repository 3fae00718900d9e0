"""Knobs of the rules whose learning signal is not spatial backpropagation."""

from dataclasses import dataclass
from typing import Literal

from snnlearn.config.knob import knob

__all__ = ["TRUNCATE", "SignalRuleConfig"]

TRUNCATE = (
    "of convolutions, drop what came before each chunk of trainer.chunk steps, an approximation that the report names; "
    "false: exact, and trainer.chunk takes the whole sequence"
)
"""What `truncate_trace` means, in every rule that has it."""


@dataclass(frozen=True, kw_only=True)
class DFAConfig:
    """Direct feedback alignment."""

    name: Literal["dfa"] = knob("direct feedback alignment: a fixed random broadcast of the output's error")
    seed: int = knob("seed of the random broadcast", at_least=0)


@dataclass(frozen=True, kw_only=True)
class FeedbackAlignmentConfig:
    """Feedback alignment."""

    name: Literal["feedback_alignment"] = knob("backpropagation at each step by fixed random weights on the way down")
    seed: int = knob("seed of the random weights", at_least=0)


@dataclass(frozen=True, kw_only=True)
class OSTTPConfig:
    """Online spatio-temporal learning with target projection."""

    name: Literal["osttp"] = knob("a trace per synapse and a random projection of the target")
    seed: int = knob("seed of the projection", at_least=0)
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class ETLPConfig:
    """Event-based three-factor local plasticity."""

    name: Literal["etlp"] = knob("osttp at the random steps of a teacher; meant for trainer.update=1")
    steps: int = knob("mean distance of two steps that learn", unit="steps", at_least=1)
    seed: int = knob("seed of the projection", at_least=0)
    truncate_trace: bool = knob(TRUNCATE)


@dataclass(frozen=True, kw_only=True)
class DECOLLEConfig:
    """Deep continuous local learning."""

    name: Literal["decolle"] = knob("a fixed random readout and a loss per layer; meant for trainer.update=1")
    loss: Literal["cross_entropy", "mse", "smooth_l1"] = knob("loss of the layers' own readouts")
    seed: int = knob("seed of the readouts", at_least=0)


@dataclass(frozen=True, kw_only=True)
class ELLConfig:
    """Efficient local learning."""

    name: Literal["ell"] = knob("a trained readout and a loss per layer, through the present step only")
    loss: Literal["cross_entropy", "mse", "smooth_l1"] = knob("loss of the layers' own readouts")
    seed: int = knob("seed that the readouts are first drawn from", at_least=0)


@dataclass(frozen=True, kw_only=True)
class TESSConfig:
    """Temporally and spatially local learning."""

    name: Literal["tess"] = knob("the traces of S-TLLR and a readout of sinusoids per layer")
    acausal_decay: float = knob("decay of the unit's trace per step", at_least=0, below=1)
    causal_decay: float = knob("decay of the input's trace per step", at_least=0, at_most=1)
    acausal: float = knob("weight of the term with the unit's trace: 1 for static images, 0 for event cameras")
    causal: float = knob("weight of the term with the input's trace")
    square: bool = knob("the sign of the sinusoids in their place")
    loss: Literal["cross_entropy", "mse", "smooth_l1"] = knob("loss of the layers' own readouts")


@dataclass(frozen=True, kw_only=True)
class TracesPropagationConfig:
    """Traces propagation."""

    name: Literal["traces_propagation"] = knob("a contrastive loss per layer, between the paths of input and target")
    decay: float = knob("decay of the traces of spikes per step", at_least=0, at_most=1)
    temperature: float = knob("divides the products of traces; more for wide layers and long traces", above=0)
    trained: bool = knob("the projection of the label is learned")
    seed: int = knob("seed that the projection is first drawn from", at_least=0)


@dataclass(frozen=True, kw_only=True)
class OPZOConfig:
    """Online pseudo-zeroth-order training."""

    name: Literal["opzo"] = knob("dL/ds estimated from noise that is added to the spikes")
    scale: float = knob("standard deviation of the noise", unit="spikes", above=0)
    momentum: float = knob("share of the estimate that each step keeps", at_least=0, below=1)
    seed: int = knob("seed of the noise", at_least=0)


SignalRuleConfig = (
    DFAConfig
    | FeedbackAlignmentConfig
    | OSTTPConfig
    | ETLPConfig
    | DECOLLEConfig
    | ELLConfig
    | TESSConfig
    | TracesPropagationConfig
    | OPZOConfig
)
