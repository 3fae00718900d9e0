"""Every rule, unnamed points on the axes, and the small networks on which all of them keep one contract."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import nets
import pytest
import torch
from nets import gradients, learner_of
from oracles.networks import lively, scaled
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, ETBlock, ETConv2d, ETLinear, ETRecurrent, LearningRule, Neuron, Readout
from snnlearn.nn import PostTrace
from snnlearn.rules import RULES, Contrast, LocalHead, NoiseEstimate, RateTarget

STEPS, BATCH, CLASSES = 5, 3, 3

UNNAMED: dict[str, Callable[[], LearningRule]] = {
    "leak, alignment": lambda: LearningRule(signal="alignment"),
    "no trace, alignment": lambda: LearningRule(transition="none", storage="none", signal="alignment"),
    "local, kappa, random": lambda: synaptic(trace_filter="kappa", signal="random"),
    "local, kappa, symmetric": lambda: synaptic(trace_filter="kappa", signal="symmetric"),
    "local, above": lambda: synaptic(trace_filter="above"),
    "local, above, mean": lambda: synaptic(trace_filter="above", relay="mean"),
    "leak, above, mean": lambda: LearningRule(trace_filter="above", relay="mean"),
    "leak, kappa, synaptic": lambda: LearningRule(trace_filter="kappa", storage="synaptic"),
    "leak, double": lambda: LearningRule(trace_filter="double", storage="synaptic", filter_decay=(0.6, 0.8)),
    "local, rank one": lambda: LearningRule(transition="local", storage="rank_one", forgetting=0.6),
    "leak, post": lambda: LearningRule(post=PostTrace(0.4, -0.7), trace_decay=0.6),
    "ratio": lambda: LearningRule(transition="ratio"),
    "ratio, random": lambda: LearningRule(transition="ratio", signal="random"),
    "leak, target": lambda: LearningRule(signal="target"),
    "local, reward": lambda: synaptic(signal="reward"),
    "leak, trained readout": lambda: LearningRule(signal="local_readout", head=LocalHead(kind="trained")),
    "local, contrastive": lambda: synaptic(signal="contrastive", contrast=Contrast(decay=0.5, trained=False)),
    "local, noise": lambda: synaptic(signal="noise", noise=NoiseEstimate(scale=0.2, momentum=0.5)),
    "local, adaptive": lambda: synaptic(signal="adaptive"),
    "leak, rate": lambda: LearningRule(rate=RateTarget(rate=0.1, weight=2.0)),
    "local, kappa, random, rate": lambda: synaptic(
        trace_filter="kappa", signal="random", rate=RateTarget(rate=0.1, weight=2.0)
    ),
    "leak, last": lambda: LearningRule(learn_on="last", learn_steps=2),
    "leak, random steps": lambda: LearningRule(learn_on="random", learn_steps=4),
}
"""Legal points that no paper named, so that every choice on every axis is met."""


def synaptic(**choices: Any) -> LearningRule:
    """A rule with the local transition and one number per synapse."""
    return LearningRule(transition="local", storage="synaptic", **choices)


def takes(rule: LearningRule, kind: str) -> bool:
    """Whether the rule has a network of `kind`: a test holds this against what is refused."""
    per_unit = rule.storage == "synaptic" or rule.signal in ("symmetric", "adaptive", "contrastive")
    return kind != "convolutional" or not (per_unit or rule.transition == "ratio")


def distinct(named: dict[str, Callable[[], LearningRule]]) -> dict[str, LearningRule]:
    """One rule per point: papers that meet on the axes, which differ in title and seed alone, share a row of tests."""
    found: dict[LearningRule, list[str]] = {}
    for name, point in named.items():
        found.setdefault(dataclasses.replace(point(), title="", seed=0), []).append(name)
    return {" = ".join(names): named[names[0]]() for names in found.values()}


POINTS = distinct({**RULES, **UNNAMED})
KINDS = ("recurrent", "convolutional")


def points(chosen: Callable[[LearningRule], bool] = lambda rule: True) -> pytest.MarkDecorator:
    """Parametrise a test over every rule for which `chosen` is true."""
    found = {name: rule for name, rule in POINTS.items() if chosen(rule)}
    return pytest.mark.parametrize("rule", found.values(), ids=found)


def points_on_nets(chosen: Callable[[LearningRule], bool] = lambda rule: True) -> pytest.MarkDecorator:
    """The same on every kind of network that the rule takes."""
    pairs = {
        f"{name} on {kind}": (rule, kind)
        for name, rule in POINTS.items()
        for kind in KINDS
        if chosen(rule) and takes(rule, kind)
    }
    return pytest.mark.parametrize(("rule", "kind"), pairs.values(), ids=pairs)


def is_online(rule: LearningRule) -> bool:
    """Whether each step has a backward of its own."""
    return rule.online


def is_spatial(rule: LearningRule) -> bool:
    """Whether the signal is the derivative of the loss of the step: the symmetric broadcast is, below the readout."""
    return rule.signal in ("spatial", "symmetric") and rule.rate is None


def keeps_trace(rule: LearningRule) -> bool:
    """Whether blocks keep something in place, which a clock guards; alignment needs a step trace to reroute."""
    return rule.online and (rule.storage != "none" or rule.signal == "alignment")


def every_step(rule: LearningRule) -> LearningRule:
    """The rule without its choice of steps."""
    return dataclasses.replace(rule, learn_on="all", learn_steps=None)


def hidden_blocks(rule: LearningRule) -> int:
    """The symmetric broadcast takes a network with one hidden block, every other rule any."""
    return 1 if rule.signal == "symmetric" else 2


def net_for(rule: LearningRule, kind: str = "linear", neuron: Callable[[], Neuron] = LIF) -> nn.Sequential:
    """A network in float64 whose neurons fire on `input_for(kind)`; its last block or readout is the output."""
    return copy.deepcopy(built(kind, neuron, hidden_blocks(rule)))


def attached(rule: LearningRule, kind: str = "linear") -> nn.Sequential:
    """The same with the rule attached, every step learning."""
    return copy.deepcopy(built_with(every_step(rule), kind))


@functools.cache
def built_with(rule: LearningRule, kind: str) -> nn.Sequential:
    """The network that `attached` copies."""
    net = net_for(rule, kind)
    rule.attach(net)
    return net


@functools.cache
def built(kind: str, neuron: Callable[[], Neuron], hidden: int) -> nn.Sequential:
    """The network that `net_for` copies."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        if kind == "convolutional":
            layers = [ETBlock(ETConv2d(1, 3, 3), neuron()), nn.Flatten(), ETBlock(ETLinear(12, 7), neuron())]
            net = nn.Sequential(*layers, Readout(nn.Linear(7, CLASSES)))
        else:
            first = ETRecurrent(6, 8) if kind == "recurrent" else ETLinear(6, 8)
            blocks = [ETBlock(first, neuron()), ETBlock(ETLinear(8, 7), neuron())][:hidden]
            net = nn.Sequential(*blocks, ETBlock(ETLinear((8, 7)[hidden - 1], CLASSES), LI(tau=3.0)))
        return lively(scaled(net), input_for(kind))  # type: ignore[return-value]


@functools.cache
def input_for(kind: str = "linear", steps: int = STEPS) -> Tensor:
    """Random spikes [T, B, ...], half of them on; the same in every test."""
    shape = (1, 4, 4) if kind == "convolutional" else (6,)
    generator = torch.Generator().manual_seed(11)
    return (torch.rand(steps, BATCH, *shape, generator=generator) < 0.5).double()


def targets(batch: int = BATCH) -> Tensor:
    """Labels 0, 1, 2, 0, ... [B]."""
    return torch.arange(batch) % CLASSES


def rewards(batch: int = BATCH) -> Tensor:
    """One reward per sample [B], of either sign."""
    return torch.linspace(-1.0, 1.5, BATCH, dtype=torch.float64)[:batch]


def show(net: nn.Module, y: Tensor, reward: Tensor | None = None) -> None:
    """Show targets [B] and rewards [B] to whatever learns from them."""
    nets.show(net, y, rewards(len(y)) if reward is None else reward)


def taught(net: nn.Module, x: Iterable[Tensor], y: Tensor, reward: Tensor | None = None) -> dict[str, Tensor]:
    """Learn from every step of x by the plainest loop, going on from the present state; return the summed gradient."""
    net.zero_grad(set_to_none=True)
    show(net, y, reward)
    through_time = any(module.carry_graph for module in net.modules() if isinstance(module, Neuron))
    losses = []
    for x_t in x:
        losses.append(F.cross_entropy(net(x_t), y))
        if not through_time:
            losses.pop().backward()
    if losses:
        torch.stack(losses).sum().backward()
    return gradients(net)


def passed(net: nn.Module, x: Iterable[Tensor]) -> None:
    """Let the steps of x go through the network, traces included, and learn from none of them."""
    for x_t in x:
        net(x_t)


def learned(
    net: nn.Module, rule: LearningRule, x: Tensor, y: Any, reward: Tensor | None = None, **options: Any
) -> dict[str, Tensor]:
    """The gradient of one sequence that a learner hands to its optimizer, every step learning."""
    learner, recorder = learner_of(net, every_step(rule))
    nets.show(net, reward=rewards(x.shape[1]) if reward is None else reward)
    learner.learn(x, y, **options)
    (gradient,) = recorder.seen
    return gradient


def block_of(name: str) -> str:
    """The number of the block that a parameter is in."""
    return name.partition(".")[0]


def assert_equal(mine: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Compare gradients by name: zeros are legal, but not all of a network's."""
    assert mine.keys() == other.keys()
    assert max(float(gradient.abs().max()) for gradient in mine.values()) > 1e-6
    for name, gradient in mine.items():
        torch.testing.assert_close(
            gradient, other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
