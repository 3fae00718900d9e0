"""Sequences as they come in, and the figures that come out: all O(1) in time."""

import functools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from snnlearn.engine.losses import taught, taught_steps
from snnlearn.engine.trace_norms import TraceNorms
from snnlearn.functional.losses import is_labelled
from snnlearn.nn.block import ETBlock
from snnlearn.nn.neuron import Neuron


class NonFiniteError(FloatingPointError):
    """A NaN or infinity was met; no weight was changed by it."""


@dataclass(frozen=True)
class SequenceResult:
    """What a sequence taught or showed.

    `loss` mean over samples and counted steps; `output` and `last_output` the network's mean over steps and its
    last; `accuracy` from the summed readout of the steps that the loss counts (of every step's, where the target
    changes), `accuracy_last` from the last, None when there is nothing to count; `decisions` the number of answers
    that `accuracy` is a share of: sequences, or labels of steps; `firing_rates` spikes per unit and step by block;
    `gradient_norm` of the last update before clipping; `trace_norms` at the end by block, to be read before the traces
    move on (`snnlearn.engine.trace_norms`).

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
    trace_norms: dict[str, float] | TraceNorms = field(default_factory=dict)
    updates: int = 0
    decisions: int = 0


@dataclass(frozen=True)
class Prediction:
    """The network's mean output and last output over a sequence of `steps` steps.

    >>> Prediction(torch.zeros(1, 2), torch.zeros(1, 2), 5).steps
    5
    """

    mean_output: Any
    last_output: Any
    steps: int


@runtime_checkable
class FoldedSteps(Protocol):
    """A sequence that is no tensor and hands out several of its steps as one, such as `snnlearn.data.SparseSequence`.

    >>> isinstance(torch.zeros(2, 3), FoldedSteps)
    False
    """

    def __len__(self) -> int:
        """Return the number of steps T."""
        ...

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the steps, [B, ...] each."""
        ...

    def folded(self, begin: int, end: int) -> Tensor:
        """Return the steps begin..end - 1 as [K B, ...], time first."""
        ...


def sequence_length(x: Any) -> int | None:
    """Return T when x knows it (tensor, list), else None (generator).

    >>> sequence_length(torch.zeros(3, 1)), sequence_length(iter([]))
    (3, None)
    """
    return len(x) if isinstance(x, Tensor | Sized) else None


def kept_apart(steps: Any) -> Any:
    """Return steps, or targets, of which several may be kept at a time: those of a generator are copied as they come.

    A generator may fill one buffer over and over; a tensor, a list, a tuple and `FoldedSteps` hold theirs apart.

    >>> buffer = torch.zeros(1)
    >>> [float(step) for step in list(kept_apart(buffer.add_(1) for _ in range(3)))]
    [1.0, 2.0, 3.0]
    """
    if isinstance(steps, Tensor | list | tuple | FoldedSteps) or not isinstance(steps, Iterable):
        return steps
    return (map_outputs(lambda part: part.clone() if isinstance(part, Tensor) else part, step) for step in steps)


def steps_of(x: Iterable[Tensor], y: Any, per_step_target: bool) -> Iterator[tuple[Tensor, Any]]:
    """Yield (x_t, target of step t): y itself at every step, or its t-th entry with `per_step_target`.

    An entry None means that the step has no target, and so do labels that are all missing: NO_TARGET.

    `x` tensor [T, B, ...] or any iterable of [B, ...]. Raises ValueError when the lengths differ or T is 0.

    >>> [int(target) for _, target in steps_of(torch.zeros(2, 1), torch.tensor([4, 5]), per_step_target=True)]
    [4, 5]
    """
    targets = taught_steps(_per_step(y)) if per_step_target else None
    y = y if per_step_target else taught(y)
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
        yield x_t, target
    if steps == 0:
        raise ValueError("the sequence has no steps (T = 0): there is nothing to learn or predict; pass T >= 1")
    if targets is not None and next(targets, targets) is not targets:
        raise ValueError(f"the input ended after {steps} steps and there are more targets; pass as many as steps")


def _per_step(y: Any) -> Any:
    if not isinstance(y, Iterable) or (isinstance(y, Tensor) and y.dim() == 0):
        got = "a tensor without dimensions" if isinstance(y, Tensor) else repr(y)
        raise TypeError(
            f"per_step_target=True with y={got}: it takes one target per step; pass y of shape [T, B, ...] or a list "
            f"of T targets, None for a step that teaches nothing"
        )
    return y


def map_outputs(function: Any, *outputs: Any) -> Any:
    """Apply `function` to corresponding tensors of equal nests of tuples, lists and dictionaries.

    >>> map_outputs(lambda a, b: a + b, (1, [2]), (3, [4]))
    (4, [6])
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return function(*outputs)
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
    return values if values.dtype == torch.float32 else values.to(torch.promote_types(values.dtype, torch.float32))


def _firing_modules(net: nn.Module) -> dict[str, ETBlock | Neuron]:
    """Return by name the blocks whose neuron spikes, and the spiking neurons that stand outside any block."""
    named: dict[str, ETBlock | Neuron] = {}
    inside: set[int] = set()
    for name, module in net.named_modules():
        if isinstance(module, ETBlock):
            inside.add(id(module.neuron))
            if module.neuron.spiking:
                named[name or "block"] = module
        elif isinstance(module, Neuron) and module.spiking and id(module) not in inside:
            named[name or "neuron"] = module
    return named


def note_target(error: Exception, output: Any, target: Any) -> None:
    """Add to an error of the loss what it was given and how sequences and labels are laid out.

    >>> error = ValueError("no")
    >>> note_target(error, torch.zeros(2, 3), torch.tensor([0, 2])); len(error.__notes__)
    1
    """
    if isinstance(output, Tensor) and isinstance(target, Tensor):
        error.add_note(
            f"the loss was given outputs {list(output.shape)} {output.dtype} and targets {list(target.shape)} "
            f"{target.dtype}. Sequences are [T, B, ...], time first: write x.transpose(0, 1) for [B, T, ...], "
            f"per_step_target=True for targets [T, B]. Labels are int64, 0 to {output.shape[-1] - 1}: y.long()"
        )


class Meter:
    """Count outputs, hits and spikes along one sequence, without keeping any step.

    Use it as a context manager around the steps; spikes are observed for as long as the context lives.

    >>> with Meter(nn.Linear(1, 1)) as meter:
    ...     meter.add(torch.tensor([[0.0, 1.0]]), torch.tensor([1]), None)
    >>> meter.batch_size = 1
    >>> meter.result().accuracy
    1.0
    """

    def __init__(self, net: nn.Module, per_step_target: bool = False) -> None:
        self.per_step_target = per_step_target
        self.firing = _firing_modules(net)
        self.spikes: dict[str, Tensor] = {}
        self.chances: dict[str, int] = {}
        self.loss: Tensor | None = None
        self.steps = self.counted = self.batch_size = 0
        self.total: Any = None
        self.decided: Any = None
        self.last: Any = None
        self.target: Any = None
        self.hits: Tensor | None = None
        self.judged: Tensor | None = None
        self.handles: list[Any] = []

    def __enter__(self) -> "Meter":
        for name, module in self.firing.items():
            if isinstance(module, ETBlock):
                module.observer = functools.partial(self._count, name)
            else:
                self.handles.append(module.register_forward_hook(functools.partial(self._count_hooked, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for module in self.firing.values():
            if isinstance(module, ETBlock):
                module.observer = None
        for handle in self.handles:
            handle.remove()

    def _count(self, name: str, spikes: Tensor) -> None:
        spikes = spikes.detach()
        count = spikes.sum() if spikes.dtype == torch.float32 else wide(spikes).sum()
        self.spikes[name] = count if name not in self.spikes else self.spikes[name].add_(count)
        self.chances[name] = self.chances.get(name, 0) + spikes.numel()

    def _count_hooked(self, name: str, _module: nn.Module, _inputs: Any, spikes: Tensor) -> None:
        self._count(name, spikes)

    def firing_rates(self) -> dict[str, float]:
        """Return spikes per unit and step, by block, so far."""
        return {name: float(self.spikes[name]) / number for name, number in self.chances.items() if number}

    def add(self, output: Any, target: Any, loss: Tensor | None) -> None:
        """Take in one step's output, target and loss."""
        output = map_outputs(Tensor.detach, output)
        self.steps += 1
        total = map_outputs(wide, output)
        if loss is None and self.decided is None and self.counted:
            self.decided = self.total
        if loss is not None and self.counted < self.steps - 1:
            self.decided = total if self.decided is None else map_outputs(torch.add, self.decided, total)
        self.total = total if self.total is None else map_outputs(torch.add, self.total, total)
        self.last, self.target = output, target
        if loss is not None:
            self.counted += 1
            loss = loss.detach()
            self.loss = wide(loss) if self.loss is None else self.loss + loss
        if self.per_step_target and loss is not None and _has_classes(output, target):
            hits, judged = (output.argmax(-1) == target).sum(), is_labelled(target).sum()
            self.hits = hits if self.hits is None else self.hits + hits
            self.judged = judged if self.judged is None else self.judged + judged

    def result(self, **figures: Any) -> SequenceResult:
        """Return the sequence's figures; with a target per step, accuracy is a share of all labels of steps."""
        mean = map_outputs(lambda t: t / max(self.steps, 1), self.total)
        accuracy = accuracy_last = None
        decisions = 0
        if self.batch_size and _has_classes(self.last, self.target):
            accuracy_last = _accuracy(self.last, self.target)
            accuracy = _accuracy(self.total if self.decided is None else self.decided, self.target)
            decisions = self.batch_size
        if self.batch_size and self.per_step_target:
            decisions = 0 if self.judged is None else int(self.judged)
            accuracy = float(self.hits) / decisions if self.hits is not None and decisions else None
        return SequenceResult(
            loss=float(self.loss) / self.counted if self.loss is not None else float("nan"),
            batch_size=self.batch_size,
            steps=self.steps,
            output=mean,
            last_output=self.last,
            accuracy=accuracy,
            accuracy_last=accuracy_last,
            firing_rates=self.firing_rates(),
            decisions=decisions,
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
    return float((output.argmax(-1) == target).sum() / is_labelled(target).sum())


__all__ = [
    "FoldedSteps",
    "Meter",
    "NonFiniteError",
    "Prediction",
    "SequenceResult",
    "kept_apart",
    "map_outputs",
    "note_target",
    "sequence_length",
    "steps_of",
    "wide",
]
