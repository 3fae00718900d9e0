"""What the learner says to input that does not fit: what it got, what it takes, what to write."""

import pytest
import torch
from nets import learner_of, live_input, live_net
from torch.nn import functional as F

from snnlearn import OTTT, Neuron, OnlineLearner, SequenceLoss


def learner(loss=F.cross_entropy) -> OnlineLearner:  # type: ignore[no-untyped-def]
    return learner_of(live_net(), OTTT(), loss)[0]


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_frames_that_are_no_tensors_or_of_another_dtype(unchecked: None) -> None:
    x, y = live_input(4, 6), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"is a ndarray: pass tensors; write torch\.as_tensor"):
        learner().learn(x.numpy(), y)
    for dtype in (torch.float32, torch.int64, torch.uint8):
        with pytest.raises(TypeError, match=rf"input is {dtype} and the network's parameters are torch\.float64"):
            learner().learn(x.to(dtype), y)
    assert learner().learn(x, y).updates == 1


def test_sequences_that_are_batch_first() -> None:
    x, y = live_input(4, 6), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ValueError, match="batch") as caught:
        learner().learn(x.transpose(0, 1), y)
    assert "time first: write x.transpose(0, 1)" in notes_of(caught.value)
    assert "[4, 3]" in notes_of(caught.value)


def test_labels_out_of_range_or_of_another_dtype(unchecked: None) -> None:
    x = live_input(4, 6)
    with pytest.raises(IndexError) as caught:
        learner().learn(x, torch.full((6,), 5))
    assert "Labels are int64, 0 to 2" in notes_of(caught.value)
    with pytest.raises(ValueError, match=r"labels run from 0 to 5 and the network has 3 outputs.*0 to 2"):
        learner(SequenceLoss()).learn(x, torch.arange(6))
    with pytest.raises(RuntimeError) as float_labels:
        learner().learn(x, torch.zeros(6, dtype=torch.int32))
    assert "y.long()" in notes_of(float_labels.value)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_learning_where_nothing_can_be_learned(context) -> None:  # type: ignore[no-untyped-def]
    x, y = live_input(4, 6), torch.zeros(6, dtype=torch.int64)
    taught = learner()
    with context():
        with pytest.raises(RuntimeError, match=r"learn\(\) was called inside no_grad"):
            taught.learn(x, y)
        with pytest.raises(RuntimeError, match=r"step\(\) was called inside no_grad"):
            taught.step(x[0], y)
    assert taught.evaluate(x, y).steps == 4


def test_a_step_that_forgets_its_state() -> None:
    class Forgetful(Neuron):
        state_names = ("v", "w")

        def step(self, y, state):  # type: ignore[no-untyped-def]
            return self.spike(y - 1)

    with pytest.raises(TypeError, match=r"Forgetful\.step returned Tensor.*return spike, \(v, w,\)"):
        Forgetful()(torch.zeros(1, 2))
