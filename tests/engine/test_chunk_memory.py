"""Memory in chunks: flat in the length of the sequence, and as much as the formula of `auto_chunk` says."""

from collections.abc import Callable, Iterator

import pytest
import torch
from oracles.allocation import peak_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    DRTRL,
    LI,
    LIF,
    OTTT,
    CubaLIF,
    ETBlock,
    ETLinear,
    LearningRule,
    Neuron,
    OnlineLearner,
    reset,
)
from snnlearn.engine.chunk_bytes import BlockShape, NetworkShape

CLASSES, WARM_UP = 4, 120


def frames(batch: int, inputs: int) -> list[Tensor]:
    """A few steps in turn, so that the input takes no memory with T."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(batch, inputs, generator=generator) for _ in range(4)]


def stream(steps: list[Tensor], length: int) -> Iterator[Tensor]:
    return (steps[t % len(steps)] for t in range(length))


def peak(
    rule: LearningRule,
    kind: Callable[[], Neuron],
    sizes: tuple[int, int, int],
    chunk: int,
    lengths: tuple[int, ...],
) -> list[int]:
    """Peak bytes of learning one sequence of each length, beside parameters and input."""
    batch, inputs, outputs = sizes
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(inputs, outputs), kind()), ETBlock(ETLinear(outputs, CLASSES), LI()))
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1e-4), chunk=chunk)
    steps, labels = frames(batch, inputs), torch.arange(batch) % CLASSES
    peaks = []
    for length in (WARM_UP, *lengths):  # allocator and interpreter have their caches after the first
        reset(net)
        net.eval().train()  # lets go of the memory that waits for the next sequence, which would be there already
        net.zero_grad()
        result = None

        def run(length: int = length) -> None:
            nonlocal result
            result = learner.learn(stream(steps, length), labels)

        peaks.append(peak_bytes(net, run))
        assert result is not None
        assert result.steps == length
        assert 0.02 < result.firing_rates["0"] < 0.8
    return peaks[1:]


def lif() -> LIF:
    return LIF(threshold=0.5)


RULES_AND_NEURONS: list[tuple[LearningRule, Callable[[], Neuron], int]] = [
    (OTTT(), lif, 1),
    (OTTT(), lambda: CubaLIF(threshold=0.5), 2),
    (DRTRL(), lif, 1),
    (DRTRL(), lambda: ALIF(threshold=0.5), 2),
]
NAMES = ["ottt", "ottt-cuba", "drtrl", "drtrl-alif"]


@pytest.mark.parametrize("rule", [OTTT(), DRTRL()], ids=["ottt", "drtrl"])
def test_it_does_not_grow_with_the_sequence(rule: LearningRule, unchecked: None) -> None:
    """Control: a chunk four times as long takes more, and by what the formula says grows with it."""
    sizes, synaptic = (128, 2000, 16), rule.name != "OTTT"
    peaks = peak(rule, lif, sizes, 8, (24, 96, 480))
    assert max(peaks) < 1.02 * min(peaks), peaks
    shape = NetworkShape((BlockShape(*sizes, 1, synaptic), BlockShape(128, 16, CLASSES, 1, synaptic)))
    (longer,) = peak(rule, lif, sizes, 32, (96,))
    assert longer - peaks[0] == pytest.approx(shape.growing(32) - shape.growing(8), rel=0.1)


@pytest.mark.parametrize(("rule", "kind", "hidden"), RULES_AND_NEURONS, ids=NAMES)
@pytest.mark.parametrize("sizes", [(64, 400, 100), (48, 100, 300)], ids=["wide-in", "wide-out"])
def test_the_formula_says_how_much(
    rule: LearningRule,
    kind: Callable[[], Neuron],
    hidden: int,
    sizes: tuple[int, int, int],
    unchecked: None,
) -> None:
    """Within 10 %, the gradients of the weights beside it, which are there at any chunk length."""
    (batch, inputs, outputs), chunk = sizes, 16
    synaptic = rule.name != "OTTT"
    blocks = (BlockShape(*sizes, hidden, synaptic), BlockShape(batch, outputs, CLASSES, 1, synaptic))
    gradients = 4 * outputs * (inputs + CLASSES)
    (measured,) = peak(rule, kind, sizes, chunk, (3 * chunk,))
    assert measured == pytest.approx(NetworkShape(blocks).kept(chunk) + gradients, rel=0.1)
