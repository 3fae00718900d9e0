"""`chunk="auto"`: what it chooses, by what, and that choosing moves nothing."""

import copy
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    DRTRL,
    LI,
    OTTT,
    ETBlock,
    ETLinear,
    LearningRule,
    NonFiniteError,
    OnlineLearner,
    SequenceLoss,
    TimeConstantDropout,
)
from snnlearn.engine import auto_chunk, machine
from snnlearn.engine.auto_chunk import LENGTHS, Choice, best_of, choose_chunk, peeked
from snnlearn.engine.chunk_bytes import BlockShape, NetworkShape
from snnlearn.nn.state import stateful_modules
from snnlearn.rules import RULES

STEPS, BATCH, INPUTS, CLASSES = 20, 4, 6, 3


def network() -> nn.Sequential:
    """With what choosing must not move: a mask that is drawn, running statistics, and a state in mid-sequence."""
    torch.manual_seed(0)
    net = nn.Sequential(
        ETBlock(ETLinear(INPUTS, 7), ALIF(threshold=0.3)),
        TimeConstantDropout(0.2),
        nn.BatchNorm1d(7),
        ETBlock(ETLinear(7, CLASSES), LI()),
    )
    net[2].eval()
    return net


def learner(
    net: nn.Module, rule: LearningRule, chunk: int | str = "auto", update: str | int = "sequence", loss: Any = None
) -> OnlineLearner:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    return OnlineLearner(net, rule, loss or F.cross_entropy, optimizer, update=update, chunk=chunk)


def batch(steps: int = STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(steps, BATCH, INPUTS, generator=generator) < 0.5).float()
    return x, torch.randint(CLASSES, (steps, BATCH), generator=generator)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> list[int]:
    """Let `seconds` say how long a step takes; return the lengths that are asked for."""
    asked: list[int] = []

    def measure(_: Any, chunk: int, channels_last: bool = False) -> float:
        assert not channels_last, "there is no convolution"
        asked.append(chunk)
        return seconds(chunk)

    monkeypatch.setattr(auto_chunk._Trial, "seconds", measure)
    return asked


@pytest.mark.parametrize("rule", ["ottt", "drtrl", "etlp"])
@pytest.mark.parametrize("per_step", [False, True])
def test_the_numbers_are_those_of_the_chosen_length(rule: str, per_step: bool) -> None:
    """Bit for bit, and random numbers go on alike; control: another seed draws another mask."""
    x, y = batch()
    y = y if per_step else y[0]
    ends, random = [], []
    auto = learner(network(), RULES[rule]())
    torch.manual_seed(3)
    auto.learn(x, y, per_step_target=per_step)
    left = torch.get_rng_state()
    for seed in (3, 4):
        explicit = learner(network(), RULES[rule](), auto.chunk)
        torch.manual_seed(seed)
        explicit.learn(x, y, per_step_target=per_step)
        ends.append(explicit.net.state_dict())
        random.append(torch.get_rng_state())
    assert auto.chunk in (*LENGTHS, len(x))
    assert torch.equal(left, random[0])
    assert not torch.equal(left, random[1])
    for name, value in auto.net.state_dict().items():
        assert torch.equal(ends[0][name], value), name
    assert any(not torch.equal(ends[1][name], value) for name, value in auto.net.state_dict().items())


@pytest.mark.parametrize("rule", [OTTT(), DRTRL()])
def test_choosing_moves_nothing(rule: LearningRule) -> None:
    """Weights, statistics, gradients, modes, state, traces and random numbers; control: learning moves them."""
    net = network()
    made = learner(net, rule, chunk=2)
    x, y = batch()
    made.learn(x[:5], y[0])

    def everything() -> dict[str, Any]:
        state = {f"{i}.{k}": v for i, m in enumerate(stateful_modules(net)) for k, v in m.stash().items()}
        gradients = {f"{name}.grad": p.grad for name, p in net.named_parameters()}
        modes = {f"{name}.training": m.training for name, m in net.named_modules()}
        held = {**net.state_dict(), **state, **gradients, **modes, "random": torch.get_rng_state()}
        return copy.deepcopy({**held, "optimizer": made.optimizer.state_dict()["state"][0]["step"]})

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, tuple):
            return len(one) == len(other) and all(map(same, one, other))
        return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)

    before = everything()
    choose_chunk(made, x, y[0])
    after = everything()
    assert before.keys() == after.keys()
    assert [name for name in before if not same(before[name], after[name])] == []
    made.learn(x, y[0])
    moved = {name for name, value in everything().items() if not same(before[name], value)}
    assert {"0.connection.weight", "random", "optimizer"} <= moved


def test_it_is_said_once_with_the_figures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "snnlearn.engine")
    made, (x, y) = learner(network(), OTTT()), batch()
    assert made.chunk == 1
    made.evaluate(x, y[0])
    assert caplog.messages == []
    for _ in range(2):
        made.learn(x, y[0])
    (line,) = caplog.messages
    assert line.startswith(f"chunk={made.chunk}: ms a step by chunk length ")
    assert all(word in line for word in ("it keeps", "of a budget of", "a cache of", f"{made.chunk}: "))


@pytest.mark.parametrize(("fits", "expected"), [(0, 1), (1, 1), (4, 4), (7, 4), (64, 20)])
def test_the_budget_is_respected(fits: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much faster a longer chunk would be; 20 takes all steps at once, so that 32 is not asked for."""
    asked = timed(monkeypatch, lambda chunk: 1 / chunk)
    made, (x, y) = learner(network(), DRTRL()), batch()
    shape = auto_chunk._Trial(made, x, y[0], False).shape()
    choice = choose_chunk(made, x, y[0], budget=shape.kept(fits) if fits else 0)
    assert choice.chunk == expected == max(asked)
    assert ("the budget allows" in choice.why) == (fits < 64)
    assert 0 < shape.kept(1) < shape.kept(2) < shape.kept(64)


@pytest.mark.parametrize(("cache", "asked"), [(1, [1, 2, 4, 8]), (10**9, [20, 16, 8, 4, 2]), (None, [8, 16, 4, 2])])
def test_the_cache_says_where_to_begin(cache: int | None, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Upwards while that is faster, else downwards while that costs nothing: 4 is the best here."""
    seconds = {1: 9.0, 2: 5.0, 4: 1.0, 8: 1.01, 16: 2.0, 20: 3.0}
    made, (x, y) = learner(network(), OTTT()), batch()
    shape = auto_chunk._Trial(made, x, y[0], False).shape()
    found = timed(monkeypatch, lambda chunk: seconds[chunk])
    monkeypatch.setattr(auto_chunk, "cache_size", lambda _: cache or shape.growing(8))
    assert choose_chunk(made, x, y[0]).chunk == 4
    assert found == asked


def test_a_larger_chunk_has_to_be_worth_it() -> None:
    assert best_of({4: 1.0, 8: 0.96, 16: 0.97}) == 4
    assert best_of({4: 1.0, 8: 0.9, 16: 0.89}) == 8


def test_updates_come_where_a_chunk_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "snnlearn.engine")
    x, y = batch()
    made = learner(network(), DRTRL(), update=6)
    assert made.learn(x, y[0]).updates == 4
    assert made.chunk in (1, 2, 6)
    assert "4: " not in caplog.text.partition("it keeps")[0]
    odd = learner(network(), DRTRL(), update=5)
    odd.learn(x, y[0])
    assert odd.chunk in (1, 5)
    each = learner(network(), DRTRL(), update=1)
    each.learn(x, y[0])
    assert each.chunk == 1
    assert "an update after every step leaves no other" in caplog.text


@pytest.mark.parametrize("steps", [9, 20])
def test_what_is_timed_has_run(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by one with every step that the network takes: a step takes one in whatever chunk."""
    clock, (x, y) = [0.0], batch(steps)
    trial = auto_chunk._Trial(learner(network(), OTTT(), 1), x, y[0], False)
    net = trial.problem.net
    net.register_forward_hook(
        lambda *_: clock.__setitem__(0, clock[0] + (1 if net[0].chunk is None else net[0].chunk.steps))
    )
    monkeypatch.setattr(auto_chunk, "perf_counter", lambda: clock[0])
    lengths = auto_chunk.lengths_for("sequence", steps)
    assert lengths[-1] == steps
    assert [trial.seconds(length) for length in lengths] == [1.0] * len(lengths)


def test_what_cannot_be_folded_runs_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "snnlearn.engine")
    x, y = batch()
    through_time = learner(network(), BPTT())
    drawn, statistics = network(), network()
    drawn[1] = nn.Dropout(0.2)
    statistics[2].train()
    for made, why in (
        (through_time, "keeps its graph through time"),
        (learner(drawn, OTTT()), "it draws a new mask at every step"),
        (learner(statistics, OTTT()), "its statistics would be those of all steps of a chunk"),
    ):
        caplog.clear()
        made.learn(x, y[0])
        assert made.chunk == 1
        assert caplog.messages[0].startswith("chunk=1: no other is possible")
        assert why in caplog.text


def test_an_iterator_is_read_once_and_loses_no_step() -> None:
    x, y = batch(150)
    read: list[int] = []

    def steps() -> Iterator[Tensor]:
        for t, x_t in enumerate(x):
            read.append(t)
            yield x_t

    auto = learner(network(), OTTT())
    torch.manual_seed(3)
    result = auto.learn(steps(), iter(y), per_step_target=True)
    explicit = learner(network(), OTTT(), auto.chunk)
    torch.manual_seed(3)
    explicit.learn(iter(x), iter(y), per_step_target=True)
    assert read == list(range(150))
    assert result.steps == 150
    for name, value in explicit.net.state_dict().items():
        assert torch.equal(auto.net.state_dict()[name], value), name
    head, values = peeked(iter(range(3)))
    assert (head, list(values)) == ([0, 1, 2], [0, 1, 2])


def test_a_batch_that_teaches_nothing_decides_nothing() -> None:
    made, (x, y) = learner(network(), OTTT()), batch()
    made.learn(x[:, :0], y[0, :0])
    assert made.chooses_chunk
    x[3, 1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="non-finite value"):
        made.learn(x, y[0])
    assert made.chooses_chunk
    made.learn(batch()[0], y[0])
    assert not made.chooses_chunk


def test_a_loss_with_weights_of_its_own_gets_no_gradient() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(CLASSES))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(output * self.scale, target)

    loss, (x, y) = Weighted(), batch()
    choose_chunk(learner(network(), OTTT(), 1, loss=loss), x, y[0])
    assert loss.scale.grad is None
    last = learner(network(), OTTT(), loss=SequenceLoss(last_steps=2))
    assert math.isfinite(last.learn(x, y[0]).loss)


def test_bytes_of_a_block() -> None:
    """By hand: K 2, B 3, I 5, O 7, H 1, four bytes a number; a row of 5 + 1 takes 16."""
    leak, synaptic = BlockShape(3, 5, 7, 1, False), BlockShape(3, 5, 7, 1, True)
    assert (leak.growing(2), leak.lasting()) == (4 * 2 * 3 * (5 + 14), 4 * 2 * 3 * 5)
    assert (synaptic.growing(2), synaptic.lasting()) == (4 * 2 * 3 * (5 + 7 * 5), 4 * 3 * 7 * 16)
    both = NetworkShape((leak, synaptic), 100)
    assert both.kept(2) == leak.kept(2) + synaptic.kept(2) + 200
    assert str(Choice(2, "so")) == "chunk=2: so"


def test_a_network_is_seen_as_it_is() -> None:
    made, (x, y) = learner(network(), DRTRL()), batch()
    shape = auto_chunk._Trial(made, x, y[0], False).shape()
    hidden, readout = shape.blocks
    assert hidden == BlockShape(BATCH, INPUTS, 7, 2, True)  # ALIF: a membrane and an adaptation
    assert readout[:3] == (BATCH, 7, CLASSES)
    assert shape.others == 2 * BATCH * 7 * 4  # what dropout and norm are given


@pytest.mark.parametrize(
    ("text", "size"), [("32K\n", 2**15), ("33M", 33 * 2**20), ("1G", 2**30), ("", 0), ("12", 0), ("xK", 0)]
)
def test_sizes_of_caches(text: str, size: int) -> None:
    assert machine._size(text) == size


def test_a_machine_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.cache_size() > 2**15
    assert machine._asked("SC_NO_SUCH_NAME") == 0
    monkeypatch.setattr(machine, "_asked", lambda _: 0)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([]))
    assert (machine.cache_size(), machine.free_memory()) == (machine.UNKNOWN_CACHE, machine.UNKNOWN_MEMORY)
