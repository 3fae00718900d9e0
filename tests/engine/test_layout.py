"""Channels-last weights: chosen where they are faster, with the numbers of the other layout."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, OTTT, ETBlock, ETConv2d, ETLinear, OnlineLearner
from snnlearn.engine import auto_chunk
from snnlearn.engine.layout import lay_out_, may_choose_layout

STEPS, BATCH = 6, 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    convolution = ETConv2d(2, 5, 3, padding=1)
    with torch.no_grad():
        convolution.weight.mul_(3)
    pool = nn.AvgPool2d(2)
    readout = ETBlock(ETLinear(5 * 9, 3), LI())
    return nn.Sequential(ETBlock(convolution, LIF(decay=0.7)), pool, nn.Flatten(), readout).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(STEPS, BATCH, 2, 6, 6, generator=generator) < 0.4).double()
    return x, torch.tensor([0, 1, 2, 0])


def learner_for(net: nn.Module, chunk: int | str) -> OnlineLearner:
    return OnlineLearner(
        net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), chunk=chunk
    )


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[tuple[int, bool], float]) -> None:
    def measure(_: Any, chunk: int, channels_last: bool = False) -> float:
        return seconds.get((chunk, channels_last), 9.0)

    monkeypatch.setattr(auto_chunk._Trial, "seconds", measure)


@pytest.mark.parametrize(
    ("faster", "chunk", "channels_last"),
    [((2, True), 2, True), ((1, True), 1, True), ((2, False), 2, False)],
)
def test_the_layout_is_chosen_with_the_chunk(
    faster: tuple[int, bool],
    chunk: int,
    channels_last: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "snnlearn.engine")
    timed(monkeypatch, {(2, False): 4.0, (2, True): 4.0, faster: 1.0} if faster[1] else {faster: 1.0})
    x, y = batch()
    auto = learner_for(network(), "auto")
    parameters = [id(parameter) for parameter in auto.net.parameters()]
    result = auto.learn(x, y)
    assert auto.chunk == chunk
    assert auto.net[0].connection.weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert [id(parameter) for parameter in auto.net.parameters()] == parameters
    assert ("with channels-last weights: " in caplog.messages[0]) == channels_last
    plain = learner_for(network(), chunk)
    true = plain.learn(x, y)
    assert 0.02 < true.firing_rates["0"] < 0.8
    assert result.loss == pytest.approx(true.loss, rel=1e-12)
    for _ in range(2):  # the optimizer goes on with the same parameters
        auto.learn(x, y)
        plain.learn(x, y)
    for mine, theirs in zip(auto.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_what_follows_keeps_the_channels_last() -> None:
    net = network()
    lay_out_(net, True)
    learner = learner_for(net, 1)
    seen: list[Tensor] = []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    learner.learn(*batch())
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in seen)
    state = net[0].neuron.state[0]
    assert state.is_contiguous(memory_format=torch.channels_last)
    assert not state.is_contiguous()


def gradients_of_maps(net: nn.Sequential) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the gradients that reach the pooled maps, and those of the weights."""
    seen: list[Tensor] = []

    def listen(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        output.register_hook(seen.append)

    net[1].register_forward_hook(listen)
    learner = learner_for(net, 1)
    learner.optimizer.step = lambda *_: None  # type: ignore[method-assign]
    gradients: list[Tensor | None] = []
    learner._drop_pending = lambda: gradients.extend(p.grad for p in net.parameters())  # type: ignore[method-assign]
    learner.learn(*batch())
    return seen, [gradient for gradient in gradients if gradient is not None]


def test_the_gradient_of_a_pooled_map_lies_as_the_map_does() -> None:
    nets = [network() for _ in range(3)]
    lay_out_(nets[1], True)
    lay_out_(nets[2], True)
    lay_out_(nets[2], True)  # once is enough
    lay_out_(nets[2], False)
    assert [len(net[1]._forward_hooks) for net in nets] == [0, 1, 0]
    (plain, weights), (turned, others) = gradients_of_maps(nets[0]), gradients_of_maps(nets[1])
    assert len(plain) == len(turned) == STEPS
    assert not any(gradient.is_contiguous(memory_format=torch.channels_last) for gradient in plain)
    assert all(gradient.is_contiguous(memory_format=torch.channels_last) for gradient in turned)
    for one, other in zip([*plain, *weights], [*turned, *others], strict=True):
        assert one is not None
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_nothing_to_choose_without_convolutions_or_where_it_was_chosen() -> None:
    net = network()
    assert may_choose_layout(net)
    lay_out_(net, True)
    assert not may_choose_layout(net)
    assert not may_choose_layout(nn.Sequential(ETBlock(ETLinear(3, 2), LIF())))
