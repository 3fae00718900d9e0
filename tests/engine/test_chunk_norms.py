"""A normalisation inside a block, in chunks: gain and bias under a factored trace, and spikes fed back before it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DRTRL,
    LI,
    LIF,
    OTTT,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    OnlineLearner,
    bptt_gradients,
    fidelity,
)
from snnlearn.rules import OTPE, LearningRule, RuleChoiceError

pytestmark = pytest.mark.usefixtures("unchecked")
STEPS, BATCH, INPUTS, UNITS = 7, 4, 6, 8


class Halved(nn.LayerNorm):
    """A norm that no trace knows: its gain learns by this step's share."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def frozen(kind: Callable[[int], nn.Module]) -> nn.Module:
    norm = kind(UNITS)
    norm.running_mean.uniform_(-0.2, 0.2)
    norm.running_var.uniform_(0.2, 0.4)
    return norm


def dense(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(ETBlock(ETLinear(INPUTS, UNITS), CubaLIF(threshold=0.5), norm), readout())


def fed_back(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, UNITS), LIF(decay=0.7, threshold=0.5), norm), readout())


def maps(norm: nn.Module) -> nn.Sequential:
    block = ETBlock(ETConv2d(1, UNITS, (2, 3)), LIF(decay=0.7, threshold=0.5), norm)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), block, nn.Flatten(), readout())


def readout() -> nn.Module:
    return ETBlock(ETLinear(UNITS, 3), LI(decay=0.8))


CASES: dict[str, tuple[Callable[[nn.Module], nn.Sequential], Callable[[], nn.Module]]] = {
    "layer": (dense, lambda: nn.LayerNorm(UNITS)),
    "without bias": (dense, lambda: nn.RMSNorm(UNITS)),
    "without gain": (dense, lambda: nn.LayerNorm(UNITS, elementwise_affine=False)),
    "unknown": (dense, lambda: Halved(UNITS)),
    "groups": (maps, lambda: nn.GroupNorm(2, UNITS)),
    "frozen maps": (maps, lambda: frozen(nn.BatchNorm2d)),
    "fed back": (fed_back, lambda: nn.LayerNorm(UNITS)),
    "fed back, frozen": (fed_back, lambda: frozen(nn.BatchNorm1d)),
}


def built(case: str) -> nn.Sequential:
    torch.manual_seed(0)
    make, norm = CASES[case]
    net = make(norm()).double()
    for name, parameter in net.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, *((0.0, 0.4) if name.endswith("bias") else (0.5, 1.2)))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eval()
    return net


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(STEPS, BATCH, INPUTS, generator=generator) < 0.5).double(), torch.arange(BATCH) % 3


class Recording(torch.optim.SGD):
    """Keep the gradients of every update."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), lr=0.05)
        self.seen: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> Any:
        self.seen.append([torch.zeros(1) if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]])
        return super().step(closure)


def learned(case: str, rule: LearningRule, chunk: int, update: str | int, **options: Any) -> list[list[Tensor]]:
    net, (x, y) = built(case), data()
    learner = OnlineLearner(net, rule, F.cross_entropy, Recording(net), update=update, chunk=chunk)
    result = learner.learn(x, y, **options)
    result = learner.learn(x, y, keep_state=True)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    return learner.optimizer.seen


def compare(one: list[list[Tensor]], other: list[list[Tensor]]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert float((a - b).norm()) <= 1e-12 * max(float(a.norm()), 1e-3)


def packed() -> Tensor:
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[3, 0] = restarts[2, 1] = restarts[5, 2] = True
    return restarts


@pytest.mark.parametrize("case", CASES)
def test_a_chunk_has_the_numbers_of_single_steps(case: str) -> None:
    one = learned(case, OTTT(), 1, "sequence")
    for chunk in (3, STEPS):
        compare(one, learned(case, OTTT(), chunk, "sequence"))
    compare(learned(case, OTTT(), 1, 2), learned(case, OTTT(), 2, 2))
    rows = learned(case, OTTT(), 1, "sequence", restarts=packed())
    compare(rows, learned(case, OTTT(), 3, "sequence", restarts=packed()))
    own = dict(zip([name for name, _ in built(case).named_parameters()], one[0], strict=True))
    assert all(float(gradient.norm()) > 1e-6 for name, gradient in own.items() if "norm" in name)
    assert max(float((a - b).norm()) for a, b in zip(one[0], rows[0], strict=True)) > 1e-4  # control: restarts matter


def test_gain_and_bias_of_a_chunk_against_backpropagation_through_time() -> None:
    net, (x, y) = built("frozen maps"), data()
    truth = bptt_gradients(net, x, y, cut=["3"])
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, Recording(net), chunk=3)
    learner.learn(x, y)
    named = [name for name, _ in net.named_parameters()]
    found = dict(zip(named, learner.optimizer.seen[0], strict=True))
    spatial = bptt_gradients(built("frozen maps"), x, y, cut="all")
    for name in ("1.norm.weight", "1.norm.bias", "1.connection.weight"):
        assert float((found[name] - truth[name]).norm()) < 1e-12 * float(truth[name].norm()), name
        assert float((spatial[name] - truth[name]).norm()) > 1e-3 * float(truth[name].norm())  # control
    fidelity(built("layer"), (x, y), [OTTT()], lengths=[STEPS], chunk=4)  # strict: what is claimed has to hold


@pytest.mark.parametrize("rule", [DRTRL(), OTPE()])
def test_spikes_come_back_in_front_of_a_frozen_norm_under_rules_per_synapse(rule: LearningRule) -> None:
    one = learned("fed back, frozen", rule, 1, "sequence", restarts=packed())
    compare(one, learned("fed back, frozen", rule, 3, "sequence", restarts=packed()))
    compare(learned("fed back, frozen", rule, 1, 2), learned("fed back, frozen", rule, 2, 2))


@pytest.mark.parametrize("case", ["layer", "fed back"])
def test_prediction_in_chunks_and_learning_after_it(case: str) -> None:
    x, y = data()
    found = []
    for chunk in (1, 3):
        net = built(case)
        learner = OnlineLearner(net, OTTT(), F.cross_entropy, Recording(net), chunk=chunk)
        output = learner.predict(x).mean_output
        learner.learn(x, y)
        found.append([output, *(p.detach().clone() for p in net.parameters())])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_statistics_of_a_whole_chunk_stay_refused() -> None:
    net, (x, y) = built("frozen maps").train(), data()
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, Recording(net), chunk=3)
    with pytest.raises(RuleChoiceError, match="statistics would be those of all steps of a chunk"):
        learner.learn(x, y)
