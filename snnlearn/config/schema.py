"""Every knob of a run, group by group: type, range and meaning; the values live in `configs/`.

The classes of one group are its choices, told apart by their `name`. Knobs without a default here are meant so:
a default in code and another in YAML would be two truths.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snnlearn.config.knob import knob
from snnlearn.config.schema_network import ModelConfig, NeuronConfig, SurrogateConfig
from snnlearn.config.schema_rules import RuleConfig
from snnlearn.config.schema_tasks import DatasetConfig

__all__ = [
    "Config",
    "LoggerConfig",
    "LossConfig",
    "OptimizerConfig",
    "RuleConfig",
    "SchedulerConfig",
    "TrainerConfig",
]


@dataclass(frozen=True, kw_only=True)
class _LossBase:
    readout: Literal["step", "running_mean"] = knob("what each step's loss sees: its own output, or the mean so far")
    last_steps: int | None = knob(
        "only the last so many steps carry a loss; null: all, or those of the answer in a task that has one",
        unit="steps",
        at_least=1,
    )


@dataclass(frozen=True, kw_only=True)
class CrossEntropyConfig(_LossBase):
    """Cross-entropy of every step."""

    name: Literal["cross_entropy"] = knob("cross-entropy of every step")
    label_smoothing: float = knob("share of the label spread over all classes", at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class MSEConfig(_LossBase):
    """Squared distance to the one-hot label."""

    name: Literal["mse"] = knob("squared distance to the one-hot label")


@dataclass(frozen=True, kw_only=True)
class MixConfig(CrossEntropyConfig):
    """Cross-entropy and squared distance, weighted."""

    name: Literal["mix"] = knob("(1 - mse_weight) cross-entropy + mse_weight squared distance")  # type: ignore[assignment]
    mse_weight: float = knob("weight of the squared distance", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class SquaredErrorConfig(_LossBase):
    """Squared distance to the numbers to follow."""

    name: Literal["squared_error"] = knob("squared distance to numbers to follow: regression")


LossConfig = CrossEntropyConfig | MSEConfig | MixConfig | SquaredErrorConfig


@dataclass(frozen=True, kw_only=True)
class _OptimizerBase:
    lr: float = knob("learning rate", above=0, at_most=1000)
    weight_decay: float = knob("weight decay", at_least=0)
    clip_norm: float | None = knob("largest gradient norm of an update; null: no clipping", above=0)
    fptt_alpha: float | None = knob(
        "forward propagation through time: pull towards the running average of the weights; null: none", above=0
    )
    fptt_beta: float = knob("share of the new weights in that average", above=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class AdamConfig(_OptimizerBase):
    """Adam."""

    name: Literal["adam"] = knob("Adam")
    betas: tuple[float, float] = knob("decay of the two running means", at_least=0, below=1)
    eps: float = knob("added to the denominator", above=0)


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(AdamConfig):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = knob("Adam with decoupled weight decay")  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class SGDConfig(_OptimizerBase):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = knob("stochastic gradient descent")
    momentum: float = knob("momentum", at_least=0, below=1)
    nesterov: bool = knob("look ahead along the momentum")


OptimizerConfig = AdamConfig | AdamWConfig | SGDConfig


@dataclass(frozen=True, kw_only=True)
class NoSchedulerConfig:
    """A constant learning rate."""

    name: Literal["none"] = knob("a constant learning rate")


@dataclass(frozen=True, kw_only=True)
class CosineConfig:
    """Half a cosine over all epochs."""

    name: Literal["cosine"] = knob("half a cosine from lr to minimum_lr over all epochs")
    minimum_lr: float = knob("learning rate at the end", at_least=0)


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """A drop every few epochs."""

    name: Literal["step"] = knob("lr * factor after every so many epochs")
    every: int = knob("epochs between two drops", unit="epochs", at_least=1)
    factor: float = knob("what a drop multiplies the learning rate by", above=0, at_most=1)


SchedulerConfig = NoSchedulerConfig | CosineConfig | StepConfig


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long, in which portions, and from where."""

    epochs: int = knob("passes over the training data", unit="epochs", at_least=1)
    batch_size: int = knob("recordings in a batch", at_least=1)
    update: int | Literal["sequence"] = knob(
        "step the optimizer at the end of a sequence, or every so many steps", at_least=1
    )
    chunk: int | Literal["auto"] = knob(
        "steps that are run at once: faster, the same numbers to rounding; auto: as measured on the first batch",
        at_least=1,
    )
    precision: Literal["float32", "bfloat16", "float16"] = knob(
        "of the operands of products; states, traces and weights are float32 whatever it is"
    )
    workers: int = knob("processes that read data beside the training; 0: none", at_least=0)
    max_batches: int | None = knob("stop every epoch after so many batches; null: never", at_least=1)
    save_every: int | None = knob("save a checkpoint every so many batches too; null: once an epoch", at_least=1)
    threshold: float | None = knob(
        "count the epochs until the validation accuracy has come so far from chance (0) to perfect (1); null: do not",
        above=0,
        at_most=1,
    )
    nonfinite: Literal["stop", "skip"] = knob("what to do with a batch whose loss is NaN or infinite")
    resume: Literal["auto"] | Path | None = knob(  # noqa: RUF009
        "go on from this run folder or checkpoint; auto: from the latest unfinished run that fits, if there is one"
    )


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """What is written down while training. `metrics.jsonl` always is."""

    tensorboard: bool = knob("write TensorBoard curves")
    log_every: int = knob("batches between two lines of metrics", unit="batches", at_least=1)
    fidelity_every: int | None = knob(
        "compare the rule's gradient with BPTT's on a small batch every so many epochs; null: never",
        unit="epochs",
        at_least=1,
    )
    progress: Literal["auto", "bar", "lines"] = knob("progress bar or plain lines; auto: a bar on a terminal")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run, checked."""

    seed: int = knob("seed of weights, data order and split", at_least=0, below=2**63)
    device: Literal["auto", "cpu", "cuda"] = knob("where to compute; auto: the GPU where there is one")
    threads: int | None = knob("CPU threads of torch; null: torch's own choice", at_least=1)
    dataset: DatasetConfig
    model: ModelConfig
    neuron: NeuronConfig
    surrogate: SurrogateConfig
    rule: RuleConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    trainer: TrainerConfig
    logger: LoggerConfig
