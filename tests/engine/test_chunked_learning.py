"""The chunk length is a speed setting: it must not change a number, whatever the rule, layer, neuron or reset."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    IF,
    LI,
    LIF,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    Neuron,
    OnlineLearner,
    Readout,
)
from snnlearn.rules import ETLP, RULES, LearningRule

STEPS, BATCH, INPUTS, CLASSES = 7, 4, 6, 3
EXACT = 1e-12
# Shape checks take two thirds of steps so short: they are on for updates inside the sequence, and off elsewhere.
unchecked = pytest.mark.usefixtures("unchecked")


class Recording(torch.optim.SGD):
    """Keep the gradients of every update."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr=lr)
        self.seen: list[dict[int, Tensor]] = []

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"]]
        self.seen.append({i: p.grad.clone() for i, p in enumerate(held) if p.grad is not None})
        return super().step(closure)


def mlp(kind: Callable[[], Neuron], readout: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(ETBlock(ETLinear(INPUTS, 7), kind()), ETBlock(ETLinear(7, 7), kind()), readout())


def leaky() -> nn.Module:
    return ETBlock(ETLinear(7, CLASSES), LI(decay=0.8))


def static() -> nn.Module:
    return Readout(nn.Linear(7, CLASSES))


def recurrent(kind: Callable[[], Neuron], readout: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, 7), kind()), readout())


def convolutional(kind: Callable[[], Neuron], readout: Callable[[], nn.Module]) -> nn.Sequential:
    convolution = ETConv2d(1, 7, (2, 3))
    with torch.no_grad():
        convolution.weight.mul_(2.0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), ETBlock(convolution, kind()), nn.Flatten(), readout())


KINDS: dict[str, Callable[[], Neuron]] = {
    "lif": lambda: LIF(decay=0.7, threshold=0.3),
    "hard": lambda: LIF(decay=torch.linspace(0.4, 0.9, 7), threshold=0.3, reset="hard", detach_reset=False),
    "attached": lambda: LIF(decay=0.7, threshold=0.3, detach_reset=False),
    "none": lambda: IF(threshold=0.4, reset="none"),
    "cuba": lambda: CubaLIF(threshold=0.3),
    "alif": lambda: ALIF(decay=0.7, threshold=0.3),
    "learned": lambda: ALIF(decay=0.7, threshold=0.3, learn=("decay", "threshold", "adaptation", "initial_membrane")),
}


def record(
    make: Callable[[], nn.Module],
    rule: LearningRule,
    chunk: int,
    update: str | int = "sequence",
    y: list[Tensor | None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Two batches of a learner with this chunk length, and all it leaves behind."""
    torch.manual_seed(0)
    net = make().double()
    learner = OnlineLearner(net, rule, F.cross_entropy, Recording(net.parameters()), update=update, chunk=chunk)
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(2, STEPS, BATCH, INPUTS, generator=generator) < 0.5).double()
    labels = torch.randint(CLASSES, (2, BATCH), generator=generator)
    results = []
    for x_n, y_n in zip(x, labels, strict=True):
        torch.manual_seed(2)
        target = y_n if y is None else y
        result = learner.learn(x_n, target, per_step_target=y is not None, **options)
        results.append(replace(result, trace_norms=dict(result.trace_norms)))
    rates = results[0].firing_rates
    state = {
        f"{name}.{key}": value
        for name, module in net.named_modules()
        if hasattr(module, "stash") and isinstance(module, nn.Module)
        for key, value in module.stash().items()
    }
    return {
        "gradients": learner.optimizer.seen,
        "parameters": dict(net.named_parameters()),
        "state": state,
        "results": results,
        "rates": rates,
    }


def compare(one: dict[str, Any], other: dict[str, Any], bound: float = EXACT) -> None:
    assert all(0.02 < rate < 0.8 for rate in one["rates"].values()), one["rates"]
    assert len(one["gradients"]) == len(other["gradients"])
    for mine, theirs in zip(one["gradients"], other["gradients"], strict=True):
        assert any(float(gradient.norm()) > 0 for gradient in mine.values())
        for key in mine.keys() | theirs.keys():
            gradient = mine.get(key, torch.zeros(()))
            scale = max(float(gradient.norm()), 1e-3)
            assert float((gradient - theirs.get(key, torch.zeros(()))).norm()) / scale < bound, key
    for name, value in one["parameters"].items():
        torch.testing.assert_close(other["parameters"][name], value, rtol=bound, atol=bound)
    for mine, theirs in zip(one["results"], other["results"], strict=True):
        assert mine.firing_rates == theirs.firing_rates
        assert mine.accuracy == theirs.accuracy
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert mine.trace_norms == pytest.approx(theirs.trace_norms, rel=1e-9)
    for key, value in one["state"].items():
        same(value, other["state"][key], key)


def same(mine: Any, theirs: Any, key: str) -> None:
    if isinstance(mine, tuple):
        for a, b in zip(mine, theirs, strict=True):
            same(a, b, key)
    elif isinstance(mine, Tensor):
        torch.testing.assert_close(theirs, mine, rtol=1e-9, atol=1e-11, msg=key)
    else:
        assert mine == pytest.approx(theirs), key


ONLINE = {name: rule for name, rule in RULES.items() if rule().online}
ONLINE["etlp"] = lambda: ETLP(steps=2)


def network(name: str, kind: str) -> Callable[[], nn.Module]:
    """A network that the rule can be attached to."""
    readout = static if name in ("otpe", "decolle") else leaky
    if name == "eprop":
        return lambda: recurrent(KINDS[kind], readout)
    return lambda: mlp(KINDS[kind], readout)


@unchecked
@pytest.mark.parametrize("name", ONLINE)
def test_every_rule_has_the_same_numbers_in_chunks(name: str) -> None:
    for kind, lengths in (("lif", (2, STEPS)), ("alif", (STEPS + 5,)), ("learned", (2, 3))):
        make = network(name, kind)
        step_by_step = record(make, ONLINE[name](), 1)
        for length in lengths:
            compare(step_by_step, record(make, ONLINE[name](), length))


@unchecked
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [mlp, recurrent, convolutional])
def test_every_neuron_and_layer_has_the_same_numbers_in_chunks(make: Any, kind: str) -> None:
    if make is convolutional and kind == "hard":
        pytest.skip("constants per unit do not fit a map")
    rules = ["ottt", "sltt", "approximate_otpe", "s_tllr"] if make is convolutional else ["ottt", "drtrl", "otpe"]
    for name in rules:
        rule = RULES[name]()
        step_by_step = record(lambda: make(KINDS[kind], leaky), rule, 1)
        for length in (3, STEPS) if name == "drtrl" else (3,):
            compare(step_by_step, record(lambda: make(KINDS[kind], leaky), rule, length))


def packed() -> Tensor:
    """Rows that begin another sequence in the middle: one at a chunk's first step, two inside, one twice."""
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[3, 0] = restarts[2, 1] = restarts[5, 2] = restarts[1, 3] = restarts[4, 3] = True
    return restarts


@unchecked
@pytest.mark.parametrize("name", ONLINE)
def test_rows_restart_at_their_own_step(name: str) -> None:
    for kind, length in (("alif", STEPS), ("learned", 3)):
        make = network(name, kind)
        step_by_step = record(make, ONLINE[name](), 1, restarts=packed())
        compare(step_by_step, record(make, ONLINE[name](), length, restarts=packed()))
    whole = record(make, ONLINE[name](), 3)
    moved = [
        (a[k] - b[k]).norm() for a, b in zip(step_by_step["gradients"], whole["gradients"], strict=True) for k in a
    ]
    assert max(moved) > 1e-3  # control: the restarts matter


@pytest.mark.parametrize(
    "name", ["ottt", "drtrl", "eprop", "dfa", "etlp", "decolle", "opzo", "sltt", "traces_propagation"]
)
def test_updates_inside_the_sequence_and_steps_without_a_target(name: str) -> None:
    make = network(name, "alif")
    for length, update in ((2, 2), (2, 4), (3, 6)):
        compare(record(make, ONLINE[name](), 1, update), record(make, ONLINE[name](), length, update))
    targets = [None, 0, 1, None, None, 2, 1]
    y = [None if t is None else torch.full((BATCH,), t) for t in targets]
    compare(record(make, ONLINE[name](), 1, y=y), record(make, ONLINE[name](), 3, y=y))
    compare(record(make, ONLINE[name](), 1, 2, y=y), record(make, ONLINE[name](), 2, 2, y=y))
