"""Steps at which no sequence has a label have no loss; what a loss cannot be computed of is refused by name."""

from typing import Any

import pytest
import torch
from nets import assert_same, furthest, labels, learner_of, live_input, live_net
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    LI,
    LIF,
    OSTTP,
    OTTT,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    SequenceLoss,
    TruncatedBPTT,
    bptt_gradients,
    fidelity,
    rtrl_gradients,
)
from snnlearn.functional import MISSING_LABEL as NONE

GONE = torch.tensor([NONE, NONE])
SOME = torch.tensor([1, NONE])
LOSSES = [F.cross_entropy, nn.CrossEntropyLoss(), SequenceLoss(), SequenceLoss("mse"), SequenceLoss("mix")]
RULES = [OTTT(), OSTTP(), BPTT(), TruncatedBPTT(2)]


def targets() -> tuple[Tensor, list[Any]]:
    """Four steps, of which the second and the last have no label: as a tensor, and with None in their place."""
    steps = torch.stack([labels(2), GONE, SOME, GONE])
    return steps, [labels(2), None, SOME, None]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(getattr(loss, "__name__", loss)))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_step_without_any_label_is_one_without_a_target(rule: LearningRule, loss: Any) -> None:
    x, (missing, none) = live_input(4, 2), targets()
    found = []
    for y in (missing, list(missing), none):
        torch.manual_seed(3)
        learner, recorder = learner_of(live_net(), rule, loss)
        result = learner.learn(x, y, per_step_target=True)
        assert result.updates == 1
        found.append((result.loss, result.accuracy, result.decisions, recorder.seen[0]))
    for other in found[1:]:
        assert other[:3] == found[0][:3]
        assert_same(other[3], found[0][3], 1e-12)
    assert found[0][0] > 0


def test_numbers_by_hand() -> None:
    """A readout that answers 2 x: two steps count, and of the second only the sample that has a label."""
    net = ETBlock(ETLinear(1, 2, bias=False), LI(decay=1e-9)).double()
    with torch.no_grad():
        net.connection.weight.copy_(torch.tensor([[0.0], [2.0]]))
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0))
    x = torch.ones(3, 2, 1, dtype=torch.float64)
    y = torch.stack([torch.tensor([1, 1]), GONE, torch.tensor([NONE, 0])])
    right, wrong = (float(F.cross_entropy(torch.tensor([[0.0, 2.0]]).double(), torch.tensor([k]))) for k in (1, 0))
    by_hand = (right + wrong) / 2
    assert learner.evaluate(x, y, per_step_target=True).loss == pytest.approx(by_hand, rel=1e-8)
    assert bptt_gradients(net, x, y, per_step_target=True)["connection.weight"].norm() > 0
    result = learner.learn(x, y, per_step_target=True)
    assert result.loss == pytest.approx(by_hand, rel=1e-8)
    share = float(torch.softmax(torch.tensor([0.0, 2.0]).double(), 0)[1])
    gradient = ((share - 1) + share) / 2  # dL/do of output 1, mean over the two steps that count
    assert net.connection.weight[1].item() == pytest.approx(2.0 - gradient, rel=1e-8)


def test_a_stream_and_a_sequence_without_any_label_change_nothing() -> None:
    learner, recorder = learner_of(live_net(), OTTT())
    x = live_input(3, 2)
    learner.step(x[0], GONE)
    assert recorder.seen == []
    learner.step(x[1], SOME)
    assert len(recorder.seen) == 1
    learner.reset()
    result = learner.learn(x, GONE)
    assert (result.updates, result.accuracy, len(recorder.seen)) == (0, None, 1)
    assert result.loss != result.loss  # nothing was counted
    assert learner.evaluate(x, GONE).accuracy is None
    with pytest.raises(ValueError, match="no step of this sequence has a target"):
        bptt_gradients(learner.net, x, GONE)


def test_yardsticks_leave_the_same_steps_out() -> None:
    x, (missing, none) = live_input(4, 2), targets()
    net = live_net()
    mine, other = (bptt_gradients(net, x, y, per_step_target=True) for y in (missing, none))
    assert_same(mine, other, 1e-12)
    filled = bptt_gradients(net, x, missing.clamp(min=0), per_step_target=True)
    assert furthest(mine, filled) > 1e-3  # control: with labels there the gradient is another
    report = fidelity(net, (x, missing), [OTTT()], per_step_target=True, lengths=[1, 4])
    assert {row.claim for row in report.rows} == {"holds"}
    recurrent = nn.Sequential(ETBlock(ETRecurrent(6, 5), LIF()), nn.Linear(5, 3)).double()
    mine, other = (rtrl_gradients(recurrent, x, y, per_step_target=True) for y in (missing, none))
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, other[name])


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss, SequenceLoss(), SequenceLoss("squared_error")])
def test_a_loss_without_its_target_says_what_to_pass(loss: Any, unchecked: None) -> None:
    learner, _ = learner_of(live_net(), OTTT(), loss)
    x = live_input(3, 2)
    for y, got in ((None, r"no target \(y is None\)"), ([0, 1], "a list as target")):
        with pytest.raises(TypeError, match=rf"the loss .* was given {got}.*labels \[B\].*predict\(x\)"):
            learner.learn(x, y)
    with pytest.raises(TypeError, match="no target"):
        bptt_gradients(learner.net, x, None, loss)
    with pytest.raises(TypeError, match=r"per_step_target=True with y=None: .*\[T, B"):
        learner.learn(x, None, per_step_target=True)


def test_a_loss_that_needs_no_target_goes_on_without() -> None:
    learner, _ = learner_of(live_net(), OTTT(), lambda output, _: output.square().mean())
    assert learner.learn(live_input(3, 2), None).updates == 1


def test_errors_of_the_loss_itself_keep_their_words() -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise TypeError("mine")

    learner, _ = learner_of(live_net(), OTTT(), broken)
    with pytest.raises(TypeError, match=r"^mine"):
        learner.learn(live_input(3, 2), labels(2))


@pytest.mark.parametrize("lengths", [[True], [], 3, "4", [1.5], [None], [0], [5], [float("nan")]])
def test_lengths_that_are_none(lengths: Any, unchecked: None) -> None:
    net, x = live_net(), live_input(4, 2)
    with pytest.raises(ValueError, match=r"lengths=.*whole numbers from 1 to T, which is 4"):
        fidelity(net, (x, labels(2)), [OTTT()], lengths=lengths)


def test_arguments_of_fidelity_of_another_kind(unchecked: None) -> None:
    net, x = live_net(), live_input(4, 2)
    for rules in (None, "OTTT", 3):
        with pytest.raises(TypeError, match=r"rules=.*write rules=\[SLTT"):
            fidelity(net, (x, labels(2)), rules)  # type: ignore[arg-type]
    for batch in (None, x, 3, "xy"):
        with pytest.raises(ValueError, match=r"pass a pair \(x, y\)"):
            fidelity(net, batch, [OTTT()])  # type: ignore[arg-type]
