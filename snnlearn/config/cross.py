"""Checks that need more than one knob; each looks only at knobs that are legal alone."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from snnlearn.config.problem import Problem
from snnlearn.config.schema_rules import PER_SYNAPSE

__all__ = ["cross_checks"]

Values = Mapping[str, Any]  # every legal value by its dotted path


def cross_checks(values: Values) -> Iterator[Problem]:
    """Yield every problem between knobs; `values` has the legal ones by dotted path, the others are left out.

    >>> [str(problem) for problem in cross_checks({"neuron.tau": 0.5, "neuron.dt": None})][0][:53]
    'neuron.tau: got 0.5; legal: a number > 1 (steps) whil'
    """
    yield from _steps(values)
    yield from _time_constants(values)
    yield from _convolutions(values)
    yield from _rules(values)
    update = values.get("trainer.update", "sequence")
    if values.get("rule.name") == "bptt" and update != "sequence":
        yield Problem("trainer.update", str(update), "sequence while rule is bptt, which needs the end")
    if values.get("optimizer.nesterov") and values.get("optimizer.momentum") == 0:
        yield Problem("optimizer.nesterov", "true", "false while optimizer.momentum is 0")
    if values.get("device") == "cuda" and not torch.cuda.is_available():
        yield Problem("device", "'cuda'", "cpu or auto: this machine has no usable GPU")


def _steps(values: Values) -> Iterator[Problem]:
    if "dataset.steps" not in values:
        return
    steps = values["dataset.steps"]
    if steps is None:
        if values.get("dataset.by") == "number":
            yield Problem("dataset.steps", "null", "a whole number >= 1 while dataset.by is number")
        return
    for path in ("loss.last_steps", "trainer.update", "rule.steps", "rule.last_steps"):
        wanted = values.get(path)
        if isinstance(wanted, int) and wanted > steps:
            yield Problem(path, str(wanted), f"at most dataset.steps, which is {steps}")


def _time_constants(values: Values) -> Iterator[Problem]:
    if values.get("neuron.dt", 0.0) is not None:  # given, or not legal itself
        return
    for name in ("tau", "tau_synapse", "tau_adaptation"):
        tau = values.get(f"neuron.{name}")
        if tau is not None and tau <= 1:
            hint = "decay is 1 - 1/tau; give neuron.dt where tau is meant in seconds"
            yield Problem(f"neuron.{name}", f"{tau:g}", "a number > 1 (steps) while neuron.dt is null", hint)


def _convolutions(values: Values) -> Iterator[Problem]:
    kernel, channels, pool = (values.get(f"model.{name}") for name in ("kernel_size", "channels", "pool"))
    if kernel is not None and any(side % 2 == 0 for side in kernel):
        yield Problem("model.kernel_size", str(list(kernel)), "odd numbers only, so that padding keeps the size")
    sensor = values.get("dataset.sensor")
    if channels is None or pool is None or sensor is None:
        return
    side = min(sensor[1:])
    if side // pool ** len(channels) < 1:
        allowed = f"pooling that leaves at least one of {side} pixels after {len(channels)} layers"
        yield Problem("model.pool", str(pool), allowed)


def _rules(values: Values) -> Iterator[Problem]:
    rule, convolutional = values.get("rule.name"), values.get("model.name") == "convolutional"
    if rule in PER_SYNAPSE and convolutional:
        hint = "a convolution has one eligibility per place and weight"
        yield Problem("rule", str(rule), f"none of {', '.join(PER_SYNAPSE)} while model is convolutional", hint)
    if values.get("rule.broadcast") == "symmetric" and len(values.get("model.hidden", ())) > 1:
        hint = "only the last hidden layer feeds the readout whose weights it takes"
        yield Problem("rule.broadcast", "symmetric", "another broadcast while model.hidden has several layers", hint)
    if rule != "ndot":
        return
    hint = "the membranes of the sending neurons have to come with their spikes"
    if values.get("model.dropout"):
        yield Problem("model.dropout", f"{values['model.dropout']:g}", "0 while rule is ndot", hint)
    if convolutional and values.get("model.pool", 1) != 1:
        yield Problem("model.pool", str(values["model.pool"]), "1 while rule is ndot", hint)
    if convolutional and values.get("model.readout") == "leaky":
        yield Problem("model.readout", "leaky", "static while rule is ndot", hint)
