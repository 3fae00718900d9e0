"""What every rule carries from step to step: constant memory, a clock, checkpoints, copies, frozen parameters."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from contract import (
    STEPS,
    assert_equal,
    attached,
    every_step,
    input_for,
    is_online,
    keeps_trace,
    net_for,
    passed,
    points,
    points_on_nets,
    show,
    targets,
    taught,
)
from nets import furthest, gradients
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import BPTT, OTTT, LearningRule, OnlineLearner, StaleTraceError, reset
from snnlearn.nn.signal_hub import SignalHub

pytestmark = pytest.mark.usefixtures("quick")

SEED = 4


def held_tensors(net: nn.Module) -> Iterator[Tensor]:
    """Every tensor that the modules of `net` hold beside parameters, buffers and children, wherever they keep it."""
    for module in net.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _tensors(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, SignalHub):
        yield from _tensors(vars(value))
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def held_bytes(net: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in held_tensors(net))


def graph_size(loss: Tensor) -> int:
    """Number of autograd nodes behind a loss."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(seen)


def footprint(net: nn.Module, x: Tensor, y: Tensor, steps: int, learns: bool) -> tuple[int, int, int]:
    """Bytes held, graph behind the loss, and tensors held with a graph, after so many steps."""
    show(net, y)
    for step in range(steps):
        loss = F.cross_entropy(net(x[step % len(x)]), y)
        size = graph_size(loss)
        if learns:
            loss.backward()
    return held_bytes(net), size, sum(tensor.grad_fn is not None for tensor in held_tensors(net))


@points(is_online)
def test_memory_does_not_grow(rule: LearningRule) -> None:
    """Neither state and traces nor the graph of a step know how long the sequence is."""
    net, x, y = attached(rule, "recurrent"), input_for("recurrent"), targets()
    early = footprint(net, x, y, 3, learns=True)
    late = footprint(net, x, y, 27, learns=True)  # thirty steps in all
    assert early == late
    assert early[0] > 0
    assert late[2] == 0


def test_memory_grows_under_bptt() -> None:
    """The figures above can tell: BPTT holds the graph of every step."""
    net, x, y = attached(BPTT()), input_for(), targets()
    early, late = footprint(net, x, y, 3, learns=False), footprint(net, x, y, 27, learns=False)
    assert late[1] > 5 * early[1]
    assert late[2] > 0


@points(is_online)
def test_the_clock(rule: LearningRule) -> None:
    """Wrong orders raise under a trace; where there is none nothing can be stale, and the step's gradient comes."""
    net, x, y = attached(rule), input_for(), targets()
    started = copy.deepcopy(net)
    show(started, y)
    passed(started, x[:1])

    def next_forward_first(net: nn.Module) -> None:
        late = F.cross_entropy(net(x[1]), y)
        net(x[2])
        late.backward()

    def reset_first(net: nn.Module) -> None:
        late = F.cross_entropy(net(x[1]), y)
        reset(net)
        late.backward()

    def reset_of_a_row_first(net: nn.Module) -> None:
        late = F.cross_entropy(net(x[1]), y)
        reset(net, torch.arange(len(y)) == 0)
        late.backward()

    def unseen_step_first(net: nn.Module) -> None:
        with torch.no_grad():
            net(x[1])
        F.cross_entropy(net(x[2]), y).backward()

    def forward_in_eval(net: nn.Module) -> None:
        F.cross_entropy(net.eval()(x[1]), y).backward()

    orders = (next_forward_first, reset_first, reset_of_a_row_first, unseen_step_first, forward_in_eval)
    for wrong_order in orders:
        twin = copy.deepcopy(started)
        show(twin, y)
        if keeps_trace(rule):
            with pytest.raises(StaleTraceError):
                wrong_order(twin)
        else:
            wrong_order(twin)
            assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(twin).values())


@points(is_online)
def test_a_second_backward_within_the_step_gives_the_same(rule: LearningRule) -> None:
    net, x, y = attached(rule), input_for(), targets()
    show(net, y)
    passed(net, x[:2])
    loss = F.cross_entropy(net(x[2]), y)
    loss.backward(retain_graph=True)
    once = gradients(net)
    net.zero_grad(set_to_none=True)
    loss.backward()
    assert_equal(gradients(net), once, tolerance=0.0)


def adam_learner(rule: LearningRule) -> OnlineLearner:
    net = net_for(rule)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.05))
    show(net, targets())
    return learner


def learned_parameters(learner: OnlineLearner, x: Tensor) -> dict[str, Tensor]:
    """The parameters after one more sequence; at least one of the steps drawn with `SEED` learns."""
    torch.manual_seed(SEED)
    assert learner.learn(x, targets()).updates == 1
    return {name: p.detach().clone() for name, p in learner.net.named_parameters()}


def checkpoint(learner: OnlineLearner) -> dict[str, Any]:
    """What comes back from disk."""
    kept = io.BytesIO()
    torch.save({"net": learner.net.state_dict(), "optimizer": learner.optimizer.state_dict()}, kept)
    kept.seek(0)
    return dict(torch.load(kept, weights_only=True))


@points()
def test_a_checkpoint_goes_on_bit_for_bit(rule: LearningRule) -> None:
    """Parameters, optimizer and what the rule brought, loaded into fresh ones, make the same next update."""
    first, second = adam_learner(rule), adam_learner(rule)
    before = learned_parameters(first, input_for().flip(0))
    loaded = checkpoint(first)
    second.net.load_state_dict(loaded["net"])
    second.optimizer.load_state_dict(loaded["optimizer"])
    expected, found = (learned_parameters(learner, input_for()) for learner in (first, second))
    assert_equal(found, expected, tolerance=0.0)
    assert furthest(expected, before) > 1e-3


def test_a_checkpoint_without_its_optimizer_goes_elsewhere() -> None:
    first, second = adam_learner(OTTT()), adam_learner(OTTT())
    learned_parameters(first, input_for().flip(0))
    second.net.load_state_dict(checkpoint(first)["net"])
    assert furthest(*(learned_parameters(learner, input_for()) for learner in (first, second))) > 1e-3


@points_on_nets(is_online)
def test_copies_in_mid_sequence_go_their_own_way(rule: LearningRule, kind: str) -> None:
    """A copy and a pickle take the same next step, and what a copy does then does not touch the original."""
    net, x, y = attached(rule, kind), input_for(kind), targets()
    taught(net, x[:2], y)
    twin, stray, pickled = copy.deepcopy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))  # noqa: S301
    taught(stray, x[2:].flip(0), y.flip(0))
    expected = taught(net, x[2:3], y)
    assert_equal(taught(twin, x[2:3], y), expected, tolerance=0.0)
    assert_equal(taught(pickled, x[2:3], y), expected, tolerance=0.0)
    assert furthest(taught(stray, x[2:3], y), expected) > 1e-6


class Kept(torch.optim.AdamW):
    """AdamW with weight decay that notes which gradients were there."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), lr=0.05, weight_decay=0.5)
        self.net, self.seen = net, list[set[str]]()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(set(gradients(self.net)))
        super().step(closure)


@points_on_nets()
def test_frozen_parameters_stay_and_pass_gradients_on(rule: LearningRule, kind: str) -> None:
    """A frozen first block keeps its weights under weight decay, hands gradients down, and may be thawed later."""
    net, x, y = net_for(rule, kind), input_for(kind), targets()
    optimizer = Kept(net)
    learner = OnlineLearner(net, every_step(rule), F.cross_entropy, optimizer)
    show(net, targets())
    free = copy.deepcopy(net)
    net[0].requires_grad_(False)
    frozen = {name for name, p in net[0].named_parameters(prefix="0") if "signal" not in name}
    before = copy.deepcopy(net[0].state_dict())
    down = [sample_gradient(each, x, y) for each in (free, net)]
    torch.testing.assert_close(*down)
    assert float(down[0].abs().max()) > 1e-8
    learner.learn(x, y)
    assert not frozen & optimizer.seen[0]
    assert all(
        torch.equal(value, before[name]) for name, value in net[0].state_dict().items() if torch.is_tensor(value)
    )
    net[0].requires_grad_(True)
    learner.learn(x, y)
    assert frozen <= optimizer.seen[1]
    assert not torch.equal(net[0].connection.weight, before["connection.weight"])


def sample_gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the first step's loss for its input."""
    leaf = x[0].clone().requires_grad_()
    reset(net)
    taught(net, [leaf], y)
    assert leaf.grad is not None
    return leaf.grad


@points_on_nets(is_online)
def test_thawing_in_mid_sequence_finds_the_trace(rule: LearningRule, kind: str) -> None:
    """The trace of a frozen parameter went on, so that learning goes on as if it had never been frozen."""
    net, x, y = attached(rule, kind), input_for(kind), targets()
    free = copy.deepcopy(net)
    net[0].requires_grad_(False)
    taught(net, x[: STEPS - 2], y)
    taught(free, x[: STEPS - 2], y)
    net[0].requires_grad_(True)
    assert_equal(taught(net, x[STEPS - 2 :], y), taught(free, x[STEPS - 2 :], y))
