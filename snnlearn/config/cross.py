"""Checks that need more than one knob; each looks only at knobs that are legal alone."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from snnlearn.config.problem import Problem, nearest
from snnlearn.config.schema_data import DataConfig, Recordings
from snnlearn.config.schema_rules import PER_SYNAPSE
from snnlearn.data.sequential_mnist import PIXELS
from snnlearn.functional import ArcTan
from snnlearn.kernels import dispatch

__all__ = ["cross_checks"]

Values = Mapping[str, Any]  # every legal value by its dotted path

# Rules that cannot run several steps at once, and why.
ONE_BY_ONE = {
    "bptt": "keeps its graph through time",
    "tbptt": "keeps its graph through time",
}


def cross_checks(values: Values) -> Iterator[Problem]:
    """Yield every problem between knobs; `values` has the legal ones by dotted path, the others are left out.

    >>> [str(problem) for problem in cross_checks({"neuron.tau": 0.5, "neuron.dt": None})][0][:53]
    'neuron.tau: got 0.5; legal: a number > 1 (steps) whil'
    """
    yield from _steps(values)
    yield from _task(values)
    yield from _targets(values)
    yield from _time_constants(values)
    yield from _convolutions(values)
    yield from _sparse(values)
    yield from _rules(values)
    if values.get("neuron.adaptation") == 0 and "adaptation" in values.get("neuron.learn", ()):
        yield Problem("neuron.adaptation", "0", "a number > 0 while neuron.learn has adaptation")
    yield from _adaptive_share(values)
    update = values.get("trainer.update", "sequence")
    if values.get("rule.name") == "bptt" and update != "sequence":
        yield Problem("trainer.update", str(update), "sequence while rule is bptt, which needs the end")
    window = values.get("rule.window")
    if values.get("rule.name") == "tbptt" and window is not None and update != "sequence" and update % window:
        yield Problem("trainer.update", str(update), f"sequence, or a multiple of rule.window, which is {window}")
    yield from _chunk(values, update)
    yield from _within_chunk(values, update)
    if values.get("optimizer.fptt_alpha") is not None and update == "sequence":
        hint = "FPTT steps the weights at every step"
        yield Problem(
            "trainer.update", "sequence", "a whole number, such as 1, while optimizer.fptt_alpha is set", hint
        )
    if values.get("optimizer.nesterov") and values.get("optimizer.momentum") == 0:
        yield Problem("optimizer.nesterov", "true", "false while optimizer.momentum is 0")
    if values.get("device") == "cuda" and not torch.cuda.is_available():
        yield Problem("device", "'cuda'", "cpu or auto: this machine has no usable GPU")
    yield from _kernels(values.get("device"))


def _kernels(device: str | None) -> Iterator[Problem]:
    """Check the path of kernels that the environment has chosen: that there is one, and Triton's device."""
    choice = dispatch.choice_in_use()
    if choice.form != dispatch.ENVIRONMENT:
        return
    name = choice.form.partition("=")[0]
    if choice.path not in dispatch.PATHS:
        hint = nearest(choice.path, dispatch.PATHS)
        yield Problem(name, choice.path, f"one of: {', '.join(dispatch.PATHS)}; an environment variable", hint)
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if choice.path == "triton" and on_cpu:
        reason = dispatch.why_not("cut_gradient", torch.ones(1), torch.ones(1), ArcTan())
        if reason:
            yield Problem(name, "triton", "auto, reference or compiled on the CPU; an environment variable", reason)


def _chunk(values: Values, update: Any) -> Iterator[Problem]:
    """Check that so many steps can be run at once; auto goes with everything, since it is 1 where they cannot."""
    chunk, rule = values.get("trainer.chunk", 1), values.get("rule.name")
    if chunk in (1, "auto"):
        return
    if rule in ONE_BY_ONE:
        allowed = f"1 or auto while rule is {rule}, which {ONE_BY_ONE[rule]}"
        yield Problem("trainer.chunk", str(chunk), allowed, "every other rule takes trainer.chunk")
    elif isinstance(update, int) and update % chunk:
        allowed = f"sequence, or a multiple of trainer.chunk, which is {chunk}"
        yield Problem("trainer.update", str(update), allowed, "weights change only where a chunk ends")


def _within_chunk(values: Values, update: Any) -> Iterator[Problem]:
    """Check that one chunk is the sequence, where the trace of a convolution is kept within one and not truncated."""
    rule, chunk, built = values.get("rule.name"), values.get("trainer.chunk"), values.get("dataset.built")
    if (
        rule not in PER_SYNAPSE
        or values.get("model.name") != "convolutional"
        or values.get("rule.truncate_trace", True)
    ):
        return
    if chunk is None or not isinstance(built, Recordings) or (built.by == "number" and built.steps is None):
        return
    steps = built.total_steps
    given = f"{steps} (dataset.steps)"
    out = "rule.truncate_trace=true drops what came before each chunk"
    where = f"while rule is {rule} and model is convolutional, whose trace is kept within one chunk alone"
    if steps is None and chunk != "auto":
        hint = f"or write dataset.steps=T with trainer.chunk=T; {out}"
        yield Problem("trainer.chunk", str(chunk), f"auto {where}, and dataset.steps is null", hint)
    elif steps is not None and chunk != "auto" and chunk < steps:
        hint = f"write trainer.chunk={steps}; or {out}"
        yield Problem("trainer.chunk", str(chunk), f"auto, or at least {given}, {where}", hint)
    told = isinstance(chunk, int) and isinstance(update, int) and update % chunk != 0
    if isinstance(update, int) and (steps is None or update < steps) and not told:
        allowed = "sequence" if steps is None else f"sequence, or {given},"
        yield Problem("trainer.update", str(update), f"{allowed} {where}", out)


def _steps(values: Values) -> Iterator[Problem]:
    steps, name = values.get("dataset.steps"), "dataset.steps"
    if "dataset.steps" in values and steps is None and values.get("dataset.by") == "number":
        yield Problem("dataset.steps", "null", "a whole number >= 1 while dataset.by is number")
    if "dataset.steps" not in values and isinstance(values.get("dataset.built"), DataConfig):
        steps, name = values["dataset.built"].total_steps, f"the length of {values['dataset.name']}"
    for path in ("loss.last_steps", "trainer.update", "rule.steps", "rule.last_steps"):
        wanted = values.get(path)
        if steps is not None and isinstance(wanted, int) and wanted > steps:
            yield Problem(path, str(wanted), f"at most {name}, which is {steps}")


def _task(values: Values) -> Iterator[Problem]:
    """Check what a made-up task is made from, by its own rules."""
    chunk = values.get("dataset.chunk")
    if chunk is not None and PIXELS % chunk:
        yield Problem("dataset.chunk", str(chunk), f"a divisor of {PIXELS}, the pixels of a digit, such as 1, 7 or 28")
    built = values.get("dataset.built")
    if not isinstance(built, DataConfig):
        return
    if built.task is not None:
        for fault in built.task.faults():
            yield Problem(f"dataset.{fault.name}", str(fault.got), fault.allowed)
    dt = values.get("neuron.dt")
    if dt is not None and built.step_ms is not None and abs(1000 * dt - built.step_ms) > 1e-9:
        allowed = f"{built.step_ms / 1000:g}, a step of {values['dataset.name']}, or null for time constants in steps"
        yield Problem("neuron.dt", f"{dt:g}", allowed)


def _targets(values: Values) -> Iterator[Problem]:
    """Check that model and loss can take the form of the data."""
    kind = values.get("dataset.kind")
    if kind is None:
        return
    name, loss = values.get("dataset.name"), values.get("loss.name")
    if values.get("model.name") == "convolutional" and not issubclass(kind, Recordings):
        yield Problem("model", "convolutional", f"mlp or recurrent while dataset is {name}, which has no frames")
    if kind.numbers and loss not in (None, "squared_error"):
        yield Problem("loss", loss, f"squared_error while dataset is {name}, whose targets are numbers, no labels")
    if not kind.numbers and loss == "squared_error":
        allowed = f"cross_entropy, mse or mix while dataset is {name}, whose targets are labels"
        yield Problem("loss", loss, allowed, "mse takes labels as one-hot vectors")
    threshold = values.get("trainer.threshold")
    if kind.numbers and threshold is not None:
        yield Problem("trainer.threshold", f"{threshold:g}", f"null while dataset is {name}, which has no accuracy")
    if kind.per_step and values.get("loss.readout") == "running_mean":
        allowed = f"step while dataset is {name}, with a target at every step"
        yield Problem("loss.readout", "running_mean", allowed, "the mean so far mixes in answers to earlier steps")


def _sparse(values: Values) -> Iterator[Problem]:
    """Check that nothing needs the frames that sparse events are never made into."""
    if not values.get("dataset.sparse"):
        return
    model, shift = values.get("model.name"), values.get("dataset.shift")
    if model not in (None, "mlp"):
        hint = f"the first layer of {model} takes dense steps; or write dataset.sparse=false"
        yield Problem("model", str(model), "mlp while dataset.sparse is true", hint)
    if shift:
        hint = "it moves frames; or write dataset.sparse=false"
        yield Problem("dataset.shift", str(shift), "0 while dataset.sparse is true", hint)


def _adaptive_share(values: Values) -> Iterator[Problem]:
    share, neuron = values.get("model.adaptive_share", 1.0), values.get("neuron.name")
    if share < 1 and neuron not in (None, "alif"):
        yield Problem("model.adaptive_share", f"{share:g}", f"1 while neuron is {neuron}, which never adapts")
    if share < 1 and "adaptation" in values.get("neuron.learn", ()):
        yield Problem("model.adaptive_share", f"{share:g}", "1 while neuron.learn has adaptation, one for a layer")


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
    built = values.get("dataset.built")
    if channels is None or pool is None or not isinstance(built, Recordings):
        return
    side = min(built.input_shape[1:])
    if side // pool ** len(channels) < 1:
        allowed = f"pooling that leaves at least one of {side} pixels after {len(channels)} layers"
        yield Problem("model.pool", str(pool), allowed)


def _rules(values: Values) -> Iterator[Problem]:
    rule, convolutional = values.get("rule.name"), values.get("model.name") == "convolutional"
    if rule == "traces_propagation" and convolutional:
        yield Problem("rule", str(rule), "another rule while model is convolutional", "it compares units, not places")
    if rule == "traces_propagation" and values.get("trainer.batch_size") == 1:
        yield Problem("trainer.batch_size", "1", "at least 2 while rule is traces_propagation, which compares samples")
    if values.get("rule.broadcast") == "symmetric" and len(values.get("model.hidden", ())) > 1:
        hint = "only the last hidden layer feeds the readout whose weights it takes"
        yield Problem("rule.broadcast", "symmetric", "another broadcast while model.hidden has several layers", hint)
    if convolutional and values.get("rule.broadcast") in ("symmetric", "adaptive"):
        allowed = "random" if rule == "superspike" else "random or spatial"
        hint = "the others take one number per unit of a layer that feeds the readout by itself"
        yield Problem("rule.broadcast", values["rule.broadcast"], f"{allowed} while model is convolutional", hint)
    if rule != "ndot":
        return
    hint = "the membranes of the sending neurons have to come with their spikes"
    if values.get("model.dropout"):
        yield Problem("model.dropout", f"{values['model.dropout']:g}", "0 while rule is ndot", hint)
    if convolutional and values.get("model.pool", 1) != 1:
        yield Problem("model.pool", str(values["model.pool"]), "1 while rule is ndot", hint)
    if convolutional and values.get("model.readout") == "leaky":
        yield Problem("model.readout", "leaky", "static while rule is ndot", hint)
