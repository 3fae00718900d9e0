"""Chunks as users meet them: what is refused and why, inputs of every form, prediction, mixing with single steps."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    DFA,
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    OnlineLearner,
    SequenceLoss,
    TimeConstantDropout,
    TruncatedBPTT,
    reset,
)
from snnlearn.nn import StateShapeError
from snnlearn.rules import RuleChoiceError

STEPS, BATCH = 7, 4


def net_of(*between: nn.Module, norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        ETBlock(ETLinear(6, 9), LIF(decay=0.8, threshold=0.3), norm), *between, ETBlock(ETLinear(9, 3), LI(decay=0.7))
    ).double()


def learner_of(net: nn.Module, rule: Any = None, **options: Any) -> OnlineLearner:
    loss = options.pop("loss", F.cross_entropy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return OnlineLearner(net, rule or OTTT(), loss, optimizer, **options)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(STEPS, BATCH, 6, generator=generator) < 0.5).double()
    return x, torch.tensor([0, 1, 2, 1])


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def test_one_step_at_a_time_is_the_default() -> None:
    assert learner_of(net_of()).chunk == 1


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, "many", None])
def test_what_is_no_number_of_steps(chunk: Any, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"chunk=.*number of steps.*write chunk=16"):
        learner_of(net_of(), chunk=chunk)


def test_an_update_comes_where_a_chunk_ends() -> None:
    with pytest.raises(ValueError, match=r"chunk=4 with update=6: .* multiple of 4 steps; write update=8"):
        learner_of(net_of(), chunk=4, update=6)
    assert learner_of(net_of(), chunk=4, update=8).chunk == 4


@pytest.mark.parametrize("rule", [BPTT(), TruncatedBPTT(4)])
def test_a_graph_through_time_has_no_chunks(rule: Any) -> None:
    with pytest.raises(RuleChoiceError, match="keeps its graph through time; write chunk=1"):
        learner_of(net_of(), rule, chunk=4)


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.BatchNorm1d(9), r"submodule\('1'\).eval\(\)"),
        (nn.BatchNorm1d(9, track_running_stats=False).eval(), "GroupNorm"),
        (nn.Dropout(0.5), "TimeConstantDropout"),
        (nn.AlphaDropout(0.5), "TimeConstantDropout"),
        (nn.RReLU(), "chunk=1"),
    ],
)
def test_layers_whose_meaning_would_change_are_refused(layer: nn.Module, remedy: str) -> None:
    net = net_of(layer)
    if isinstance(layer, nn.BatchNorm1d) and not layer.track_running_stats:
        net[1].eval()
    x, y = data()
    learner, before = learner_of(net, chunk=3), weights(net)
    with pytest.raises(RuleChoiceError, match=rf"chunk > 1 with 1, a {type(layer).__name__}.*{remedy}"):
        learner.learn(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_what_the_refusals_recommend_works_and_changes_no_number() -> None:
    x, y = data()
    for make in (
        lambda: net_of(nn.BatchNorm1d(9).eval()),
        lambda: net_of(nn.LayerNorm(9)),
        lambda: net_of(TimeConstantDropout(0.3)),
        lambda: net_of(nn.Dropout(0.0)),
    ):
        found = []
        for chunk in (1, 3):
            net = make()
            learner = learner_of(net, chunk=chunk)
            torch.manual_seed(3)
            learner.learn(x, y)
            found.append(weights(net))
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_a_norm_inside_the_block() -> None:
    x, y = data()
    frozen = []
    for chunk in (1, 3):
        net = net_of(norm=nn.BatchNorm1d(9))
        net[0].norm.eval()
        net[0].norm.running_mean.fill_(0.1)
        learner_of(net, DRTRL(), chunk=chunk).learn(x, y)
        frozen.append(weights(net))
    torch.testing.assert_close(frozen[0], frozen[1], rtol=1e-12, atol=1e-14)
    with pytest.raises(RuleChoiceError, match="statistics would be those of all steps of a chunk"):
        learner_of(net_of(norm=nn.BatchNorm1d(9)), DRTRL(), chunk=3).learn(x, y)


class Flipped(nn.Module):
    """Changes the batch, which nobody may inside a chunk."""

    def forward(self, x: Tensor) -> Tensor:
        return x[: len(x) - 1]


def test_a_layer_that_changes_the_batch_is_noticed() -> None:
    x, y = data()
    with pytest.raises(StateShapeError, match=r"a chunk of 3 steps met .*write chunk=1"):
        learner_of(nn.Sequential(Flipped(), *net_of()), chunk=3).learn(x, y)


@pytest.mark.parametrize("rule", [OTTT(), DRTRL(), SLTT(), DFA()])
def test_inputs_of_every_form_give_the_same(rule: Any) -> None:
    x, y = data()
    forms: list[Any] = [x, list(x), (x_t for x_t in x), x.transpose(0, 1).contiguous().transpose(0, 1)]
    found = []
    for form in forms:
        net = net_of()
        result = learner_of(net, rule, chunk=3).learn(form, y)
        assert result.steps == STEPS
        assert result.batch_size == BATCH
        assert result.decisions == BATCH
        found.append(weights(net))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


def test_prediction_and_evaluation_by_chunks() -> None:
    x, y = data()
    one, many = learner_of(net_of()), learner_of(net_of(), chunk=3)
    torch.testing.assert_close(many.predict(x).mean_output, one.predict(x).mean_output, rtol=1e-12, atol=0)
    torch.testing.assert_close(many.predict(x).last_output, one.predict(x).last_output, rtol=1e-12, atol=0)
    mine, theirs = many.evaluate(x, y), one.evaluate(x, y)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-12)
    assert (mine.accuracy, mine.firing_rates) == (theirs.accuracy, theirs.firing_rates)
    assert many.net.training


@pytest.mark.parametrize("rule", [OTTT(), DRTRL(), SLTT(), DFA()])
def test_single_steps_and_chunks_go_on_from_each_other(rule: Any) -> None:
    x, y = data()
    found = []
    for chunk in (1, 3):
        net = net_of()
        learner = learner_of(net, rule, chunk=chunk, update=3)
        learner.learn(x[:6], y)
        for x_t in x[:3]:
            learner.step(x_t, y)
        learner.learn(x[:6], y, keep_state=True)
        copied = copy.deepcopy(net)
        found.append([*weights(net), *weights(copied)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_losses_that_count_steps() -> None:
    x, y = data()
    for loss in (SequenceLoss(readout="running_mean"), SequenceLoss(last_steps=2)):
        found = []
        for chunk in (1, 3, STEPS):
            net = net_of()
            result = learner_of(net, DRTRL(), loss=copy.copy(loss), chunk=chunk).learn(x, y)
            found.append([*weights(net), torch.tensor(result.loss, dtype=torch.float64)])
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-13)


def test_an_empty_batch_and_a_batch_of_one() -> None:
    x, y = data()
    learner = learner_of(net_of(), chunk=3)
    before = weights(learner.net)
    learner.learn(x[:, :0], y[:0])
    assert all(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))
    learner.learn(x[:, :1], y[:1])
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))


@pytest.mark.parametrize("rule", [OTTT(), DRTRL()])
def test_single_precision_stays_within_its_rounding(rule: Any) -> None:
    x, y = data()
    found = []
    for chunk, dtype in ((1, torch.float64), (3, torch.float32), (STEPS, torch.float32)):
        net = net_of().to(dtype)
        learner_of(net, rule, chunk=chunk).learn(x.to(dtype), y)
        found.append([w.double() for w in weights(net)])
    for single in found[1:]:
        torch.testing.assert_close(single, found[0], rtol=1e-5, atol=1e-6)


def test_an_error_leaves_no_chunk_behind() -> None:
    x, y = data()
    learner = learner_of(net_of(), DRTRL(), chunk=3)
    with pytest.raises(IndexError):
        learner.learn(x, torch.tensor([0, 1, 2, 9]))
    assert all(vars(module).get("chunk") is None for module in learner.net.modules())
    reset(learner.net)
    fresh = learner_of(net_of(), DRTRL(), chunk=3)
    assert learner.learn(x, y).loss == pytest.approx(fresh.learn(x, y).loss, rel=1e-12)


@pytest.mark.parametrize("rule", [OTTT(), DRTRL()])
def test_a_value_that_is_no_number_changes_no_weight(rule: Any) -> None:
    x, y = data()
    x = x.clone()
    x[4, 1, 2] = float("nan")
    learner = learner_of(net_of(), rule, chunk=3)
    before = weights(learner.net)
    with pytest.raises(FloatingPointError):
        learner.learn(x, y)
    with pytest.raises(FloatingPointError):
        learner.learn(iter(x), y)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(
    "mask", [torch.zeros(STEPS, BATCH), torch.zeros(STEPS - 1, BATCH, dtype=torch.bool), torch.zeros(BATCH) > 0]
)
def test_restarts_are_a_mask_of_steps_and_rows(mask: Tensor, chunk: int) -> None:
    x, y = data()
    with pytest.raises(ValueError, match=r"restarts is .*it takes a boolean mask \[T, B\] with T = 7"):
        learner_of(net_of(), chunk=chunk).learn(x, y, restarts=mask)


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_restarts_fit_the_steps_and_rows_that_come(chunk: int) -> None:
    """Of a generator too, whose length nobody knows before; and without a restart in the mask."""
    (x, y), none = data(), torch.zeros(STEPS, BATCH, dtype=torch.bool)
    for mask, words in (
        (none[:5], rf"restarts is \[5, {BATCH}\] and the input has"),
        (torch.cat([none, none]), rf"the input ended after {STEPS} steps and restarts has {2 * STEPS} rows"),
        (none[:, :1], rf"restarts is \[{STEPS}, 1\] .* here \[T, {BATCH}\]"),
    ):
        with pytest.raises(ValueError, match=words):
            learner_of(net_of(), chunk=chunk).learn((x_t for x_t in x), y, restarts=mask)
    with pytest.raises(ValueError, match=rf"restarts is \[{STEPS}, 1\]"):
        learner_of(net_of(), chunk=chunk).learn(x, y, restarts=none[:, :1])
    learner_of(net_of(), chunk=chunk).learn((x_t for x_t in x), y, restarts=none)


@pytest.mark.parametrize("rule", [OTTT(), DRTRL()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("chunk", [1, 3, 10, "auto"])
def test_a_generator_may_fill_one_buffer(rule: Any, chunk: int | str) -> None:
    """Of inputs and of targets; control: a list of one buffer is the last step, over and over."""
    x, y = data()
    targets = torch.stack([(y + t) % 3 for t in range(STEPS)])
    apart, filled = net_of(), net_of()
    learner_of(apart, rule).learn(x, targets, per_step_target=True)

    def filling(values: Tensor) -> Any:
        buffer = torch.empty_like(values[0])
        return (buffer.copy_(value) for value in values)

    learner_of(filled, rule, chunk=chunk).learn(filling(x), filling(targets), per_step_target=True)
    for found, expected in zip(weights(filled), weights(apart), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    last = net_of()
    learner_of(last, rule).learn(x[-1:].expand(STEPS, -1, -1), targets, per_step_target=True)
    assert not torch.allclose(weights(last)[0], weights(apart)[0])


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_a_dtype_may_change_in_mid_sequence(chunk: int) -> None:
    (x, y), moved, stays = data(), net_of(), net_of()
    for net in (moved, stays):
        learner = learner_of(net, DRTRL(), chunk=chunk)
        learner.learn(x, y)
        net.to(torch.float32 if net is moved else torch.float64)
        kind = torch.float32 if net is moved else torch.float64
        learner.learn(x.to(kind), y, keep_state=True)
    for found, expected in zip(weights(moved), weights(stays), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
