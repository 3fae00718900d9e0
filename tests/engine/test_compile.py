"""X03 and torch.compile: the same gradients as eager, no recompilation, and a reason where it is refused."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from nets import assert_alive, assert_same, gradients, labels, live_input, live_net
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from snnlearn import (
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    LearningRule,
    OnlineLearner,
    SequenceLoss,
    TimeConstantDropout,
    bptt_gradients,
    reset,
)
from snnlearn.nn import eager

# torch's own compiler warns about itself: none of it is the user's.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning"),
    pytest.mark.usefixtures("unchecked"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mixed_net() -> nn.Module:
    """Blocks, and between and around them ordinary arithmetic for the compiler to work on."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = ETBlock(ETLinear(6, 12), LIF(), norm=nn.LayerNorm(12))
            self.second = ETBlock(ETLinear(12, 12), LIF())
            self.last = ETBlock(ETLinear(12, 3), LI())
            self.drop = TimeConstantDropout(0.1)
            self.scale = nn.Linear(6, 6)

        def forward(self, x_t: Tensor) -> Tensor:
            x_t = self.drop(torch.tanh(self.scale(x_t)) + x_t)
            spikes = self.first(x_t)
            spikes = spikes + torch.relu(self.second(spikes) * 1.5 - 0.25)
            output: Tensor = self.last(spikes) * 2.0 + 0.1
            return output

    net = Mixed().double()
    with torch.no_grad():
        for block in (net.first, net.second, net.last):
            block.connection.weight.mul_(2.5)
    return net


class Framed(nn.Module):
    """One piece for the compiler before the blocks, so that a C++ compiler has little to do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 1.2, dtype=torch.float64))
        self.net = live_net()

    def forward(self, x_t: Tensor) -> Tensor:
        output: Tensor = self.net(torch.tanh(x_t * self.scale) + x_t)
        return output


def learn(net: nn.Module, step: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(7)
    net.zero_grad(set_to_none=True)
    reset(net)
    for x_t in x:
        (F.cross_entropy(step(x_t), y) / len(x)).backward()
    return gradients(net)


@pytest.mark.parametrize(
    ("backend", "build", "rule"),
    [
        ("aot_eager", mixed_net, OTTT()),
        ("aot_eager", mixed_net, SLTT()),
        pytest.param("inductor", Framed, OTTT(), marks=pytest.mark.slow),
    ],
    ids=["aot_eager OTTT", "aot_eager SLTT", "inductor OTTT"],
)
def test_compiled_gradients_equal_eager_ones(
    backend: str, build: Callable[[], nn.Module], rule: LearningRule, device: torch.device
) -> None:
    net = build().to(device)
    rule.attach(net)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    assert_alive(net, x)
    eager = learn(net, net, x, y)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(net, backend=counter)
    for _ in range(2):
        assert_same(learn(net, compiled, x, y), eager, 1e-10)
    assert counter.frame_count > 0  # something was compiled, so something was compared


def test_the_oracle_runs_on_a_compiled_net(device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    OTTT().attach(net)
    expected = bptt_gradients(net, x, y)
    found = bptt_gradients(torch.compile(net, backend="aot_eager"), x, y)
    assert_same({name.removeprefix("_orig_mod."): g for name, g in found.items()}, expected, 1e-12)


def test_no_recompilation_after_two_sequences(device: torch.device) -> None:
    """X03: 100 steps, with resets, evaluations and a partial reset between, compile nothing anew."""
    net = mixed_net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, backend=counter)
    learner = OnlineLearner(compiled, OTTT(), SequenceLoss(readout="running_mean"), optimizer)
    y = labels(4, device=device)

    def run(sequences: int, steps: int) -> None:
        for _ in range(sequences):
            x = live_input(steps, 4, device=device)
            learner.learn(x, y)
            learner.evaluate(x, y)
            for x_t in x:
                learner.step(x_t, y)
            learner.reset(torch.tensor([True, False, False, True], device=device))
            learner.step(x[0], y)

    run(sequences=2, steps=3)
    compiled_before = counter.frame_count
    assert compiled_before > 0
    torch._dynamo.config.error_on_recompile = True
    try:
        run(sequences=5, steps=20)
    finally:
        torch._dynamo.config.error_on_recompile = False
    assert counter.frame_count == compiled_before


def test_the_recompilation_check_can_fail() -> None:
    """Negative control: a Python step counter in a user's own module recompiles, and is seen."""

    class Counting(nn.Module):
        steps = 0

        def forward(self, x_t: Tensor) -> Tensor:
            self.steps += 1
            return x_t * float(self.steps == 3)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(Counting(), backend=counter)
    for _ in range(4):
        compiled(torch.ones(2))
    assert counter.frame_count > 1


def test_the_whole_graph_is_refused_with_the_reason(device: torch.device) -> None:
    net = live_net(device)
    OTTT().attach(net)
    whole = torch.compile(net, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a block writes its trace in place between forward and"):
        whole(live_input(1, 2, device=device)[0])


@pytest.mark.parametrize(
    ("module", "reason"),
    [(LIF(), "a neuron carries state between calls"), (TimeConstantDropout(0.5), "the mask is state that lasts")],
)
def test_single_modules_are_refused_with_their_reason(module: nn.Module, reason: str) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        torch.compile(lambda x: module(x), backend="eager", fullgraph=True)(torch.ones(2, 3))


def test_the_pure_step_compiles_whole(device: torch.device) -> None:
    """What carries no state has nothing to refuse: a neuron's step, with explicit state, is one graph."""
    neuron = LIF(tau=3.0, threshold=0.7)
    step = torch.compile(lambda y, v: neuron.step(y, (v,)), backend="aot_eager", fullgraph=True)
    state = theirs = torch.zeros(2, 3, device=device)
    total = 0.0
    for _ in range(10):
        y = torch.rand(2, 3, device=device)
        spike, (state,) = neuron.step(y, (state,))
        their_spike, (theirs,) = step(y, theirs)
        assert torch.equal(spike, their_spike)
        torch.testing.assert_close(theirs, state)
        total += float(spike.mean()) / 10
    assert 0.05 < total < 0.95


def test_a_compiled_copy_shares_nothing_with_its_net(device: torch.device) -> None:
    net = live_net(device)
    OTTT().attach(net)
    x, y = live_input(4, 3, device=device), labels(3, device=device)
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager")
    compiled(x[0]).sum().backward()
    assert net.hidden.neuron.state is None
    assert_same(learn(net, net, x, y), learn(compiled._orig_mod, compiled, x, y), 1e-12)


def test_an_import_does_not_load_the_compiler_and_a_network_does() -> None:
    """It takes seconds to load, so `import snnlearn` and a help text do without; the control makes a neuron."""
    seen = "print('torch._dynamo' in sys.modules)"
    code = f"import sys, snnlearn; {seen}; snnlearn.LIF(); {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_every_way_to_come_by_a_module_tells_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy and what a pickle gives back were never built by `__init__` in their process."""
    net, told = ETBlock(ETLinear(2, 2), LIF()), []
    for make in (lambda: copy.deepcopy(net), LIF, lambda: TimeConstantDropout(0.5)):
        monkeypatch.setattr(eager, "_undecided", [lambda: told.append(1)])
        make()
    assert told == [1, 1, 1]
