"""Arguments of another kind, shape or range are refused by name: got, allowed, why, what to write."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import live_net
from torch import nn

from snnlearn import (
    ALIF,
    IF,
    LI,
    LIF,
    OTTT,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETEmbedding,
    ETLinear,
    ETRecurrent,
    Neuron,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    SequenceLoss,
    SpikingSelfAttention,
    TimeConstantDropout,
    attach,
)
from snnlearn.functional.surrogates import SURROGATES, ArcTan, Constant
from snnlearn.nn import probe
from snnlearn.nn.networks import convolutional, mlp, recurrent
from snnlearn.nn.rate import RateRegulariser
from snnlearn.nn.state import StateShapeError
from snnlearn.nn.weight_standardization import WeightStandardizedETLinear

NAN = float("nan")
NEURONS = [LIF, ALIF, CubaLIF, LI]
NO_NUMBERS = ["2", NAN, True, object(), [], [2.0, "x"], torch.tensor([]), torch.tensor([True]), [[2.0], [2.0, 3.0]]]

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (LIF, ["tau", "decay", "threshold", "initial_membrane"]),
        (ALIF, ["tau_adaptation", "decay_adaptation", "adaptation"]),
        (CubaLIF, ["tau_synapse", "decay_synapse"]),
        (IF, ["threshold"]),
        (LI, ["tau", "decay", "initial_membrane"]),
    ],
)
def test_constants_of_neurons(kind: Callable[..., Neuron], names: list[str], value: Any) -> None:
    for name in names:
        with pytest.raises((TypeError, ValueError), match=rf"^{name}=.*write"):
            kind(**{name: value})
        with pytest.raises((TypeError, ValueError), match=rf"^{name}=.*write|Parameter"):
            kind(**{name: nn.Parameter(torch.ones(2))})


@pytest.mark.parametrize("value", ["1", NAN, True, None, object()])
def test_other_numbers(value: Any) -> None:
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("p=", lambda: TimeConstantDropout(value)),
        ("target=", lambda: RateRegulariser(value, 1.0)),
        ("weight=", lambda: RateRegulariser(0.1, value)),
        ("in_features=", lambda: ETRecurrent(value, 2)),
        ("eps=", lambda: WeightStandardizedETLinear(3, 2, eps=value)),
        ("scale=", lambda: SpikingSelfAttention(4, 2, LIF, scale=value)),
        ("heads=", lambda: SpikingSelfAttention(4, value if value is not True else 1.0, LIF)),
        ("p=", lambda: mlp(4, [3], 2, LIF, dropout=value)),
        ("hidden: got", lambda: mlp(4, value, 2, LIF)),
        ("hidden: got", lambda: recurrent(4, [value], 2, LIF)),
        ("pool: got", lambda: convolutional((2, 8, 8), [4], 2, LIF, pool=value)),
        ("readout=", lambda: mlp(4, [3], 2, LIF, readout=value)),
        ("value=", lambda: Constant(value)),
        ("mse_weight=", lambda: SequenceLoss(mse_weight=value)),
        ("label_smoothing=", lambda: SequenceLoss(label_smoothing=value)),
        *(("=", lambda kind=kind: kind(value)) for kind in SURROGATES.values()),
    ]
    if value is not None:
        cases += [
            ("dt=", lambda: LIF(tau=2.0, dt=value)),
            ("last_steps=", lambda: SequenceLoss(last_steps=value)),
            ("clip_norm=", lambda: learner(clip_norm=value)),
        ]
        cases += [("update=", lambda: learner(update=value))]
    for words, make in cases:
        with pytest.raises((TypeError, ValueError)) as caught:
            make()
        assert words in str(caught.value)
        assert "not supported between" not in str(caught.value)


def learner(**options: Any) -> OnlineLearner:
    net = live_net()
    given = {"loss": nn.functional.cross_entropy, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)} | options
    return OnlineLearner(net, OTTT(), **given)


def test_losses_and_optimizers_of_another_kind() -> None:
    for loss, hint in (("mse", "cross_entropy"), (nn.CrossEntropyLoss, r"CrossEntropyLoss\(\)"), (None, "function")):
        with pytest.raises(TypeError, match=f"loss=.*{hint}"):
            learner(loss=loss)
    for optimizer in (torch.optim.SGD, live_net(), None):
        with pytest.raises(TypeError, match=r"as optimizer: .*torch\.optim\.Adam"):
            learner(optimizer=optimizer)


def test_what_is_legal_stays_legal() -> None:
    assert LIF(tau=2).decay == 0.5
    assert LIF(tau=torch.tensor([2, 4])).decay.tolist() == [0.5, 0.75]
    assert LIF(decay=[0.5, 0.25]).decay.tolist() == [0.5, 0.25]
    assert LIF(threshold=[[0.5], [1.0]]).threshold.shape == (2, 1)
    assert ArcTan(1).alpha == 1
    assert mlp(4, (3,), 2, functools.partial(LIF, tau=4.0))[1].neuron.decay == 0.75


# Constants per unit, for a layer of other units.


@pytest.mark.parametrize("learn", [(), ("decay",)])
@pytest.mark.parametrize("kind", NEURONS, ids=lambda kind: kind.__name__)
def test_a_constant_per_unit_fits_the_units(kind: Callable[..., Neuron], learn: tuple[str, ...]) -> None:
    tau = torch.tensor([2.0, 3.0, 4.0])
    net = nn.Sequential(ETBlock(ETLinear(4, 2), kind(tau=tau, learn=learn)))
    message = rf"{kind.__name__}: decay is given per unit as \[3\] .*units \[2\].*shape \[2\], or one number"
    with pytest.raises(StateShapeError, match=message):
        net(torch.ones(5, 4))
    if learn:
        with pytest.raises(RuleChoiceError, match=r"one per unit \[2\], and 'decay_logit' .* has shape \[3\]"):
            attach(net, OTTT())
    else:
        attach(net, OTTT())
        with pytest.raises(StateShapeError, match=message):
            net(torch.ones(5, 4))
    right = ETBlock(ETLinear(4, 3), kind(tau=tau, learn=learn))
    assert right(torch.ones(5, 4)).shape == (5, 3)


def test_constants_that_would_spread_the_units() -> None:
    """One per row, of units [2]: it would broadcast to [5, 2] without a word; places of a map may share one."""
    block = ETBlock(ETLinear(4, 2), LIF(threshold=torch.ones(5, 2)))
    with pytest.raises(StateShapeError, match=r"threshold is given per unit as \[5, 2\]"):
        block(torch.ones(5, 4))
    maps = ETBlock(ETConv2d(2, 3, 3), LIF(decay=torch.full((3, 1, 1), 0.5)))
    assert maps(torch.ones(1, 2, 5, 5)).shape == (1, 3, 3, 3)
    wrong = ETBlock(ETConv2d(2, 4, 3), LIF(decay=torch.full((4,), 0.5)))
    with pytest.raises(StateShapeError, match=r"\[4, 3, 3\], with 1 where units share it"):
        wrong(torch.ones(1, 2, 5, 5))


# Parts of another kind.


def test_indices_outside_the_table() -> None:
    for wrong in (torch.tensor([[0, 7]]), torch.tensor([[-1, 2]])):
        layer = ETEmbedding(5, 3)
        with pytest.raises(IndexError, match=r"indices from -?\d to \d .*5 rows.*0 to 4; write ETEmbedding\("):
            layer(wrong)
        block = ETBlock(layer, LIF())
        attach(block, OTTT())
        with pytest.raises(IndexError, match="5 rows"):
            block(wrong)
    with pytest.raises(TypeError, match=r"input of torch\.float32: .*whole numbers from 0 to 4; write x\.long\(\)"):
        ETEmbedding(5, 3)(torch.ones(1, 2))
    assert ETEmbedding(5, 3)(torch.tensor([[0, 4]])).shape == (1, 2, 3)
    assert ETEmbedding(5, 3)(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, 3)


def test_a_neuron_where_a_factory_is_wanted() -> None:
    for make in (
        lambda neuron: SpikingSelfAttention(4, 2, neuron),
        lambda neuron: SpikingSelfAttention(4, 2, LIF, attention_neuron=neuron),
        lambda neuron: SpikingSelfAttention(4, 2, LIF, norm=neuron),
        lambda neuron: mlp(4, [3], 2, neuron),
        lambda neuron: recurrent(4, [3], 2, neuron),
        lambda neuron: convolutional((2, 8, 8), [4], 2, neuron),
    ):
        with pytest.raises(TypeError, match=r"is one LIF object: .*write \w+=lambda: LIF\(\.\.\.\)"):
            make(LIF(tau=3.0))
        with pytest.raises(TypeError, match="='LIF': it takes what makes a new one"):
            make("LIF")
    with pytest.raises(TypeError, match="made a Linear"):
        SpikingSelfAttention(4, 2, LIF, attention_neuron=lambda: nn.Linear(1, 1))
    with pytest.raises(TypeError, match="as norm: it takes a module"):
        ETBlock(ETLinear(2, 2), LIF(), nn.LayerNorm)
    with pytest.raises(TypeError, match="as connection: it takes a module"):
        Readout("linear")


# Units that mix are looked for only where they may.


def test_the_search_for_mixing_units_is_left_out_for_built_in_neurons(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def count(neuron: Neuron, *_: Any) -> bool:
        looked.append(type(neuron).__name__)
        return False

    monkeypatch.setattr(probe, "_mixes_units", count)
    for neuron in (LIF(), IF(), ALIF(), CubaLIF(), LI(), LIF(decay=torch.tensor([0.5, 0.6, 0.7]), learn=("decay",))):
        probe.refuse_mixing(neuron, (3,))
    assert looked == []

    class Mixing(LIF):
        def step(self, y, state):  # type: ignore[no-untyped-def]
            return super().step(y - y.mean(-1, keepdim=True), state)

    class Tuned(ArcTan):
        pass

    replaced = LIF()
    replaced.step = Mixing.step.__get__(replaced)  # type: ignore[method-assign]
    for neuron in (Mixing(), replaced, LIF(surrogate=Tuned())):
        probe.refuse_mixing(neuron, (3,))
    assert looked.count("Mixing") == 2
    assert looked.count("LIF") == 4
    monkeypatch.undo()
    with pytest.raises(ValueError, match="mixes units"):
        probe.refuse_mixing(Mixing(), (3,))


@pytest.mark.parametrize("make", [LIF, IF, ALIF, CubaLIF, LI], ids=lambda make: make.__name__)
def test_what_is_said_to_be_elementwise_is(make: Callable[[], Neuron]) -> None:
    """The claim of each built-in class, checked by the search that it spares."""
    point = probe._random_point(make(), (3,))
    assert vars(type(make()))["elementwise"]
    assert not probe._mixes_units(make(), *point)
