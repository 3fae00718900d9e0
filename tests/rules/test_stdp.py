"""STDP against hand-written spike lists, its bounds, and the reward that decides the sign."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snnlearn import (
    IF,
    LIF,
    OTTT,
    STDP,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    RewardSTDP,
    WeightStandardizedETConv2d,
    attach,
    reset,
)
from snnlearn.functional.stdp import pairings

PLUS, MINUS, PRE, POST = 0.02, 0.03, 0.5, 0.25
CONSTANTS: dict[str, Any] = {"decay_pre": PRE, "decay_post": POST, "a_plus": PLUS, "a_minus": MINUS}


class Forced:
    """Stands in for a neuron's forward: fires when it is told to, whatever comes in."""

    def __init__(self, spikes: list[Tensor]) -> None:
        self.spikes = iter(spikes)

    def __call__(self, y: Tensor) -> Tensor:
        return next(self.spikes).expand_as(y)


def block_of(inputs: int = 1, outputs: int = 1, weight: float = 0.5) -> ETBlock:
    block = ETBlock(ETLinear(inputs, outputs, bias=False), LIF()).double()
    nn.init.constant_(block.connection.weight, weight)
    return block


def force(block: ETBlock, spikes: list[Any]) -> None:
    block.neuron.forward = Forced([torch.as_tensor(s, dtype=torch.float64) for s in spikes])  # type: ignore[assignment]


def change(pre: list[float], post: list[float], make: Callable[..., Any] = STDP, **options: Any) -> float:
    """The change of one weight by two lists of spikes, without soft bounds."""
    block = block_of()
    force(block, post)
    stdp = make(block, **{**CONSTANTS, "bounds": (-10.0, 10.0), "soft_bounds": False, **options})
    for x in pre:
        block(torch.tensor([[x]], dtype=torch.float64))
        if isinstance(stdp, STDP):
            stdp.step()
    if isinstance(stdp, RewardSTDP):
        stdp.reward(1.0)
    return float(block.connection.effective_weight().detach()) - 0.5


@pytest.mark.parametrize(
    ("pre", "post", "expected"),
    [
        ([1, 0], [0, 1], PLUS * PRE),  # the input one step before the output
        ([0, 1], [0, 1], PLUS),  # together: the input caused the output
        ([0, 1], [1, 0], -MINUS * POST),  # the output one step before the input
        ([1, 0, 0], [0, 0, 1], PLUS * PRE**2),
        ([0, 0, 1], [1, 0, 0], -MINUS * POST**2),
        ([1, 1, 0], [0, 0, 1], PLUS * (PRE + PRE**2)),  # every pair counts
        ([1, 0, 1], [0, 1, 0], PLUS * PRE - MINUS * POST),
        ([1, 1], [1, 1], PLUS * (2 + PRE) - MINUS * POST),
        ([1, 1, 1], [0, 0, 0], 0.0),
    ],
)
def test_hand_written_spike_lists(pre: list[float], post: list[float], expected: float) -> None:
    assert change(pre, post) == pytest.approx(expected, abs=1e-15)
    rewarded = change(pre, post, RewardSTDP, decay_eligibility=0.0)
    assert rewarded == pytest.approx(last_pairs(pre, post), abs=1e-15)


def last_pairs(pre: list[float], post: list[float]) -> float:
    """What the last step alone pairs: the present spike with every earlier one of the other side."""
    last = len(pre) - 1
    plus = sum(post[last] * pre[t] * PRE ** (last - t) for t in range(last + 1))
    minus = sum(pre[last] * post[t] * POST ** (last - t) for t in range(last))
    return PLUS * plus - MINUS * minus


def brute_force(x: Tensor, s: Tensor) -> Tensor:
    """All pairs of all times of spike trains x [T, B, I] and s [T, B, O], the mean over the batch."""
    total = torch.zeros(s.shape[2], x.shape[2], dtype=x.dtype)
    for t in range(len(x)):
        for u in range(len(x)):
            worth = PLUS * PRE ** (u - t) if u >= t else -MINUS * POST ** (t - u)
            total += worth * torch.einsum("bo,bi->oi", s[u], x[t]) / x.shape[1]
    return total


def trains(steps: int = 8, batch: int = 3, inputs: int = 5, outputs: int = 4) -> tuple[Tensor, Tensor]:
    x = (torch.rand(steps, batch, inputs) < 0.4).double()
    return x, (torch.rand(steps, batch, outputs) < 0.4).double()


@pytest.mark.parametrize("every", [1, 3, 8])
def test_many_spikes_of_many_units_are_all_pairs(every: int) -> None:
    """However often `step` is called; a reset in between forgets the pairs across it."""
    x, s = trains()
    changes = []
    for forget in (False, True):
        block = block_of(5, 4)
        force(block, list(s))
        stdp = STDP(block, **CONSTANTS, bounds=(-10.0, 10.0), soft_bounds=False)
        for number, x_t in enumerate(x, start=1):
            block(x_t)
            if number % every == 0 or number == len(x):
                stdp.step()
            if forget and number == 4:
                reset(block)
        changes.append(block.connection.weight.detach() - 0.5)
    torch.testing.assert_close(changes[0], brute_force(x, s), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        changes[1], brute_force(x[:4], s[:4]) + brute_force(x[4:], s[4:]), rtol=1e-12, atol=1e-14
    )
    assert float((changes[0] - changes[1]).abs().max()) > 1e-3


def test_a_reset_of_rows_forgets_those_rows() -> None:
    x, s = trains()
    block = block_of(5, 4)
    force(block, list(s))
    stdp = STDP(block, **CONSTANTS, bounds=(-10.0, 10.0), soft_bounds=False)
    for number, x_t in enumerate(x):
        block(x_t)
        if number == 3:
            reset(block, torch.tensor([True, False, False]))
    stdp.step()
    rows = [
        brute_force(x[:4, :1], s[:4, :1]) + brute_force(x[4:, :1], s[4:, :1]),
        brute_force(x[:, 1:2], s[:, 1:2]),
        brute_force(x[:, 2:], s[:, 2:]),
    ]
    torch.testing.assert_close(block.connection.weight.detach() - 0.5, sum(rows) / 3, rtol=1e-12, atol=1e-14)


def convolution() -> tuple[ETBlock, Tensor, Tensor]:
    block = ETBlock(ETConv2d(2, 3, 3, padding=1, bias=False), IF()).double()
    nn.init.constant_(block.connection.weight, 0.5)
    x, s = (torch.rand(4, 2, 2, 4, 5) < 0.4).double(), (torch.rand(4, 2, 3, 4, 5) < 0.4).double()
    force(block, list(s))
    return block, x, s


@pytest.mark.parametrize("rewarded", [False, True])
def test_a_convolution_pairs_every_place(rewarded: bool) -> None:
    """Against the pairs of the unfolded patches: each place is a sample of its own, their changes summed."""
    block, x, s = convolution()
    options: dict[str, Any] = {**CONSTANTS, "bounds": (-99.0, 99.0), "soft_bounds": False}
    stdp = RewardSTDP(block, **options, decay_eligibility=0.0) if rewarded else STDP(block, **options)
    for x_t in x:
        block(x_t)
        if isinstance(stdp, RewardSTDP):
            stdp.reward(1.0)
        else:
            stdp.step()
    patches = torch.stack([nn.functional.unfold(x_t, 3, padding=1).transpose(1, 2).flatten(0, 1) for x_t in x])
    spikes = torch.stack([s_t.flatten(2).transpose(1, 2).flatten(0, 1) for s_t in s])
    expected = brute_force(patches, spikes) * 20
    found = (block.connection.weight.detach() - 0.5).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_samples_are_paired_one_by_one() -> None:
    layer = ETConv2d(2, 3, 3).double()
    d, x = torch.rand(4, 3, 2, 2, dtype=torch.float64), torch.rand(4, 2, 4, 4, dtype=torch.float64)
    each = pairings(layer.weighted_map(), d, x, layer.weight)
    assert each.shape == (4, *layer.weight.shape)
    torch.testing.assert_close(each.sum(0), layer.weighted_map().weight_gradient(d, x, layer.weight))


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("rewarded", [True, False])
def test_no_weight_leaves_its_bounds(soft: bool, rewarded: bool) -> None:
    """With changes far larger than the range; only hard bounds are reached by a small step from near them."""
    block = block_of(5, 4)
    options: dict[str, Any] = {"a_plus": 3.0, "a_minus": 3.0, "bounds": (-0.5, 1.5), "soft_bounds": soft}
    stdp = RewardSTDP(block, **options) if rewarded else STDP(block, **options)
    x, s = trains(steps=40)
    force(block, list(s))
    seen = []
    for number, x_t in enumerate(x):
        block(x_t)
        if isinstance(stdp, RewardSTDP):
            stdp.reward((-1.0) ** number)
        else:
            stdp.step()
        seen.append(block.connection.weight.detach().clone())
    values = torch.stack(seen)
    assert float(values.min()) >= -0.5
    assert float(values.max()) <= 1.5
    assert float(values.std()) > 0.1


def test_soft_bounds_are_approached_ever_more_slowly() -> None:
    """P = 0.1 in a range of 2: from 0.5 the share left is a half, from 1.5 nothing."""
    for weight, expected in ((0.5, 0.05), (1.0, 0.025), (1.5, 0.0)):
        block = block_of(weight=weight)
        force(block, [1])
        stdp = STDP(block, a_plus=0.1, bounds=(-0.5, 1.5), soft_bounds=True)
        block(torch.ones(1, 1, dtype=torch.float64))
        stdp.step()
        assert float(block.connection.weight.detach()) - weight == pytest.approx(expected, abs=1e-15)


def patterns(rounds: int) -> Tensor:
    """Inputs 0 to 4, then 5 to 9, in turn."""
    a, b = torch.zeros(1, 10), torch.zeros(1, 10)
    a[:, :5], b[:, 5:] = 1, 1
    return torch.stack([a, b] * rounds)


def selective(**options: Any) -> tuple[Tensor, float]:
    """Two units, each with a faint preference, see two patterns in turn; return weights and the firing rate."""
    block = ETBlock(ETLinear(10, 2, bias=False), LIF(decay=0.1, threshold=2.2, reset="hard"))
    with torch.no_grad():
        block.connection.weight[0] = torch.tensor([0.5] * 5 + [0.4] * 5)
        block.connection.weight[1] = torch.tensor([0.4] * 5 + [0.5] * 5)
    stdp = STDP(block, **{"decay_pre": 0.1, "decay_post": 0.5, "a_plus": 0.05, "a_minus": 0.06, **options})
    rates = []
    for x_t in patterns(100):
        rates.append(float(block(x_t).detach().mean()))
        stdp.step()
    return block.connection.weight.detach(), sum(rates) / len(rates)


def test_units_become_selective_for_one_of_two_patterns() -> None:
    """What drives a unit grows, what comes after its spike fades; without depression the other pattern stays."""
    weight, rate = selective()
    assert rate == 0.5
    for unit, own in ((0, slice(0, 5)), (1, slice(5, 10))):
        other = slice(5, 10) if unit == 0 else slice(0, 5)
        assert float(weight[unit, own].min()) > 0.7
        assert float(weight[unit, other].max()) < 0.2
    control, _ = selective(a_minus=0.0)
    assert float(control[0, 5:].min()) > 0.4


def test_the_reward_decides_the_sign_and_no_reward_changes_nothing() -> None:
    x, s = trains()
    ends = {}
    for reward in (1.0, -1.0, 0.0, 2.0):
        block = block_of(5, 4)
        force(block, list(s))
        stdp = RewardSTDP(block, **CONSTANTS, bounds=(-10.0, 10.0), soft_bounds=False)
        for x_t in x:
            block(x_t)
        stdp.reward(reward)
        ends[reward] = block.connection.weight.detach() - 0.5
    assert float(ends[1.0].abs().max()) > 1e-3
    torch.testing.assert_close(ends[-1.0], -ends[1.0], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(ends[2.0], 2 * ends[1.0], rtol=1e-12, atol=1e-15)
    assert float(ends[0.0].abs().max()) == 0


def test_a_late_reward_meets_what_is_left_of_the_pairs() -> None:
    """A coincident pair, then two silent steps, with 0.8 left of the eligibility after each."""
    found = change([1, 0, 0], [1, 0, 0], RewardSTDP, decay_eligibility=0.8)
    assert found == pytest.approx(PLUS * 0.64, abs=1e-15)


def test_every_sample_has_a_reward_of_its_own() -> None:
    x, s = trains(batch=2)
    ends = []
    for rewards, batch in ((torch.tensor([1.0, 0.0]), slice(0, 2)), (torch.tensor([0.5]), slice(0, 1))):
        block = block_of(5, 4)
        force(block, list(s[:, batch]))
        stdp = RewardSTDP(block, **CONSTANTS, bounds=(-10.0, 10.0), soft_bounds=False)
        for x_t in x[:, batch]:
            block(x_t)
        stdp.reward(rewards)
        ends.append(block.connection.weight.detach() - 0.5)
    assert float(ends[0].abs().max()) > 1e-3
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-15)


def test_it_lives_in_the_block() -> None:
    """No key of the state_dict, a copy of its own, nothing learned in eval(), gone after `remove`."""
    block = block_of()
    keys = list(block.state_dict())
    stdp = STDP(block, a_plus=0.1)
    assert list(block.state_dict()) == keys
    attach(block, OTTT())
    twin = copy.deepcopy(block)
    x = torch.full((1, 1), 4.0, dtype=torch.float64)
    twin(x)
    assert stdp.pre is None
    assert isinstance(twin.plasticity, STDP)
    twin.plasticity.step()
    assert float(twin.connection.weight.detach()) > 0.5 == float(block.connection.weight.detach())
    block.eval()
    block(x)
    with pytest.raises(RuntimeError, match=r"in train\(\)"):
        stdp.step()
    reset(block)
    assert stdp.pre is None
    stdp.remove(block)
    block.train()
    block(x)
    assert stdp.pre is None
    STDP(block)


@pytest.mark.parametrize("rewarded", [True, False])
def test_memory_does_not_grow_with_time(rewarded: bool) -> None:
    block = block_of(5, 4)
    stdp = RewardSTDP(block) if rewarded else STDP(block)
    sizes = []
    for x_t in trains(steps=30)[0]:
        block(x_t)
        held = [v for v in vars(stdp).values() if isinstance(v, Tensor)]
        sizes.append(sum(v.numel() for v in held))
        assert not any(v.requires_grad for v in held)
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"decay_pre": 1.0}, r"decay_pre=0\.9"),
        ({"decay_post": -0.1}, r"decay_post=0\.9"),
        ({"a_plus": -1.0}, r"a_plus=0\.01"),
        ({"bounds": (1.0, 0.0)}, r"bounds=\(0\.0, 1\.0\)"),
        ({"bounds": (0.6, 1.0)}, "uniform_"),
    ],
)
def test_illegal_constants_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        STDP(block_of(), **options)


def test_what_it_cannot_learn_is_refused() -> None:
    for connection in (ETRecurrent(2, 2), WeightStandardizedETConv2d(1, 2, 3)):
        with pytest.raises(TypeError, match="use ETLinear or a convolution"):
            STDP(ETBlock(connection, LIF()))
    block = block_of()
    stdp = RewardSTDP(block)
    with pytest.raises(ValueError, match=r"plasticity\.remove\(block\)"):
        STDP(block)
    with pytest.raises(RuntimeError, match=r"reward\(r\)"):
        stdp.reward(1.0)
    block(torch.ones(1, 1, dtype=torch.float64))
    for reward in (float("nan"), torch.ones(2)):
        with pytest.raises(ValueError, match="one per sample"):
            stdp.reward(reward)
