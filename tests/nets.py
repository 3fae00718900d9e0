"""Small networks whose neurons fire, their input, and the plain loop that learns: shared by the tests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    DRTRL,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    Neuron,
    OnlineLearner,
    Readout,
    TimeConstantDropout,
    reset,
)
from snnlearn.nn import stateful_modules
from snnlearn.nn.signal_hub import as_reward, readers_of

Loss = Callable[[Tensor, Tensor], Tensor]


def live_net(
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    hidden: Callable[[], Neuron] = LIF,
    output: Callable[[], Neuron] = LI,
    sizes: tuple[int, int, int] = (6, 12, 3),
) -> nn.Sequential:
    """Two blocks, "hidden" and "output", with weights large enough to make `live_input` fire them."""
    inputs, middle, outputs = sizes
    net = nn.Sequential(
        OrderedDict(
            hidden=ETBlock(ETLinear(inputs, middle), hidden()), output=ETBlock(ETLinear(middle, outputs), output())
        )
    ).to(device, dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.5)
    return net


def live_input(
    steps: int, batch: int, features: int = 6, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> Tensor:
    """Random spikes [T, B, I], half of them on."""
    return (torch.rand(steps, batch, features) < 0.5).to(device, dtype)


def labels(batch: int, classes: int = 3, device: torch.device | str = "cpu") -> Tensor:
    """Labels 0, 1, 2, 0, ... [B]."""
    return torch.arange(batch, device=device) % classes


def show(net: nn.Module, target: Tensor | None = None, reward: Tensor | float | None = None) -> None:
    """Show the target, or take it away, and a reward to whatever learns from them, under any rule: maybe to nobody."""
    for hub in readers_of(net, "target"):
        hub.target = target
    for hub in readers_of(net, "reward") if reward is not None else []:
        hub.reward = as_reward(reward)


def loop_gradients(net: nn.Module, x: Tensor, y: Tensor, loss: Loss = F.cross_entropy) -> dict[str, Tensor]:
    """Learn online by the plainest loop there is, from fresh state; return the gradient of the mean loss."""
    net.zero_grad(set_to_none=True)
    reset(net)
    for x_t in x:
        (loss(net(x_t), y) / len(x)).backward()
    return gradients(net)


def gradients(net: nn.Module) -> dict[str, Tensor]:
    """Copy the gradients of every parameter that has one."""
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Compare gradients by name, and refuse to compare zeros."""
    assert a.keys() == b.keys()
    assert a
    for name in a:
        assert float(a[name].abs().max()) > 1e-6, f"{name}: nothing was learned, so nothing is compared"
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the largest absolute difference over all parameters: for negative controls."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def assert_alive(net: nn.Module, x: Tensor, low: float = 0.02, high: float = 0.9) -> None:
    """Check that every spiking neuron of `net` fires on `x`, and not always."""
    neurons = [module for module in net.modules() if isinstance(module, Neuron) and module.spiking]
    rates: dict[int, list[float]] = {id(neuron): [] for neuron in neurons}

    def note(neuron: nn.Module, _: object, spikes: Tensor) -> None:
        rates[id(neuron)].append(float(spikes.detach().mean()))

    handles = [neuron.register_forward_hook(note) for neuron in neurons]
    reset(net)
    with torch.no_grad():
        for x_t in x:
            net(x_t)
    for handle in handles:
        handle.remove()
    reset(net)
    assert rates
    for rate in rates.values():
        assert low < sum(rate) / len(rate) < high


RULES = [OTTT(), SLTT(), DRTRL(), BPTT()]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
ONLINE = pytest.mark.parametrize("rule", RULES[:3], ids=lambda rule: rule.name)
SUMMED: dict[str, Any] = {"reduction": "sum"}


class Recorder(torch.optim.SGD):
    """Plain descent that keeps the gradients it was given, one dictionary per update."""

    def __init__(self, net: nn.Module, lr: float = 0.0, **options: Any) -> None:
        super().__init__(net.parameters(), lr=lr, **options)
        self.net, self.seen = net, list[dict[str, Tensor]]()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(gradients(self.net))
        super().step(closure)


def learner_of(
    net: nn.Module, rule: LearningRule, loss: Any = F.cross_entropy, lr: float = 0.0, **options: Any
) -> tuple[OnlineLearner, Recorder]:
    optimizer = Recorder(net, lr)
    return OnlineLearner(net, rule, loss, optimizer, **options), optimizer


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def assert_untouched(net: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def everything(device: torch.device | str = "cpu") -> nn.Sequential:
    """One of each module that carries state."""
    return nn.Sequential(
        TimeConstantDropout(0.2),
        ETBlock(ETConv2d(2, 4, 3, padding=1), LIF(decay=torch.full((4, 1, 1), 0.5))),
        nn.Flatten(),
        ETBlock(ETLinear(4 * 6 * 5, 8), CubaLIF()),
        ETBlock(ETLinear(8, 8), ALIF()),
        ETBlock(ETLinear(8, 8), IF()),
        ETBlock(ETLinear(8, 3), LI()),
        Readout(nn.Linear(3, 3)),
    ).to(device)


def maps(batch: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.rand(batch, 2, 6, 5) < 0.5).to(device, dtype)


def state_tensors(net: nn.Module) -> list[Tensor]:
    """Every tensor reachable from the transient state."""
    found: list[Tensor] = []
    for module in stateful_modules(net):
        for value in module.stash().values():
            found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor)]
    return found
