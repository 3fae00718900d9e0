"""What a rule has to keep while it learns: the same bytes on every machine, whatever else the process holds."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import StepLoss
from snnlearn.engine.yardsticks import Problem
from snnlearn.nn.clocked_trace import ClockedTrace
from snnlearn.nn.state import stateful_modules
from snnlearn.rules.axes import LearningRule


def kept_bytes(
    net: nn.Module,
    batch: Sequence[Any],
    rule: LearningRule,
    loss: StepLoss,
    *,
    per_step_target: bool = False,
    update: str | int = "sequence",
    chunk: int = 1,
) -> int:
    """Return the most bytes that learning one batch by `rule` keeps at a time.

    Counted are the states of neurons, the traces, and every tensor that autograd has saved for a backward still to come
    (a step of the input among them, once it has gone by), each storage once. Parameters, their gradients, the
    optimizer's moments and a batch that waits to be read are not: no rule changes those. `batch`, `loss` and
    `per_step_target` as for `fidelity`, `update` and `chunk` as for `OnlineLearner`: what the traces keep of a chunk
    until its backward counts too. All happens on a copy: `net` and torch's
    random state stay as they were. Raises NonFiniteError as `OnlineLearner.learn` does, RuleChoiceError where the
    network refuses the rule.

    >>> from snnlearn import BPTT, LI, OTTT, ETBlock, ETLinear
    >>> net, labels = ETBlock(ETLinear(3, 2), LI()), torch.tensor([0, 1])
    >>> def kept(rule, steps):
    ...     return kept_bytes(net, (torch.ones(steps, 2, 3), labels), rule, nn.functional.cross_entropy)
    >>> kept(OTTT(), 100) == kept(OTTT(), 10), kept(BPTT(), 100) > 9 * kept(BPTT(), 10)
    (True, True)
    """
    problem = Problem(net, batch, loss, per_step_target, None)
    with problem.drawing(), torch.enable_grad():
        optimizer = torch.optim.SGD(problem.net.parameters(), lr=0.0)
        learner = OnlineLearner(problem.net, rule, problem.loss, optimizer, update=update, chunk=chunk)
        ledger = _Ledger(problem.net)
        handle = problem.net.register_forward_hook(lambda *_: ledger.look())
        try:
            with torch.autograd.graph.saved_tensors_hooks(ledger.keep, lambda kept: kept.tensor):
                learner.learn(_OwnSteps(problem.x), problem.y, problem.per_step_target)
        finally:
            handle.remove()
    return ledger.peak


class _OwnSteps:
    """The steps of a sequence, each in memory of its own, so that keeping one does not keep them all."""

    def __init__(self, x: Sequence[Tensor] | Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[Tensor]:
        return (x_t.clone() for x_t in self.x)


class _Kept:
    """A tensor that autograd has saved; the ledger hears of its end."""

    def __init__(self, tensor: Tensor, ledger: "_Ledger") -> None:
        self.tensor, self.ledger = tensor, ledger

    def __del__(self) -> None:
        self.ledger.forget(self.tensor)


class _Ledger:
    """Count the bytes of the storages that are saved or carried by `net`, and remember the peak."""

    def __init__(self, net: nn.Module) -> None:
        self.peak = 0
        self._parameters = {_address(parameter) for parameter in net.parameters()}
        self._stateful = list(stateful_modules(net))
        self._holders: dict[int, int] = {}
        self._saved = 0

    def keep(self, tensor: Tensor) -> _Kept:
        """Take in a tensor that autograd saves."""
        address = _address(tensor)
        if address not in self._parameters:
            if address not in self._holders:
                self._saved += _size(tensor)
            self._holders[address] = self._holders.get(address, 0) + 1
            self.look()
        return _Kept(tensor.detach(), self)

    def forget(self, tensor: Tensor) -> None:
        """Take out a tensor that is no longer needed for a backward."""
        address = _address(tensor)
        if address in self._parameters:
            return
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self._saved -= _size(tensor)

    def look(self) -> None:
        """Compare what is held now with the peak."""
        carried = {}
        for module in self._stateful:
            for tensor in _tensors_of((*module.watched().values(), *_of_chunk(module))):
                carried[_address(tensor)] = _size(tensor)
        known = self._parameters | self._holders.keys()
        extra = sum(size for address, size in carried.items() if address not in known)
        self.peak = max(self.peak, self._saved + extra)


def _of_chunk(module: nn.Module) -> tuple[Any, ...]:
    """Return what a trace keeps of a chunk beside its state: not taken out by `stash`, which would take it in."""
    attributes = vars(module)
    if not isinstance(module, ClockedTrace) or attributes.get("kept") is None:
        return ()
    return (attributes["kept"],)


def _tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in tuples of tuples; sparse rows as the three that they are made of."""
    if isinstance(value, Tensor) and value.layout is torch.sparse_csr:
        yield from (value.crow_indices(), value.col_indices(), value.values())
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors_of(part)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


__all__ = ["kept_bytes"]
