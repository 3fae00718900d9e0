"""Sequences as they come in, and the figures that come out: all O(1) in time."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.losses import NO_TARGET
from snnlearn.nn.block import ETBlock
from snnlearn.nn.neuron import Neuron


class NonFiniteError(FloatingPointError):
    """A NaN or infinity was met; no weight was changed by it."""


@dataclass(frozen=True)
class SequenceResult:
    """What a sequence taught or showed.

    `loss` mean over samples and counted steps; `output` and `last_output` the network's mean over steps and its
    last; `accuracy` from the summed readout (of every step's, where the target changes), `accuracy_last` from
    the last, None when there is nothing to count; `firing_rates` spikes per unit and step by block;
    `gradient_norm` of the last update before clipping; `trace_norms` at the end by block.

    >>> SequenceResult(0.5, 1, 1, None, None).loss
    0.5
    """

    loss: float
    batch_size: int
    steps: int
    output: Any
    last_output: Any
    accuracy: float | None = None
    accuracy_last: float | None = None
    firing_rates: dict[str, float] = field(default_factory=dict)
    gradient_norm: float = 0.0
    trace_norms: dict[str, float] = field(default_factory=dict)
    updates: int = 0


@dataclass(frozen=True)
class Prediction:
    """The network's mean output and last output over a sequence of `steps` steps.

    >>> Prediction(torch.zeros(1, 2), torch.zeros(1, 2), 5).steps
    5
    """

    mean_output: Any
    last_output: Any
    steps: int


def sequence_length(x: Any) -> int | None:
    """Return T when x knows it (tensor, list), else None (generator).

    >>> sequence_length(torch.zeros(3, 1)), sequence_length(iter([]))
    (3, None)
    """
    return len(x) if isinstance(x, Tensor | Sized) else None


def steps_of(x: Iterable[Tensor], y: Any, per_step_target: bool) -> Iterator[tuple[Tensor, Any]]:
    """Yield (x_t, target of step t): y itself at every step, or its t-th entry with `per_step_target`.

    An entry None means that the step has no target.

    `x` tensor [T, B, ...] or any iterable of [B, ...]. Raises ValueError when the lengths differ or T is 0.

    >>> [int(target) for _, target in steps_of(torch.zeros(2, 1), torch.tensor([4, 5]), per_step_target=True)]
    [4, 5]
    """
    targets = iter(y) if per_step_target else None
    steps = 0
    for x_t in x:
        steps += 1
        if targets is None:
            yield x_t, y
            continue
        try:
            target = next(targets)
        except StopIteration:
            raise ValueError(
                f"the targets ended after {steps - 1} steps and the input goes on: with per_step_target there is one "
                f"target per step; pass y of shape [T, B, ...], or per_step_target=False for one label a sequence"
            ) from None
        yield x_t, NO_TARGET if target is None else target
    if steps == 0:
        raise ValueError("the sequence has no steps (T = 0): there is nothing to learn or predict; pass T >= 1")
    if targets is not None and next(targets, None) is not None:
        raise ValueError(f"the input ended after {steps} steps and there are more targets; pass as many as steps")


def map_outputs(function: Any, *outputs: Any) -> Any:
    """Apply `function` to corresponding tensors of equal nests of tuples, lists and dictionaries.

    >>> map_outputs(lambda a, b: a + b, (1, [2]), (3, [4]))
    (4, [6])
    """
    first = outputs[0]
    if isinstance(first, dict):
        return {key: map_outputs(function, *(output[key] for output in outputs)) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(map_outputs(function, *parts) for parts in zip(*outputs, strict=True))
    return function(*outputs)


def wide(values: Tensor) -> Tensor:
    """Return `values` in at least float32: sums over many steps stall in half precision.

    >>> wide(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _named_neurons(net: nn.Module) -> dict[str, Neuron]:
    named: dict[str, Neuron] = {}
    inside: set[int] = set()
    for name, module in net.named_modules():
        if isinstance(module, ETBlock):
            named[name or "block"] = module.neuron
            inside.add(id(module.neuron))
        elif isinstance(module, Neuron) and id(module) not in inside:
            named[name or "neuron"] = module
    return named


@contextmanager
def noting_target(output: Any, target: Any) -> Iterator[None]:
    """Add to an error of the loss what it was given and how sequences and labels are laid out.

    >>> with noting_target(torch.zeros(2, 3), torch.tensor([0, 2])):
    ...     pass
    """
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(output, Tensor) and isinstance(target, Tensor):
            error.add_note(
                f"the loss was given outputs {list(output.shape)} {output.dtype} and targets {list(target.shape)} "
                f"{target.dtype}. Sequences are [T, B, ...], time first: write x.transpose(0, 1) for [B, T, ...], "
                f"per_step_target=True for targets [T, B]. Labels are int64, 0 to {output.shape[-1] - 1}: y.long()"
            )
        raise


class Meter:
    """Count outputs, hits and spikes along one sequence, without keeping any step.

    Use it as a context manager around the steps; spikes are counted by hooks that live as long as the context.

    >>> with Meter(nn.Linear(1, 1)) as meter:
    ...     meter.add(torch.tensor([[0.0, 1.0]]), torch.tensor([1]), None)
    >>> meter.batch_size = 1
    >>> meter.result().accuracy
    1.0
    """

    def __init__(self, net: nn.Module, per_step_target: bool = False) -> None:
        self.per_step_target = per_step_target
        self.neurons = {name: neuron for name, neuron in _named_neurons(net).items() if neuron.spiking}
        self.rates: dict[str, Tensor] = {}
        self.loss: Tensor | None = None
        self.steps = self.counted = self.judged = self.batch_size = 0
        self.total: Any = None
        self.last: Any = None
        self.target: Any = None
        self.hits: Tensor | None = None
        self.handles: list[Any] = []

    def __enter__(self) -> "Meter":
        for name, neuron in self.neurons.items():
            self.handles.append(neuron.register_forward_hook(self._counter(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _counter(self, name: str) -> Any:
        def count(_module: nn.Module, _inputs: Any, spikes: Tensor) -> None:
            if spikes.numel() == 0:
                return
            rate = wide(spikes.detach()).mean()
            self.rates[name] = rate if name not in self.rates else self.rates[name] + rate

        return count

    def add(self, output: Any, target: Any, loss: Tensor | None) -> None:
        """Take in one step's output, target and loss."""
        output = map_outputs(lambda t: t.detach(), output)
        self.steps += 1
        total = map_outputs(wide, output)
        self.total = total if self.total is None else map_outputs(torch.add, self.total, total)
        self.last, self.target = output, target
        if loss is not None:
            self.counted += 1
            self.loss = wide(loss.detach()) if self.loss is None else self.loss + loss.detach()
        if self.per_step_target and _has_classes(output, target):
            self.judged += 1
            hits = (output.argmax(-1) == target).float().mean()
            self.hits = hits if self.hits is None else self.hits + hits

    def result(self, **figures: Any) -> SequenceResult:
        """Return the sequence's figures; with a target per step, accuracy is the mean over steps."""
        mean = map_outputs(lambda t: t / max(self.steps, 1), self.total)
        accuracy = accuracy_last = None
        if self.batch_size and _has_classes(self.last, self.target):
            accuracy_last = _accuracy(self.last, self.target)
            accuracy = _accuracy(self.total, self.target)
        if self.batch_size and self.per_step_target:
            accuracy = None if self.hits is None else float(self.hits) / self.judged
        return SequenceResult(
            loss=float(self.loss) / self.counted if self.loss is not None else float("nan"),
            batch_size=self.batch_size,
            steps=self.steps,
            output=mean,
            last_output=self.last,
            accuracy=accuracy,
            accuracy_last=accuracy_last,
            firing_rates={name: float(rate) / self.steps for name, rate in self.rates.items()},
            **figures,
        )


def _has_classes(output: Any, target: Any) -> bool:
    return (
        isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and not target.is_floating_point()
        and output.dim() >= 2
        and target.shape == output.shape[:-1]
    )


def _accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(-1) == target).float().mean())


__all__ = [
    "Meter",
    "NonFiniteError",
    "Prediction",
    "SequenceResult",
    "map_outputs",
    "noting_target",
    "sequence_length",
    "steps_of",
    "wide",
]
