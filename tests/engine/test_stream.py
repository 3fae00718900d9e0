"""Learning on a stream: no end, late targets, rows that start afresh, and evaluations in between."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import assert_alive, assert_same, furthest, gradients, labels, live_input, live_net
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    LearningRule,
    OnlineLearner,
    SequenceLoss,
    StateShapeError,
    TimeConstantDropout,
    TraceBuffer,
    reset,
)
from snnlearn.nn import stateful_modules

ONLINE = pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)


class Recorder(torch.optim.SGD):
    """Plain descent that keeps the gradients it was given, one dictionary per update."""

    def __init__(self, net: nn.Module, lr: float = 0.0) -> None:
        super().__init__(net.parameters(), lr=lr)
        self.net, self.seen = net, list[dict[str, Tensor]]()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(gradients(self.net))
        super().step(closure)


def stream_of(
    net: nn.Module, rule: LearningRule, loss: Any = F.cross_entropy, lr: float = 0.0, **options: Any
) -> tuple[OnlineLearner, Recorder]:
    optimizer = Recorder(net, lr)
    return OnlineLearner(net, rule, loss, optimizer, **options), optimizer


@ONLINE
@pytest.mark.parametrize("update", ["sequence", 1, 3])
def test_a_stream_equals_a_sequence(rule: LearningRule, update: str | int, device: torch.device) -> None:
    """The same steps give the same updates; on a stream "sequence" means every step with a target."""
    net = live_net(device)
    twin = copy.deepcopy(net)
    x, y = live_input(6, 4, device=device), labels(4, device=device)
    x[0] = 1.0
    assert_alive(net, x)
    streaming, streamed = stream_of(net, rule, lr=0.1, update=update)
    learning, learned = stream_of(twin, rule, lr=0.1, update=1 if update == "sequence" else update)
    outputs = [streaming.step(x_t, y) for x_t in x]
    result = learning.learn(x, y)
    assert len(streamed.seen) == len(learned.seen) == (2 if update == 3 else 6)
    for a, b in zip(streamed.seen, learned.seen, strict=True):
        assert_same(a, b, 1e-14)
    assert torch.equal(outputs[-1], result.last_output)
    assert not any(output.requires_grad for output in outputs)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)  # a sequence sums in one product: other rounding


@ONLINE
def test_a_step_without_a_target_teaches_nothing_and_keeps_time(rule: LearningRule, device: torch.device) -> None:
    """Silence, then one late target: its gradient contains the whole past that the rule keeps."""
    net = live_net(device)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner, optimizer = stream_of(net, rule, lr=0.1)
    before = copy.deepcopy(net.state_dict())
    for x_t in x[:4]:
        learner.step(x_t)
    assert not optimizer.seen
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    twin = copy.deepcopy(net)
    learner.step(x[4], y)
    reset(twin)
    for x_t in x:
        output = twin(x_t)
    F.cross_entropy(output, y).backward()
    assert_same(optimizer.seen[0], gradients(twin), 1e-14)


@ONLINE
def test_pending_gradient_can_be_applied_at_once(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    x[0] = 1.0
    learner, optimizer = stream_of(net, rule, lr=0.1, update=4)
    assert learner.update_now() is False
    for x_t in x[:3]:
        learner.step(x_t, y)
    assert not optimizer.seen
    assert learner.update_now() is True
    assert learner.update_now() is False
    assert len(optimizer.seen) == 1
    fresh, alone = stream_of(live_copy(net, optimizer.seen[0]), rule, update=3)
    for x_t in x[:3]:
        fresh.step(x_t, y)
    assert_same(optimizer.seen[0], alone.seen[0], 1e-12)


def live_copy(net: nn.Module, step: dict[str, Tensor], lr: float = 0.1) -> nn.Module:
    """Return `net` as it was before one step of descent."""
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.add_(step[name], alpha=lr)
    return twin


# Rows that start afresh in a running batch.

LOSSES: dict[str, Callable[[], Any]] = {
    "step": lambda: SequenceLoss("cross_entropy"),
    "running mean": lambda: SequenceLoss("cross_entropy", readout="running_mean"),
    "function": lambda: F.cross_entropy,
}


@ONLINE
@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_that_starts_afresh_equals_a_run_of_its_own(rule: LearningRule, loss: str, device: torch.device) -> None:
    """From there on the update equals the mean of three separate streams, one of which has just begun."""
    net = live_net(device)
    x, y = live_input(7, 3, device=device), labels(3, device=device)
    assert_alive(net, x)
    learner, optimizer = stream_of(net, rule, LOSSES[loss]())
    apart = [stream_of(copy.deepcopy(net), rule, LOSSES[loss]()) for _ in range(3)]
    for t, x_t in enumerate(x):
        if t == 4:
            learner.reset(torch.tensor([False, True, False], device=device))
            apart[1][0].reset()
        output = learner.step(x_t, y)
        outputs = [each.step(x_t[b : b + 1], y[b : b + 1]) for b, (each, _) in enumerate(apart)]
        torch.testing.assert_close(output, torch.cat(outputs), rtol=0, atol=1e-12)
        seen = [recorder.seen[t] for _, recorder in apart]
        mean = {name: sum(each[name] for each in seen) / 3 for name in seen[0]}
        for name, gradient in optimizer.seen[t].items():
            torch.testing.assert_close(gradient, mean[name], rtol=0, atol=1e-12)
    assert float(optimizer.seen[5]["hidden.connection.bias"].abs().max()) > 1e-5


def test_forgetting_to_reset_the_row_is_another_gradient(device: torch.device) -> None:
    """Negative control, for the state, the traces, and the running mean of the loss each."""
    x, y = live_input(7, 3, device=device), labels(3, device=device)
    net = live_net(device)
    rows = torch.tensor([False, True, False], device=device)

    def last_gradient(forget: str) -> dict[str, Tensor]:
        built = copy.deepcopy(net)
        learner, optimizer = stream_of(built, OTTT(), SequenceLoss(readout="running_mean"))
        for t, x_t in enumerate(x):
            if t == 4:
                for module in stateful_modules(built):
                    if forget != ("traces" if isinstance(module, TraceBuffer) else "state"):
                        module.reset(rows)
                if forget != "running mean":
                    assert learner._run is not None
                    learner._run.reset(rows)
            learner.step(x_t, y)
        return optimizer.seen[-1]

    right = last_gradient("nothing")
    for part in ("state", "traces", "running mean"):
        assert furthest(last_gradient(part), right) > 1e-4, part


def test_every_row_afresh_equals_a_reset(device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(4, 3, device=device), labels(3, device=device)
    seen = []
    for rows in (None, torch.ones(3, dtype=torch.bool, device=device)):
        learner, optimizer = stream_of(copy.deepcopy(net), OTTT(), SequenceLoss(readout="running_mean"))
        learner.step(x[0], y)
        learner.step(x[1], y)
        learner.reset(rows)
        learner.step(x[2], y)
        learner.step(x[3], y)
        seen.append(optimizer.seen)
    for a, b in zip(*seen, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-13)


# A running stream is left alone by what happens in between.


@ONLINE
@pytest.mark.parametrize("interruption", ["predict", "evaluate", "failed evaluate", "other batch size"])
def test_an_evaluation_in_between_changes_no_bit(rule: LearningRule, interruption: str, device: torch.device) -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(TimeConstantDropout(0.3), *live_net(device))

    x, y = live_input(6, 3, device=device), labels(3, device=device)
    other, other_y = live_input(4, 5, device=device), labels(5, device=device)

    def outputs_of(interrupted: bool) -> list[Tensor]:
        learner, _ = stream_of(build(), rule, SequenceLoss(readout="running_mean"), lr=0.1, update=2)
        found = []
        for t, x_t in enumerate(x):
            if t == 2:
                learner.reset(torch.tensor([True, False, False], device=device))
            if t == 3 and interrupted:  # one gradient is pending here
                if interruption == "predict":
                    learner.predict(x)
                elif interruption == "evaluate":
                    learner.evaluate(x, y)
                elif interruption == "other batch size":
                    learner.evaluate(other, other_y)
                else:
                    with pytest.raises(StateShapeError):
                        learner.evaluate([x[0], other[0]], [y, other_y], per_step_target=True)
            torch.manual_seed(t)
            found.append(learner.step(x_t, y))
        return found

    undisturbed, disturbed = outputs_of(False), outputs_of(True)
    assert all(torch.equal(a, b) for a, b in zip(undisturbed, disturbed, strict=True))
    assert not torch.equal(undisturbed[0], undisturbed[-1])


def test_predict_between_a_forward_and_its_backward_of_a_plain_loop(device: torch.device) -> None:
    net = live_net(device)
    learner, _ = stream_of(net, OTTT())
    x, y = live_input(3, 3, device=device), labels(3, device=device)
    output = net(x[0])
    learner.predict(x)
    F.cross_entropy(output, y).backward()
    assert float(next(net.parameters()).grad.abs().max()) > 0  # type: ignore[union-attr]


@ONLINE
def test_learning_on_a_sequence_starts_afresh_after_a_stream(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(5, 3, device=device), labels(3, device=device)
    used, seen = stream_of(net, rule, update=4)
    fresh, expected = stream_of(copy.deepcopy(net), rule)
    for x_t in x[:3]:  # leaves state, traces and three pending gradients behind
        used.step(x_t, y)
    used.update = "sequence"
    used.learn(x, y)
    fresh.learn(x, y)
    assert_same(seen.seen[-1], expected.seen[-1], 1e-14)


def test_a_stream_notices_another_batch_size(device: torch.device) -> None:
    """S01; the failure resets, so the stream may go on with the new size."""
    learner, _ = stream_of(live_net(device), OTTT())
    x = live_input(3, 4, device=device)
    learner.step(x[0], labels(4, device=device))
    with pytest.raises(StateShapeError, match=r"\[2, 12\].*\[4, 12\]"):
        learner.step(x[1, :2], labels(2, device=device))
    assert learner.step(x[1, :2], labels(2, device=device)).shape == (2, 3)


def test_the_empty_batch_on_a_stream(device: torch.device) -> None:
    """G31."""
    learner, optimizer = stream_of(live_net(device), OTTT(), lr=0.1)
    assert learner.step(live_input(1, 0, device=device)[0], labels(0, device=device)).shape == (0, 3)
    assert not optimizer.seen


class Token:
    """Something to hold a weak reference to."""


@ONLINE
def test_a_long_stream_keeps_nothing(rule: LearningRule, device: torch.device) -> None:
    """No step's output, spikes or graph outlive the step."""
    net = nn.Sequential(ETBlock(ETLinear(6, 4), LIF()), ETBlock(ETLinear(4, 3), LI())).to(device)
    loss = SequenceLoss("mix", readout="running_mean")
    learner = OnlineLearner(net, rule, loss, torch.optim.SGD(net.parameters(), 0.01), update=3)
    made: list[list[weakref.ref[object]]] = []

    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        assert output.grad_fn is not None
        token = Token()
        output.grad_fn.metadata["token"] = token  # lives as long as the node of the graph
        made[-1] += [weakref.ref(output), weakref.ref(token)]

    for module in net.modules():
        module.register_forward_hook(note)
    for x_t in live_input(30, 2, device=device, dtype=torch.float32):
        made.append([])
        learner.step(x_t, labels(2, device=device))
    assert all(len(step) >= 10 for step in made)
    assert [sum(ref() is not None for ref in step) for step in made[:-1]] == [0] * 29
