"""Under autocast the products are in low precision, and what a network remembers is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    Readout,
    attach,
    reset,
)
from snnlearn.engine import NonFiniteError
from snnlearn.functional.precision import LowPrecision, lowered
from snnlearn.functional.weighted_map import Convolution, Dense
from snnlearn.nn import stateful_modules
from snnlearn.nn.chunk import Chunk, in_chunk
from snnlearn.rules import RULES

LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
pytestmark = pytest.mark.usefixtures("unchecked")
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
STEPS, BATCH, INPUTS, UNITS, CLASSES = 8, 4, 6, 8, 3


class Keeping(torch.optim.SGD):
    """Keep the gradients of the last update and change nothing."""

    kept: list[Tensor]

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"] if p.grad is not None]


def rounded(net: nn.Sequential, grid: float = 16.0) -> nn.Sequential:
    """Round the weights to numbers that bfloat16 holds, so that products of spikes differ by their last rounding."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((parameter * grid).round() / grid)
    return net


def neuron() -> LIF:
    return LIF(decay=0.75, threshold=0.5)


def leaky() -> nn.Module:
    return ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.75))


def linear(readout: Callable[[], nn.Module] = leaky) -> nn.Sequential:
    return nn.Sequential(
        ETBlock(ETLinear(INPUTS, UNITS), neuron()), ETBlock(ETLinear(UNITS, UNITS), neuron()), readout()
    )


def recurrent() -> nn.Sequential:
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, UNITS), neuron()), leaky())


def convolutional() -> nn.Sequential:
    convolution = ETConv2d(1, UNITS, (2, 3))
    with torch.no_grad():
        convolution.weight.mul_(2.0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), ETBlock(convolution, neuron()), nn.Flatten(), leaky())


def static() -> nn.Module:
    return Readout(nn.Linear(UNITS, CLASSES))


def remembered(net: nn.Module) -> dict[str, Tensor]:
    """Every floating-point tensor that the net carries to the next step."""
    found = {}
    for number, module in enumerate(stateful_modules(net)):
        for name, value in module.watched().items():
            for part, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    found[f"{number} {type(module).__name__}.{name}[{part}]"] = tensor
    return found


def learned(
    make: Callable[[], nn.Sequential], rule: LearningRule, chunk: int, dtype: torch.dtype | None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the gradients of a sequence, learned under autocast to `dtype`, and what is remembered at its end."""
    torch.manual_seed(0)
    net = rounded(make())
    learner = OnlineLearner(net, rule, F.cross_entropy, Keeping(net.parameters(), lr=0.1), chunk=chunk)
    x = (torch.rand(STEPS, BATCH, INPUTS, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        result = learner.learn(x, torch.arange(BATCH) % CLASSES)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    assert isinstance(learner.optimizer, Keeping)
    return learner.optimizer.kept, remembered(net)


NETS: dict[str, tuple[Callable[[], nn.Sequential], str]] = {
    "trace of inputs": (linear, "ottt"),
    "trace of inputs, recurrent": (recurrent, "ottt"),
    "trace of inputs, convolution": (convolutional, "ottt"),
    "no trace": (lambda: linear(static), "sltt"),
    "factored, and of spikes": (linear, "s_tllr"),
    "factored, filtered": (convolutional, "approximate_otpe"),
    "by ratio": (linear, "ndot"),
    "rank one": (linear, "es_drtrl"),
    "per synapse": (linear, "drtrl"),
    "per synapse, recurrent": (recurrent, "drtrl"),
    "per synapse, filtered": (lambda: linear(static), "otpe"),
    "filtered, constant leak": (recurrent, "eprop"),
    "filtered twice": (linear, "superspike"),
    "readouts of blocks": (lambda: linear(static), "decolle"),
}


HALF = ("trace of inputs", "trace of inputs, convolution", "per synapse", "filtered twice")


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in NETS), *((name, torch.float16) for name in HALF)]
)
def test_memory_is_float32_and_gradients_agree(name: str, dtype: torch.dtype) -> None:
    make, rule = NETS[name]
    errors = []
    for chunk in (1, 3, STEPS) if dtype == torch.bfloat16 else (3,):
        exact, _ = learned(make, RULES[rule](), chunk, None)
        low, memory = learned(make, RULES[rule](), chunk, dtype)
        assert memory
        assert {key: value.dtype for key, value in memory.items() if value.dtype != torch.float32} == {}
        assert len(low) == len(exact) > 0
        assert {gradient.dtype for gradient in low} == {torch.float32}
        size = torch.cat([gradient.flatten() for gradient in exact]).norm()
        errors.append(float(torch.cat([(a - b).flatten() for a, b in zip(exact, low, strict=True)]).norm() / size))
    assert 0 < max(errors) < 3 * ROUNDING[dtype]  # and it is not float32 by another name


def accumulated(rule: str, chunk: int, dtype: torch.dtype, autocast: bool, steps: int = 1000) -> dict[str, Tensor]:
    """Return what two leaky blocks under constant input of one remember; their decays, 0.99, make 100 of it."""
    net = nn.Sequential(ETBlock(ETLinear(1, 1), LI(decay=0.99)), ETBlock(ETLinear(1, 1), LI(decay=0.99))).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float(parameter.dim() == 2) * 2.0**-4)
    attach(net, RULES[rule]())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        in_chunk(net, Chunk(chunk) if chunk > 1 else None),
    ):
        for x in torch.ones(steps // chunk, chunk, 1, dtype=dtype):
            net(x)  # which advances the traces
    for trace in (block.connection.trace for block in net if isinstance(block, ETBlock)):
        if trace is not None:
            trace.stash()  # a chunk that waits is taken in
    return remembered(net)


@pytest.mark.parametrize(("rule", "chunk"), [("ottt", 1), ("ottt", 40), ("approximate_otpe", 40), ("otpe", 40)])
def test_a_slow_trace_does_not_stick(rule: str, chunk: int, unchecked: None) -> None:
    exact = accumulated(rule, 40, torch.float64, False)
    low = accumulated(rule, chunk, torch.float32, True)
    hundred = (1 - 0.99**1000) / (1 - 0.99)
    first = [value for name, value in low.items() if "Trace" in name and ".values" in name]
    assert first[0].flatten()[0].item() == pytest.approx(hundred, rel=1e-4)
    assert exact.keys() == low.keys()
    for name, value in exact.items():
        # the second block's input, a membrane of 0 to 6, is rounded before its product and in its result
        torch.testing.assert_close(low[name].double(), value, rtol=2e-2 if name[0] != "0" else 1e-2, atol=1e-6)


def test_a_trace_in_bfloat16_sticks(unchecked: None) -> None:
    """Negative control: what the same thousand steps give where memory is bfloat16 too."""
    stuck = accumulated("ottt", 1, torch.bfloat16, False)
    (first, *_) = [value for name, value in stuck.items() if "Trace" in name and ".values" in name]
    assert first.dtype == torch.bfloat16
    assert float(first.flatten()[0]) < 70


@LOW
def test_spikes_and_small_counts_are_exact_operands(dtype: torch.dtype) -> None:
    whole = 256 if dtype == torch.bfloat16 else 2048
    counts = torch.arange(whole + 1.0)
    assert torch.equal(counts.to(dtype).float(), counts)
    assert float(torch.tensor(whole + 1.0).to(dtype)) != whole + 1  # control: the next one is rounded, as weights are


@LOW
def test_products_sum_in_float32(dtype: torch.dtype) -> None:
    low = LowPrecision(Dense(), dtype)
    ones = torch.ones(1, 4096)
    assert low.value(ones, ones, None).item() == 4096
    assert low.weight_gradient(ones.T, ones.T, torch.ones(1, 1)).item() == 4096
    one, total = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
    for _ in range(4096):
        total = total + one
    assert float(total) < 4096  # control: a sum in that dtype stops


@pytest.mark.parametrize("size", [1e-12, 1e-7, 1.0, 1e4, 1e12])
def test_float16_products_have_a_scale_of_their_own(size: float) -> None:
    torch.manual_seed(0)
    d, trace, weight = size * torch.randn(40, 5), 1e5 * torch.rand(40, 7), torch.randn(5, 7)
    low = LowPrecision(Dense(), torch.float16)
    for mine, exact in (
        (low.weight_gradient(d, trace, weight), Dense().weight_gradient(d, trace, weight)),
        (low.input_gradient(d, weight, trace.shape), Dense().input_gradient(d, weight, trace.shape)),
    ):
        assert float((mine - exact).norm() / exact.norm()) < 2.0**-10
    plain = d.half().T @ trace.half()
    assert not bool(plain.isfinite().all())  # control: the trace alone is beyond float16


def test_float16_convolutions_have_a_scale_of_their_own() -> None:
    torch.manual_seed(0)
    geometry = Convolution((1, 1), (1, 1), (1, 1), 1)
    x, weight, d = 1e5 * torch.rand(3, 2, 5, 5), torch.randn(4, 2, 3, 3), 1e-9 * torch.randn(3, 4, 5, 5)
    low = LowPrecision(geometry, torch.float16)
    for mine, exact in (
        (low.weight_gradient(d, x, weight), geometry.weight_gradient(d, x, weight)),
        (low.input_gradient(d, weight, x.shape), geometry.input_gradient(d, weight, x.shape)),
        (low.value(x / 1e5, weight, torch.ones(4)), geometry.value(x / 1e5, weight, torch.ones(4))),
    ):
        assert float((mine - exact).norm() / exact.norm()) < 2.0**-10


def test_sums_as_large_as_can_be_are_held() -> None:
    rows = 1 << 18
    low, scale = lowered(torch.ones(rows, 1), torch.float16, rows)
    assert scale is not None
    assert float(low.float().sum()) <= 65504
    assert float(low.float().sum() * scale) == rows


@pytest.mark.parametrize("rule", [SLTT(), OTTT()], ids=["sltt", "ottt"])
def test_rounded_weights_are_forgotten_at_an_update(rule: LearningRule) -> None:
    """Autocast keeps the weights that it rounded, and learning online changes them inside its context."""

    def losses(**options: bool) -> list[float]:
        torch.manual_seed(0)
        net = linear(static)
        learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.5), update=1)
        x, y = (torch.rand(STEPS, BATCH, INPUTS) < 0.5).float(), torch.arange(BATCH) % CLASSES
        found = []
        with torch.autocast("cpu", dtype=torch.bfloat16, **options):
            for _ in range(4):
                learner.evaluate(x, y)  # whose rounded weights have no graph
                found.append(learner.learn(x, y).loss)
                learner.reset()
                for x_t in x:
                    learner.step(x_t, y)
        return found

    found = losses()
    assert found == losses(cache_enabled=False)
    assert found[-1] < found[0] - 0.05  # control: it learns


@pytest.mark.parametrize("chunk", [1, 4])
def test_what_float16_cannot_hold_raises(chunk: int) -> None:
    torch.manual_seed(0)
    net = linear()
    with torch.no_grad():
        for parameter in net[0].parameters():
            parameter.fill_(1e3)
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=chunk)
    before = [parameter.clone() for parameter in net.parameters()]
    x, y = torch.full((STEPS, BATCH, INPUTS), 20.0), torch.arange(BATCH) % CLASSES
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(NonFiniteError):
        learner.learn(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert learner.learn(x, y).updates == 1  # control: 120,000 is no large number there


def test_backward_may_stand_outside_autocast() -> None:
    def gradients(inside: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = linear()
        attach(net, OTTT())
        x = (torch.rand(STEPS, BATCH, INPUTS) < 0.5).float()
        for x_t in x:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(x_t).square().sum()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
        return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]

    for mine, other in zip(gradients(True), gradients(False), strict=True):
        assert bool(mine.any())
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_a_row_restarts_inside_autocast() -> None:
    """A reset of rows takes in the chunk that waits: in float32 too."""
    torch.manual_seed(0)
    net = rounded(linear())
    learner = OnlineLearner(net, RULES["drtrl"](), F.cross_entropy, Keeping(net.parameters(), lr=0.1), chunk=3)
    x, y = (torch.rand(STEPS, BATCH, INPUTS) < 0.5).float(), torch.arange(BATCH) % CLASSES
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learner.learn(x, y)
        reset(net, torch.tensor([True, False, False, False]))
    assert {value.dtype for value in remembered(net).values()} == {torch.float32}
