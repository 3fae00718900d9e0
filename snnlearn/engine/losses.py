"""The loss of a sequence: the mean of step losses, on a readout that needs no memory of the sequence."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.functional.losses import advance_running_mean, is_labelled, mean_squared_error, step_loss

CRITERIA = ("cross_entropy", "mse", "mix", "squared_error")
READOUTS = ("step", "running_mean")

NO_TARGET = object()
"""Stands for the target of a step that teaches nothing."""

TARGETS = (
    "labels [B] (int64) or numbers [B, C] for all steps, or with per_step_target=True one such target per step, "
    "None for a step that teaches nothing"
)
"""What `y` may be, for messages."""

StepLoss = Callable[[Any, Any], Tensor]
"""Any function of (output of a step, target) that returns a scalar, such as `F.cross_entropy`."""


class SequenceLoss:
    """Cross entropy, mean squared error or their mix, on each step's output or on the mean so far.

    `criterion` cross_entropy, mse (one-hot), mix: (1 - mse_weight) * cross entropy + mse_weight * mse, or
    squared_error, of outputs and floating-point targets [B, D] (regression).
    `readout` step (this step's output) or running_mean (the mean of the outputs so far, of which online rules
    differentiate this step's share alone). `last_steps` n counts only the last n steps. `label_smoothing` in
    [0, 1). Everything is O(1) in time. Raises ValueError for a value outside these.

    >>> loss = SequenceLoss("cross_entropy"); loss.begin(steps=1)
    >>> loss(torch.zeros(1, 10), torch.tensor([3]))
    tensor(2.3026)
    """

    def __init__(
        self,
        criterion: str = "cross_entropy",
        mse_weight: float = 0.05,
        label_smoothing: float = 0.0,
        readout: str = "step",
        last_steps: int | None = None,
    ) -> None:
        _one_of("criterion", criterion, CRITERIA)
        _one_of("readout", readout, READOUTS)
        if not (is_number(mse_weight) and 0.0 <= mse_weight <= 1.0):
            raise ValueError(f"mse_weight={mse_weight!r}: the share of the squared error lies in [0, 1]; write 0.05")
        if not (is_number(label_smoothing) and 0.0 <= label_smoothing < 1.0):
            raise ValueError(f"label_smoothing={label_smoothing!r}: it lies in [0, 1); write 0.1")
        if last_steps is not None and not is_whole(last_steps, 1):
            raise ValueError(f"last_steps={last_steps!r}: at least one step, a whole number; write 1, or None for all")
        self.criterion, self.readout, self.last_steps = criterion, readout, last_steps
        self.label_smoothing = label_smoothing
        self.mse_weight = {"cross_entropy": 0.0, "mse": 1.0, "mix": mse_weight}.get(criterion, 0.0)
        self.begin(None)

    def begin(self, steps: int | None, through_time: bool = False) -> None:
        """Start a sequence of `steps` steps (None when unknown); `through_time` keeps the graph of the mean.

        `last_steps` needs a known length in a sequence; a stream has none, so it is refused at the first step.
        """
        self._steps, self._through_time, self._seen = steps, through_time, 0
        self._mean: Tensor | None = None
        self._count: Tensor | None = None

    def extend(self, steps: int | None) -> None:
        """Let the sequence go on for `steps` more steps, None when unknown; the mean so far is a constant to them."""
        self.detach()
        self._steps = None if steps is None else self._seen + steps

    def detach(self) -> None:
        """Make the mean so far a constant to the steps that follow."""
        self._mean = None if self._mean is None else self._mean.detach()

    def reset(self, rows: Tensor) -> None:
        """Let the running mean start afresh where `rows` [B] is true."""
        if self._count is not None:
            self._count = self._count.masked_fill(rows.to(self._count.device), 0.0)

    def observe(self, output: Tensor) -> Tensor:
        """Take in this step's output [B, C] and return the readout that the loss sees."""
        self._seen += 1
        if self.readout == "step":
            return output
        output = output.to(torch.promote_types(output.dtype, torch.float32))  # half precision counts to 256 only
        if self._count is None:
            self._count = output.new_zeros(output.shape[0])
        self._count = self._count + 1
        past = torch.zeros_like(output) if self._mean is None else self._mean
        past = past if self._through_time else past.detach()
        count = self._count.reshape(-1, *(1,) * (output.dim() - 1))
        self._mean = advance_running_mean(past, output, count)
        return self._mean

    @property
    def counts(self) -> bool:
        """Whether the step last observed is one that the loss counts."""
        if self.last_steps is None:
            return True
        if self._steps is None:
            raise ValueError(
                f"last_steps={self.last_steps} needs to know where the sequence ends, and a stream or generator has "
                f"no length; pass x as a tensor [T, B, ...], or leave last_steps out and give targets late"
            )
        return self._seen > self._steps - self.last_steps

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of one step's output [B, C] for labels `target` [B], outside any sequence's count.

        Numbers [B, C] for criterion squared_error.
        """
        if self.criterion == "squared_error":
            return mean_squared_error(output, target)
        return step_loss(output, target, self.mse_weight, self.label_smoothing)

    def __repr__(self) -> str:
        return f"SequenceLoss({self.criterion!r}, readout={self.readout!r}, last_steps={self.last_steps})"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(allowed)}; write {name}={allowed[0]!r}")


def taught(target: Any) -> Any:
    """Return a step's target, or NO_TARGET where every label in it is `MISSING_LABEL`: such a step has no loss.

    The mean over no sequence is no number, so the step is left out like one without a target. Steps with some labels
    have the mean over the sequences that have one. On a GPU this waits for the device: ask once for a target that
    stays (`taught_steps` for a tensor of all steps).

    >>> taught(torch.tensor([-100, -100])) is NO_TARGET, taught(torch.tensor([-100, 1])) is NO_TARGET
    (True, False)
    """
    missing = _is_labels(target) and not bool(is_labelled(target).any())
    return NO_TARGET if missing else target


def taught_steps(targets: Any) -> Iterator[Any]:
    """Yield the target of each step out of `targets`, a tensor [T, B, ...] or an iterable; None becomes NO_TARGET.

    >>> [target is NO_TARGET for target in taught_steps([None, torch.tensor([1]), torch.tensor([-100])])]
    [True, False, True]
    """
    if _is_labels(targets) and targets.dim() > 1:
        labelled = is_labelled(targets).flatten(1).any(1).tolist()
        yield from (target if has else NO_TARGET for target, has in zip(targets, labelled, strict=True))
    else:
        yield from (NO_TARGET if target is None else taught(target) for target in targets)


def _is_labels(target: Any) -> bool:
    return isinstance(target, Tensor) and not target.is_floating_point() and target.numel() > 0


class LossRun:
    """One sequence or stream under a loss, plain function or `SequenceLoss` alike.

    `steps` its length, None when unknown; `through_time` for backpropagation through time.

    >>> run = LossRun(lambda output, target: output.sum() - target, None, False)
    >>> run.step(torch.ones(2), torch.tensor(2.0))
    tensor(0.)
    """

    def __init__(self, loss: StepLoss, steps: int | None, through_time: bool) -> None:
        self.loss, self.through_time = copy.copy(loss), through_time
        if isinstance(self.loss, SequenceLoss):
            self.loss.begin(steps, through_time)

    def extend(self, steps: int | None) -> None:
        """Let the sequence go on for `steps` more steps, None for a stream."""
        if isinstance(self.loss, SequenceLoss):
            self.loss.extend(steps)

    def step(self, output: Any, target: Any) -> Tensor | None:
        """Return the loss of this step, or None when it has NO_TARGET or does not count."""
        if isinstance(self.loss, SequenceLoss):
            seen = self.loss.observe(output)
            return None if target is NO_TARGET or not self.loss.counts else self._value(seen, target)
        return None if target is NO_TARGET else self._value(output, target)

    def _value(self, output: Any, target: Any) -> Tensor:
        try:
            value = self.loss(output, target)
        except (TypeError, AttributeError) as error:
            if isinstance(target, Tensor):
                raise
            what = "no target (y is None)" if target is None else f"a {type(target).__name__} as target"
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise TypeError(
                f"the loss {name} was given {what} and cannot compute with that: pass y as a tensor, {TARGETS}; "
                f"predict(x) runs without a target"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(
                f"the loss of a step is {got}: it is one number as a tensor, the mean over the batch; write "
                f"reduction='mean', or loss.mean()"
            )
        return value.reshape(())

    def detach(self) -> None:
        """Make what the loss remembers a constant to the steps that follow."""
        if isinstance(self.loss, SequenceLoss):
            self.loss.detach()

    def reset(self, rows: Tensor | None) -> None:
        """Forget the past of the rows where `rows` [B] is true, or of all."""
        if isinstance(self.loss, SequenceLoss):
            if rows is None:
                self.loss.begin(None, self.through_time)
            else:
                self.loss.reset(rows)


__all__ = [
    "CRITERIA",
    "NO_TARGET",
    "READOUTS",
    "TARGETS",
    "LossRun",
    "SequenceLoss",
    "StepLoss",
    "taught",
    "taught_steps",
]
