"""Which steps learn: random subsets (O22), each with a probability, the last few; and what the learner divides by."""

import itertools
from collections.abc import Callable

import pytest
import torch
from nets import learner_of
from oracles.networks import error, mlp, oracle, problem, sequence
from torch import Tensor, nn

from snnlearn import LIF, OTTT, SLTT, SLTTK, STLLR, LearningRule, RuleChoiceError, bptt_gradients
from snnlearn.engine.schedule import chosen_steps

EXACT = 1e-12
STEPS = 4


def learned(net: nn.Module, rule: LearningRule, x: Tensor, y: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """The gradient that one update of the learner gets."""
    learner, optimizer = learner_of(net, rule)
    torch.manual_seed(seed)
    learner.learn(x, y)
    (gradient,) = optimizer.seen
    return gradient


def drawn(rule: LearningRule, x: Tensor, seed: int) -> tuple[int, ...]:
    torch.manual_seed(seed)
    return tuple(t for t, learns in zip(range(len(x)), chosen_steps(rule, x), strict=False) if learns)


def share(net: nn.Module, x: Tensor, y: Tensor, steps: tuple[int, ...], cut: str | tuple[()]) -> dict[str, Tensor]:
    """Autograd's gradient of the sum of these steps' losses over the number of all steps."""
    targets = [y if t in steps else None for t in range(len(x))]
    found = bptt_gradients(net, x, targets, cut=cut, per_step_target=True)
    return {name: gradient * len(steps) / len(x) for name, gradient in found.items()}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_o22_over_all_subsets_the_mean_is_the_share_of_sltt(count: int) -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7, steps=STEPS))
    rule, whole = SLTTK(count), learned(net, SLTT(), x, y)
    subsets: dict[tuple[int, ...], int] = {}
    for seed in range(200):
        subsets.setdefault(drawn(rule, x, seed), seed)
    assert set(subsets) == set(itertools.combinations(range(STEPS), count))
    found = [learned(net, rule, x, y, seed) for seed in subsets.values()]
    for steps, gradient in zip(subsets, found, strict=True):
        true = share(net, x, y, steps, "all")
        assert all(error(gradient[name], true[name]) < EXACT for name in gradient), steps
    for name, expected in whole.items():
        mean = torch.stack([gradient[name] for gradient in found]).mean(0)
        assert error(mean, count / STEPS * expected) < EXACT
        assert error(found[0][name], mean) > 1e-2  # control: one draw is not the mean
    row = rule.attach(net)["0.connection.weight"]
    assert not row.exact
    assert f"{count} random step(s)" in row.why


def test_more_steps_than_there_are_is_sltt() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7, steps=STEPS))
    whole = learned(net, SLTT(), x, y)
    assert all(torch.equal(gradient, whole[name]) for name, gradient in learned(net, SLTTK(9), x, y).items())


@pytest.mark.parametrize(
    ("rule", "pick"),
    [
        (LearningRule(learn_on="last", learn_steps=3), lambda x, seed: tuple(range(len(x) - 3, len(x)))),
        (STLLR(None, 0.2, acausal=0.0, last_steps=3), lambda x, seed: tuple(range(len(x) - 3, len(x)))),
        (LearningRule(learn_on="random", learn_steps=3), None),
        (LearningRule(learn_on="poisson", learn_steps=3), None),
    ],
    ids=["last", "S-TLLR", "random", "poisson"],
)
def test_the_trace_runs_on_through_steps_that_do_not_learn(
    rule: LearningRule, pick: Callable[[Tensor, int], tuple[int, ...]] | None
) -> None:
    """One hidden block, so that the trace is exact: BPTT of the chosen steps' losses."""
    net, x, y = problem(mlp(lambda: LIF(decay=0.7), sizes=(7, 9)), sequence(7))
    for seed in (1, 2, 4):
        steps = drawn(rule, x, seed) if pick is None else pick(x, seed)
        assert 0 < len(steps) < len(x)
        mine, true = learned(net, rule, x, y, seed), share(net, x, y, steps, ())
        forgotten = share(net, x, y, steps, "all")
        assert all(error(mine[name], true[name]) < EXACT for name in mine)
        assert error(mine["0.connection.weight"], forgotten["0.connection.weight"]) > 1e-2  # control: a trace is there
        assert error(mine["0.connection.weight"], oracle(net, x, y)["0.connection.weight"]) > 1e-2  # not all steps


def test_poisson_learns_at_one_step_in_so_many_and_knows_no_end() -> None:
    rule = LearningRule(learn_on="poisson", learn_steps=4)
    torch.manual_seed(0)
    learns = list(itertools.islice(chosen_steps(rule, None), 4000))
    assert abs(sum(learns) / len(learns) - 0.25) < 0.03
    for needs_an_end in (SLTTK(2), STLLR(last_steps=2)):
        with pytest.raises(RuleChoiceError, match="no known length"):
            chosen_steps(needs_an_end, None)


def test_an_update_without_a_step_that_learned_changes_nothing() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7), sizes=(7, 9)), sequence(7, steps=6))
    learner, optimizer = learner_of(net, LearningRule(learn_on="last", learn_steps=2), update=2)
    assert learner.learn(x, y).updates == 1
    assert len(optimizer.seen) == 1
    control, all_steps = learner_of(net, OTTT(), update=2)
    assert control.learn(x, y).updates == 3
    assert len(all_steps.seen) == 3


@pytest.mark.parametrize("rule", [SLTTK(99), LearningRule(learn_on="last", learn_steps=99)], ids=["random", "last"])
def test_a_sequence_with_fewer_steps_than_learn_is_told_once(
    rule: LearningRule, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert list(chosen_steps(rule, torch.zeros(12, 1))) == [True] * 12
    (told,) = caplog.messages
    assert "learn at 99 steps of each sequence, and this one has 12" in told
    caplog.clear()
    assert sum(chosen_steps(SLTTK(12), torch.zeros(12, 1))) == 12
    assert not caplog.messages
