"""A captured learner has the numbers of the eager one: replayed without Python, from buffers that stay in place."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from snnlearn import (
    ALIF,
    LI,
    LIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    OnlineLearner,
    Readout,
    SequenceLoss,
    TimeConstantDropout,
    attach,
    record_phases,
)
from snnlearn.engine import NonFiniteError, SequenceResult
from snnlearn.engine.capture import CaptureError, CudaCapture, Tape, TapeCapture
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.functional import device_numbers
from snnlearn.functional.chunk import leak_powers
from snnlearn.functional.sparse_map import sparse_rows
from snnlearn.rules import RULES

STEPS, BATCH, INPUTS, UNITS, CLASSES = 6, 4, 6, 7, 3
EXACT = 1e-12
Build = Callable[[], nn.Module]

pytestmark = pytest.mark.usefixtures("unchecked")


def leaky() -> nn.Module:
    return ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.75))


def static() -> nn.Module:
    return Readout(nn.Linear(UNITS, CLASSES))


def linear(readout: Build = leaky, **options: Any) -> nn.Sequential:
    first = ALIF(decay=0.75, threshold=0.3, initial_membrane=0.1, **options)
    return nn.Sequential(
        ETBlock(ETLinear(INPUTS, UNITS), first), ETBlock(ETLinear(UNITS, UNITS), LIF(threshold=0.3)), readout()
    )


def recurrent() -> nn.Sequential:
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, UNITS), ALIF(threshold=0.3)), leaky())


def convolutional() -> nn.Sequential:
    convolution = ETConv2d(1, UNITS, (2, 3))
    with torch.no_grad():
        convolution.weight.mul_(2.0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), ETBlock(convolution, LIF(threshold=0.3)), nn.Flatten(), leaky())


def with_a_mask() -> nn.Sequential:
    return nn.Sequential(TimeConstantDropout(0.3), *linear())


def with_statistics() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(INPUTS), nn.Dropout(0.2), *linear(static))


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3, nesterov=True)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return Adam(net.parameters(), lr=0.05, weight_decay=1e-3, fused=True)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return AdamW(net.parameters(), lr=0.05, amsgrad=True, fused=True)


def learner_of(make: Build, rule: str, optimizer: Any = sgd, **options: Any) -> OnlineLearner:
    torch.manual_seed(0)
    net = make().double()
    return OnlineLearner(net, RULES[rule](), F.cross_entropy, optimizer(net), **options)


def data(sequences: int, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(sequences, steps, BATCH, INPUTS, generator=generator) < 0.5).double()
    return x, torch.randint(CLASSES, (sequences, BATCH), generator=generator)


def graphed(learner: OnlineLearner) -> GraphedLearner:
    x, y = data(1)
    return GraphedLearner(learner, torch.rand_like(x[0]), y[0] * 0, TapeCapture())


def both(
    make: Build, rule: str, optimizer: Any = sgd, scheduler: Any = None, **options: Any
) -> tuple[OnlineLearner, OnlineLearner]:
    """Learn three sequences, the second of which goes on with the first, eagerly and replayed; return both learners."""
    x, y = data(3)
    learners, results = [], []
    for replays in (False, True):
        learner = learner_of(make, rule, optimizer, **options)
        runner: Any = graphed(learner) if replays else learner
        schedule = None if scheduler is None else scheduler(learner.optimizer)
        torch.manual_seed(5)
        found = []
        for n in range(3):
            found.append(runner.learn(x[n], y[n], keep_state=n == 1))
            if schedule is not None:
                schedule.step()
        learners.append(learner)
        results.append(found)
    for mine, theirs in zip(*results, strict=True):
        assert_same_result(mine, theirs)
    eager, replayed = learners
    assert all(0.02 < rate < 0.8 for rate in results[0][0].firing_rates.values()), results[0][0].firing_rates
    before = learner_of(make, rule, optimizer, **options).net.state_dict()
    after, other = eager.net.state_dict(), replayed.net.state_dict()
    assert max(float((after[name] - before[name]).abs().max()) for name in after) > 1e-2  # control: it learned
    for name, value in after.items():
        torch.testing.assert_close(other[name], value, rtol=EXACT, atol=EXACT, msg=lambda m, n=name: f"{n}: {m}")
    return eager, replayed


def assert_same_result(mine: SequenceResult, theirs: SequenceResult) -> None:
    assert theirs.loss == pytest.approx(mine.loss, rel=EXACT)
    assert theirs.gradient_norm == pytest.approx(mine.gradient_norm, rel=1e-10)
    assert (theirs.accuracy, theirs.accuracy_last) == (mine.accuracy, mine.accuracy_last)
    assert (theirs.updates, theirs.steps, theirs.batch_size) == (mine.updates, mine.steps, mine.batch_size)
    assert (theirs.firing_rates, theirs.decisions) == (mine.firing_rates, mine.decisions)
    torch.testing.assert_close(theirs.output, mine.output, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(theirs.last_output, mine.last_output, rtol=EXACT, atol=EXACT)


NETS: dict[str, Build] = {"eprop": recurrent, "otpe": lambda: linear(static)}
CAPTURED = [
    *("sltt", "ottt", "ndot", "s_tllr", "drtrl", "ostl", "hypr", "es_drtrl", "otpe", "approximate_otpe", "eprop"),
    *("superspike", "dfa", "feedback_alignment"),
]
REFUSED = ["sltt_k", "etlp", "osttp", "decolle", "ell", "tess", "opzo", "traces_propagation", "bptt", "tbptt"]


@pytest.mark.parametrize("rule", CAPTURED)
def test_every_rule_has_the_numbers_of_eager_learning(rule: str) -> None:
    if rule in ("ostl", "hypr"):
        result = graphed(learner_of(linear, rule)).learn(*(part[0] for part in data(1)))
        assert result.updates == 1  # the numbers of D-RTRL under other names
        return
    both(NETS.get(rule, linear), rule, chunk=3, update=3)
    if rule in ("ottt", "drtrl"):
        both(NETS.get(rule, linear), rule)


def test_every_rule_is_captured_or_refused() -> None:
    assert {*CAPTURED, *REFUSED} == set(RULES)


@pytest.mark.parametrize("rule", REFUSED)
def test_rules_that_python_decides_for_are_refused(rule: str) -> None:
    learner = learner_of(lambda: linear(static), rule)
    before = {name: value.clone() for name, value in learner.net.state_dict().items() if isinstance(value, Tensor)}
    with pytest.raises(CaptureError, match="cannot be captured"):
        graphed(learner)
    assert all(torch.equal(learner.net.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("optimizer", [sgd, adam, adamw])
def test_optimizers(optimizer: Any) -> None:
    both(linear, "ottt", optimizer, chunk=2, update=2, clip_norm=0.5)


def test_layers() -> None:
    both(convolutional, "ottt", chunk=3)
    both(recurrent, "drtrl", chunk=3)
    both(with_statistics, "sltt", chunk=1, update=2)
    both(lambda: linear(learn=("decay", "threshold")), "drtrl", chunk=3)


def test_a_mask_that_python_draws_anew_for_each_sequence_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"TimeConstantDropout.seed is .* which Python carries from step to step"):
        graphed(learner_of(with_a_mask, "ottt", chunk=3))


def test_a_learning_rate_that_changes() -> None:
    def halved(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    eager, _ = both(linear, "ottt", adam, scheduler=halved)
    steady, _ = both(linear, "ottt", adam)
    moved = [
        float((a - b).detach().abs().max())
        for a, b in zip(eager.net.parameters(), steady.net.parameters(), strict=True)
    ]
    assert max(moved) > 1e-3  # control: the schedule matters


def test_eager_learning_before_between_and_after() -> None:
    x, y = data(5)
    learners = [learner_of(linear, "drtrl", sgd, chunk=3) for _ in range(2)]
    for learner in learners:
        learner.learn(x[0], y[0])  # the optimizer has a state by now
    replayed = graphed(learners[1])
    for n, runner in ((1, replayed), (2, learners[1]), (3, replayed)):
        assert_same_result(learners[0].learn(x[n], y[n]), runner.learn(x[n], y[n]))
        shown = [learner.evaluate(x[4], y[4]).loss for learner in learners]  # it leaves the running state alone
        assert shown[0] == pytest.approx(shown[1], rel=EXACT)
    assert_same_result(learners[0].learn(x[4], y[4], keep_state=True), learners[1].learn(x[4], y[4], keep_state=True))
    assert_same_result(learners[0].learn(x[0], y[0], keep_state=True), replayed.learn(x[0], y[0], keep_state=True))
    for a, b in zip(learners[0].net.parameters(), learners[1].net.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=EXACT, atol=EXACT)
        assert b.grad is None


def test_sequences_of_other_lengths() -> None:
    learner, other = learner_of(linear, "drtrl", chunk=3), learner_of(linear, "drtrl", chunk=3)
    replayed = graphed(other)
    for steps in (3, 12, 6):
        x, y = data(1, steps)
        assert_same_result(learner.learn(x[0], y[0]), replayed.learn(x[0], y[0]))
    x, y = data(1, 7)
    with pytest.raises(CaptureError, match=r"x has 7 steps: graphs run 3 at once"):
        replayed.learn(x[0], y[0])


@pytest.mark.parametrize("rule", ["eprop", "otpe", "superspike"])
def test_a_learner_that_never_ran_is_captured(rule: str) -> None:
    """What is made once per device, from Python's numbers, is made before."""
    leak_powers.cache_clear()
    device_numbers._made.cache_clear()
    assert graphed(learner_of(NETS.get(rule, linear), rule, chunk=3)).learn(*(part[0] for part in data(1))).updates == 1


def test_capturing_changes_nothing() -> None:
    learner = learner_of(with_statistics, "sltt", adam)
    x, y = data(1)
    learner.learn(x[0], y[0])
    held = [*learner.net.state_dict().values(), *(v for s in learner.optimizer.state.values() for v in s.values())]
    before, random = [value.clone() for value in held], torch.get_rng_state()
    GraphedLearner(learner, x[0], y[0], TapeCapture())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert all(parameter.grad is None for parameter in learner.net.parameters())


class Counting(nn.Module):
    """Scale by how often it was called: what only Python knows."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1.0 + 0.1 * (self.calls % 3))


def test_replaying_runs_no_python() -> None:
    """Negative control: a replay that ran the function again would give this network's own numbers."""
    with pytest.raises(AssertionError):
        both(lambda: nn.Sequential(Counting(), *linear()), "ottt")


def test_a_tape_is_the_operations_alone() -> None:
    x, y, calls = torch.arange(3.0), torch.zeros(3), []
    with Tape() as tape:
        calls.append(1)
        y.add_((x * 2).view(3)[:2].sum().unsqueeze_(0))
    x.mul_(10)
    tape.replay()
    assert calls == [1]
    assert y.tolist() == [2.0 + 20.0] * 3


class Deciding(nn.Module):
    """Decide by a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


class Picking(nn.Module):
    """Pick by a mask."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x[x > 0].sum()


class Making(nn.Module):
    """Make a tensor of Python's numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=x.dtype)


@pytest.mark.parametrize(
    ("layer", "told"),
    [(Deciding, "reads a number back"), (Picking, "depends on a mask"), (Making, "makes a tensor from numbers")],
)
def test_layers_that_wait_for_the_host_are_refused(layer: Any, told: str) -> None:
    with pytest.raises(CaptureError, match=told):
        graphed(learner_of(lambda: nn.Sequential(layer(), *linear()), "ottt"))


def test_losses_that_wait_for_the_host_are_refused() -> None:
    learner = learner_of(linear, "ottt")
    learner.loss = lambda output, target: F.cross_entropy(output, target) * float(output.detach().abs().mean())
    with pytest.raises(CaptureError, match="reads a number back"):
        graphed(learner)
    for options, told in (({"readout": "running_mean"}, "counts steps"), ({"last_steps": 2}, "counts steps")):
        learner.loss = SequenceLoss(**options)
        with pytest.raises(CaptureError, match=told):
            graphed(learner)


def hooked(learner: OnlineLearner) -> None:
    learner.net[1].register_forward_hook(lambda *_: None)


def hooked_weight(learner: OnlineLearner) -> None:
    next(learner.net.parameters()).register_hook(lambda grad: grad)


def other_optimizer(learner: OnlineLearner) -> None:
    learner.optimizer = RMSprop(learner.net.parameters())


def dampened(learner: OnlineLearner) -> None:
    learner.optimizer = SGD(learner.net.parameters(), lr=0.1, momentum=0.9, dampening=0.5)


def undecided(learner: OnlineLearner) -> None:
    learner.chooses_chunk = True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (hooked, "1 has a hook"),
        (hooked_weight, "0.connection.weight has a hook"),
        (other_optimizer, "RMSprop begins with a state that is not known"),
        (dampened, "SGD with dampening"),
        (undecided, "chunk='auto' has not chosen yet"),
    ],
)
def test_what_python_would_do_is_refused(change: Callable[[OnlineLearner], None], told: str) -> None:
    learner = learner_of(linear, "ottt")
    change(learner)
    with pytest.raises(CaptureError, match=told):
        graphed(learner)


def test_listeners_learned_leaks_and_inputs_are_refused() -> None:
    learner = learner_of(lambda: linear(learn=("decay",)), "ottt")
    with pytest.raises(CaptureError, match="follows a learned leak"):
        graphed(learner)
    learner = learner_of(linear, "ottt", chunk=4)
    x, y = data(1)
    with record_phases(learner.net), pytest.raises(CaptureError, match="has a listener"):
        GraphedLearner(learner, x[0, :4], y[0], TapeCapture())
    given: list[tuple[Any, Any, str]] = [
        (x[0], y[0], "x has 6 steps: graphs run 4 at once"),
        (list(x[0]), y[0], "x is a list"),
        (sparse_rows([0, 1, 1], [2], [1.0], 3), y[0], "x is sparse"),
        (x[0, :4], [y[0]] * 4, "y is a list"),
        (x[0, :4], y[0] * 0 - 100, "y has no label"),
        (x[0, :4, :0], y[0, :0], "empty batch"),
    ]
    for example, target, told in given:
        with pytest.raises(CaptureError, match=told):
            GraphedLearner(learner, example, target, TapeCapture())


def test_a_step_that_fails_changes_no_weight() -> None:
    learner = learner_of(linear, "ottt", adam, chunk=3)
    replayed, (x, y) = graphed(learner), data(2)
    replayed.learn(x[0], y[0])
    before = [parameter.clone() for parameter in learner.net.parameters()]
    broken = x[1].clone()
    broken[4, 1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="1 non-finite value"):
        replayed.learn(broken, y[1])
    with torch.no_grad():
        learner.net[2].connection.bias[0] = math.inf
    with pytest.raises(NonFiniteError, match="it changes no weight"):
        replayed.learn(x[1], y[1])
    with torch.no_grad():
        learner.net[2].connection.bias[0] = before[-1][0]
    assert all(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))
    other = learner_of(linear, "ottt", adam, chunk=3)
    other.learn(x[0], y[0])
    assert_same_result(other.learn(x[1], y[1]), replayed.learn(x[1], y[1]))  # nothing of the failures is left


def test_what_changed_since_is_told() -> None:
    learner = learner_of(linear, "ottt")
    replayed, (x, y) = graphed(learner), data(1)
    learner.net.eval()
    with pytest.raises(CaptureError, match=r"train\(\) or eval\(\)"):
        replayed.learn(x[0], y[0])
    learner.net.train()
    learner.update = 2
    with pytest.raises(CaptureError, match="update"):
        replayed.learn(x[0], y[0])
    learner.update = "sequence"
    for other, told in ((x[0, :, :2], "per step"), (x[0].float(), "float32")):
        with pytest.raises(CaptureError, match=told):
            replayed.learn(other, y[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert replayed.learn(x[0], y[0]).updates == 1  # float64 has no autocast
    attach(learner.net, learner.rule)
    with pytest.raises(CaptureError, match="a rule was attached"):
        replayed.learn(x[0], y[0])


def test_autocast_is_captured() -> None:
    results = []
    for replays in (False, True):
        torch.manual_seed(0)
        net = linear(static)
        learner = OnlineLearner(net, RULES["ottt"](), F.cross_entropy, sgd(net), chunk=3, update=3)
        x, y = data(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            runner: Any = GraphedLearner(learner, x[0].float(), y[0], TapeCapture()) if replays else learner
            results.append([runner.learn(x[n].float(), y[n]).loss for n in range(3)])
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert results[0][0] != results[0][2]
    with pytest.raises(CaptureError, match="autocast is another"):
        runner.learn(x[0].float(), y[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with CUDA captures")
def test_without_a_gpu_a_graph_is_refused() -> None:
    learner, (x, y) = learner_of(linear, "ottt"), data(1)
    with pytest.raises(CaptureError, match=r"no CUDA device.*learn without a graph, or pass capture=TapeCapture\(\)"):
        GraphedLearner(learner, x[0], y[0])
    with pytest.raises(CaptureError, match="no CUDA device"):
        CudaCapture().refuse(torch.device("cpu"))
