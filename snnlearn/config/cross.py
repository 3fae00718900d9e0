"""Checks that need more than one knob."""

from collections.abc import Iterator

import torch

from snnlearn.config.problem import Problem
from snnlearn.config.schema import BPTTConfig, Config, SGDConfig
from snnlearn.config.schema_network import ConvolutionalConfig, LIFConfig

__all__ = ["cross_checks"]


def cross_checks(config: Config) -> Iterator[Problem]:
    """Yield every problem between knobs that are each legal alone."""
    yield from _steps(config)
    yield from _time_constants(config)
    yield from _network(config)
    if isinstance(config.rule, BPTTConfig) and config.trainer.update != "sequence":
        yield Problem("trainer.update", str(config.trainer.update), "sequence while rule is bptt, which needs the end")
    optimizer = config.optimizer
    if isinstance(optimizer, SGDConfig) and optimizer.nesterov and optimizer.momentum == 0:
        yield Problem("optimizer.nesterov", "true", "false while optimizer.momentum is 0")
    if config.device == "cuda" and not torch.cuda.is_available():
        yield Problem("device", "'cuda'", "cpu or auto: this machine has no usable GPU")


def _steps(config: Config) -> Iterator[Problem]:
    dataset = config.dataset
    if dataset.by == "number" and dataset.steps is None:
        yield Problem("dataset.steps", "null", "a whole number >= 1 while dataset.by is number")
    if dataset.steps is None:
        return
    for path, wanted in (("loss.last_steps", config.loss.last_steps), ("trainer.update", config.trainer.update)):
        if isinstance(wanted, int) and wanted > dataset.steps:
            yield Problem(path, str(wanted), f"at most dataset.steps, which is {dataset.steps}")


def _time_constants(config: Config) -> Iterator[Problem]:
    neuron = config.neuron
    if not isinstance(neuron, LIFConfig) or neuron.dt is not None:
        return
    for name in ("tau", "tau_synapse", "tau_adaptation"):
        tau = getattr(neuron, name, None)
        if tau is not None and tau <= 1:
            hint = "decay is 1 - 1/tau; give neuron.dt where tau is meant in seconds"
            yield Problem(f"neuron.{name}", f"{tau:g}", "a number > 1 (steps) while neuron.dt is null", hint)


def _network(config: Config) -> Iterator[Problem]:
    model = config.model
    if not isinstance(model, ConvolutionalConfig):
        return
    even = [side for side in model.kernel_size if side % 2 == 0]
    if even:
        yield Problem("model.kernel_size", str(list(model.kernel_size)), "odd numbers only")
    side = min(config.dataset.sensor[1:])
    if side // model.pool ** len(model.channels) < 1:
        allowed = f"pooling that leaves at least one of {side} pixels after {len(model.channels)} layers"
        yield Problem("model.pool", str(model.pool), allowed)
