"""What a graph cannot hold is refused, when it is captured or when it is replayed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphed_work import CAPTURED, data, graphed, learner_of, linear, static
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, RMSprop

from snnlearn import OnlineLearner, SequenceLoss, TimeConstantDropout, attach, record_phases
from snnlearn.engine.capture import CaptureError, CudaCapture, TapeCapture
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.functional.sparse_map import sparse_rows
from snnlearn.rules import RULES

pytestmark = pytest.mark.usefixtures("unchecked")


def with_a_mask() -> nn.Sequential:
    return nn.Sequential(TimeConstantDropout(0.3), *linear())


REFUSED = ["sltt_k", "etlp", "osttp", "decolle", "ell", "tess", "opzo", "traces_propagation", "bptt", "tbptt"]


def test_every_rule_is_captured_or_refused() -> None:
    assert {*CAPTURED, *REFUSED} == set(RULES)


@pytest.mark.parametrize("rule", REFUSED)
def test_rules_that_python_decides_for_are_refused(rule: str) -> None:
    learner = learner_of(lambda: linear(static), rule)
    before = {name: value.clone() for name, value in learner.net.state_dict().items() if isinstance(value, Tensor)}
    with pytest.raises(CaptureError, match="cannot be captured"):
        graphed(learner)
    assert all(torch.equal(learner.net.state_dict()[name], value) for name, value in before.items())


def test_a_mask_that_python_draws_anew_for_each_sequence_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"TimeConstantDropout.seed is .* which Python carries from step to step"):
        graphed(learner_of(with_a_mask, "ottt", chunk=3))


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with CUDA captures")
def test_without_a_gpu_a_graph_is_refused() -> None:
    learner, (x, y) = learner_of(linear, "ottt"), data(1)
    with pytest.raises(CaptureError, match=r"no CUDA device.*learn without a graph, or pass capture=TapeCapture\(\)"):
        GraphedLearner(learner, x[0], y[0])
    with pytest.raises(CaptureError, match="no CUDA device"):
        CudaCapture().refuse(torch.device("cpu"))
