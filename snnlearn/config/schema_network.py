"""Knobs of the groups `model`, `neuron` and `surrogate`."""

from dataclasses import dataclass
from typing import Literal

from snnlearn.config.knob import knob

__all__ = ["ConvolutionalConfig", "MLPConfig", "ModelConfig", "NeuronConfig", "RecurrentConfig", "SurrogateConfig"]


@dataclass(frozen=True, kw_only=True)
class _ModelBase:
    readout: Literal["leaky", "static"] = knob("last layer: a leaky integrator (traced), or a plain linear layer")
    readout_tau: float = knob("time constant of the leaky readout", unit="steps", above=1)
    dropout: float = knob(
        "share of units silenced, the same for a whole sequence, after every hidden layer", at_least=0, below=1
    )


@dataclass(frozen=True, kw_only=True)
class MLPConfig(_ModelBase):
    """Fully connected layers."""

    name: Literal["mlp"] = knob("fully connected layers")
    hidden: tuple[int, ...] = knob("units of every hidden layer", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ConvolutionalConfig(_ModelBase):
    """Convolutions, each followed by average pooling, then a readout."""

    name: Literal["convolutional"] = knob("convolutions, each followed by average pooling, then a readout")
    channels: tuple[int, ...] = knob("output channels of every convolution", at_least=1)
    kernel_size: tuple[int, int] = knob("rows and columns of a kernel; odd, so that the size is kept", at_least=1)
    pool: int = knob("side of the pooling window; 1: no pooling", at_least=1)
    weight_standardized: bool = knob("give every kernel zero mean and unit variance before use")


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(MLPConfig):
    """Fully connected layers whose spikes come back to them."""

    name: Literal["recurrent"] = knob("fully connected layers, each with its own spikes of the step before as input")  # type: ignore[assignment]
    self_connections: bool = knob("whether a unit's spikes come back to itself too")
    adaptive_share: float = knob(
        "share of each hidden layer's units that adapt where neuron is alif; 1: all", at_least=0, at_most=1
    )


ModelConfig = MLPConfig | ConvolutionalConfig | RecurrentConfig


LEARN = "constants that are learned, each one number for a layer, instead of staying as given"
CubaLIFConstant = Literal["decay", "decay_synapse", "threshold", "initial_membrane"]
ALIFConstant = Literal["decay", "decay_adaptation", "adaptation", "threshold", "initial_membrane"]


@dataclass(frozen=True, kw_only=True)
class IFConfig:
    """Integrate and fire, without a leak."""

    name: Literal["if"] = knob("integrate and fire, no leak")
    threshold: float = knob("membrane value at which a neuron fires", above=0)
    reset: Literal["soft", "hard", "none"] = knob("after a spike subtract the threshold, go to zero, or do nothing")
    detach_reset: bool = knob("keep the reset out of the gradient")
    learn: tuple[Literal["threshold", "initial_membrane"], ...] = knob(LEARN)


@dataclass(frozen=True, kw_only=True)
class LIFConfig(IFConfig):
    """Leaky integrate and fire."""

    name: Literal["lif"] = knob("leaky integrate and fire")  # type: ignore[assignment]
    tau: float = knob("membrane time constant; in steps it must be > 1, in seconds where dt is given", above=0)
    dt: float | None = knob("length of a step; null: every time constant is in steps", unit="seconds", above=0)
    learn: tuple[Literal["decay", "threshold", "initial_membrane"], ...] = knob(LEARN)  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class CubaLIFConfig(LIFConfig):
    """Leaky integrate and fire with a synaptic current."""

    name: Literal["cuba_lif"] = knob("leaky integrate and fire with a synaptic current")  # type: ignore[assignment]
    tau_synapse: float = knob("time constant of the synaptic current, same unit as tau", above=0)
    learn: tuple[CubaLIFConstant, ...] = knob(LEARN)  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class ALIFConfig(LIFConfig):
    """Leaky integrate and fire whose threshold rises with every spike."""

    name: Literal["alif"] = knob("leaky integrate and fire with an adaptive threshold")  # type: ignore[assignment]
    tau_adaptation: float = knob("time constant of the adaptation, same unit as tau", above=0)
    adaptation: float = knob("how much a spike raises the threshold", at_least=0)
    learn: tuple[ALIFConstant, ...] = knob(LEARN)  # type: ignore[assignment]


NeuronConfig = IFConfig | LIFConfig | CubaLIFConfig | ALIFConfig


@dataclass(frozen=True, kw_only=True)
class ArcTanConfig:
    """1 / (1 + (pi alpha u / 2)^2) and its like."""

    name: Literal["arctan"] = knob("derivative of an arctangent")
    alpha: float = knob("steepness: larger is narrower", above=0)


@dataclass(frozen=True, kw_only=True)
class SigmoidConfig:
    """Derivative of a logistic function."""

    name: Literal["sigmoid"] = knob("derivative of a logistic function")
    alpha: float = knob("steepness: larger is narrower", above=0)


@dataclass(frozen=True, kw_only=True)
class TriangleConfig:
    """A triangle around the threshold."""

    name: Literal["triangle"] = knob("a triangle around the threshold")
    width: float = knob("half its base", above=0)


@dataclass(frozen=True, kw_only=True)
class RectangleConfig:
    """A rectangle around the threshold."""

    name: Literal["rectangle"] = knob("a rectangle around the threshold")
    width: float = knob("its base", above=0)


@dataclass(frozen=True, kw_only=True)
class FastSigmoidConfig:
    """Derivative of u / (1 + slope |u|)."""

    name: Literal["fast_sigmoid"] = knob("derivative of u / (1 + slope |u|)")
    slope: float = knob("steepness: larger is narrower", above=0)


@dataclass(frozen=True, kw_only=True)
class GaussianConfig:
    """A bell around the threshold."""

    name: Literal["gaussian"] = knob("a bell around the threshold")
    sigma: float = knob("its standard deviation", above=0)


@dataclass(frozen=True, kw_only=True)
class MultiGaussianConfig:
    """A bell less two wide ones beside it."""

    name: Literal["multi_gaussian"] = knob("a bell with a shallow negative one on either side")
    sigma: float = knob("standard deviation of the bell", above=0)
    scale: float = knob("how much wider the side bells are", above=0)
    height: float = knob("how tall the side bells are, in parts of the middle one", at_least=0)


SurrogateConfig = (
    ArcTanConfig
    | SigmoidConfig
    | TriangleConfig
    | RectangleConfig
    | FastSigmoidConfig
    | GaussianConfig
    | MultiGaussianConfig
)
