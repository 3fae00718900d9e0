"""FPTT as an optimizer wrapper: hand numbers, what it reduces to, and what every optimizer has to be able to do."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import labels as nets_labels
from nets import live_input, live_net, weights
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import FPTT, SLTT, OnlineLearner

ALPHA, BETA, LR = 0.2, 0.5, 0.5
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def after(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: list[float]) -> list[float]:
    found = []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        found.append(float(weight.detach()))
    return found


def by_hand(weight: float, gradients: list[float], alpha: float, beta: float, sign: float = -1.0) -> list[float]:
    """The equations in plain numbers; `sign` of the multiplier in the gradient, -1 where it is right."""
    average, multiplier, found = weight, 0.0, []
    for gradient in gradients:
        weight -= LR * (gradient + alpha * (weight - average) + sign * multiplier)
        multiplier -= alpha * (weight - average)
        average = (1 - beta) * average + beta * weight - beta / alpha * multiplier
        found.append(weight)
    return found


def test_the_numbers_of_two_steps() -> None:
    """w 1, g 1: w = 0.5, m = 0.1, u = 0.75 - 0.25 = 0.5; then g 1 + 0.2 (0.5 - 0.5) - 0.1 = 0.9: w = 0.05."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = FPTT(torch.optim.SGD([weight], lr=LR), ALPHA, BETA)
    assert after(optimizer, weight, [1.0, 1.0]) == pytest.approx([0.5, 0.05], abs=1e-15)
    state = optimizer.state[weight]
    assert float(state["multiplier"]) == pytest.approx(0.1 + 0.2 * 0.45)
    assert float(state["average"]) == pytest.approx(0.5 * 0.5 + 0.5 * 0.05 - 2.5 * 0.19)


def test_many_steps_follow_the_equations_and_not_those_with_a_wrong_sign() -> None:
    gradients = torch.randn(12, dtype=torch.float64).tolist()
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    found = after(FPTT(torch.optim.SGD([weight], lr=LR), 0.7, 0.3), weight, gradients)
    assert found == pytest.approx(by_hand(1.0, gradients, 0.7, 0.3), abs=1e-12)
    assert found[0] == by_hand(1.0, gradients, 0.7, 0.3, sign=1.0)[0]
    assert abs(found[-1] - by_hand(1.0, gradients, 0.7, 0.3, sign=1.0)[-1]) > 0.1


def test_the_multiplier_tends_to_the_gradient_that_is_asked_for() -> None:
    """Minimised to the end at every step, the new multiplier is the loss's own gradient at the new weight."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average, multiplier = 0.3, 0.4
    for _ in range(400):
        weight.data -= 0.1 * (2 * (weight.data - 1) + ALPHA * (weight.data - average) - multiplier)
    optimizer = FPTT(torch.optim.SGD([weight], lr=0.0), ALPHA, BETA)
    values = {"average": average, "multiplier": multiplier}
    optimizer.state[weight] = {name: torch.full_like(weight.detach(), value) for name, value in values.items()}
    after(optimizer, weight, [0.0])
    assert float(optimizer.state[weight]["multiplier"]) == pytest.approx(float(2 * (weight.detach() - 1)), abs=1e-9)


def test_without_a_pull_it_is_plain_descent() -> None:
    """O23: the first step is the inner optimizer's whatever alpha is; with alpha -> 0 so is every step."""
    gradients = [0.3, -1.2, 0.7, 0.1]
    found: dict[float | None, list[float]] = {}
    for alpha in (None, 1e-12, ALPHA):
        weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        inner = torch.optim.SGD([weight], lr=LR)
        found[alpha] = after(inner if alpha is None else FPTT(inner, alpha, BETA), weight, gradients)
    assert found[1e-12] == pytest.approx(found[None], abs=1e-10)
    assert found[ALPHA][0] == found[None][0]
    assert abs(found[ALPHA][1] - found[None][1]) > 0.01


def test_maximising_is_minimising_the_negative() -> None:
    ends = []
    for sign, options in ((1.0, {}), (-1.0, {"maximize": True})):
        weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        optimizer = FPTT(torch.optim.SGD([weight], lr=LR, **options), ALPHA, BETA)  # type: ignore[arg-type]
        ends.append(after(optimizer, weight, [sign * g for g in (1.0, 0.5, -0.2)]))
    assert ends[0] == pytest.approx(ends[1], abs=1e-15)


def test_gradients_come_back_and_frozen_parameters_stay() -> None:
    moving, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = FPTT(torch.optim.SGD([moving, frozen], lr=LR))
    gradient = moving.grad = torch.ones(2)
    for _ in range(3):
        optimizer.step()
    assert moving.grad is gradient
    assert torch.equal(gradient, torch.ones(2))
    assert torch.equal(frozen.detach(), torch.ones(2))
    assert frozen not in optimizer.state


def test_a_closure_is_called_with_the_weights_of_its_time() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = FPTT(torch.optim.SGD([weight], lr=LR), ALPHA, BETA)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) == 1.0
    optimizer.step(closure)
    assert float(weight.detach()) == pytest.approx(0.05, abs=1e-15)


def test_begin_epoch_starts_from_the_average() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = FPTT(torch.optim.SGD([weight], lr=LR), ALPHA, BETA)
    optimizer.begin_epoch()
    after(optimizer, weight, [1.0, -1.0])
    average = optimizer.state[weight]["average"].clone()
    assert not torch.equal(weight.detach(), average)
    optimizer.begin_epoch()
    assert torch.equal(weight.detach(), average)


OPTIMIZERS: list[Any] = [
    pytest.param(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), id="sgd"),
    pytest.param(lambda ps: torch.optim.Adam(ps, lr=0.05), id="adam"),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_resume_goes_on_as_if_nothing_had_happened(make: Optimizer) -> None:
    start, gradients = torch.randn(3), torch.randn(8, 3)

    def run(split: int | None) -> Tensor:
        weight = nn.Parameter(start.clone())
        optimizer = FPTT(make([weight]))
        for number, gradient in enumerate(gradients):
            if number == split:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                weight = nn.Parameter(weight.detach().clone())
                optimizer = FPTT(make([weight]))
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            weight.grad = gradient.clone()
            optimizer.step()
        return weight.detach()

    assert torch.equal(run(None), run(4))


def test_the_state_of_a_bare_optimizer_is_refused() -> None:
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"load\s+it into fptt\.optimizer"):
        FPTT(torch.optim.SGD([weight], lr=0.1)).load_state_dict(torch.optim.SGD([weight], lr=0.1).state_dict())


def test_schedules_copies_and_new_groups() -> None:
    """A schedule sets the inner optimizer's rate, also after a resume; a copy is a whole one; groups reach both."""
    weight, late = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = FPTT(torch.optim.SGD([weight], lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    after(optimizer, weight, [1.0])
    scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    after(optimizer, weight, [1.0])
    scheduler.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.25
    optimizer.add_param_group({"params": [late], "lr": 0.125})
    assert len(optimizer.param_groups) == len(optimizer.optimizer.param_groups) == 2
    late.grad = torch.ones(1)
    optimizer.step()
    assert float(late.detach()) == 0.875
    twin = copy.deepcopy(optimizer)
    assert twin.param_groups is twin.optimizer.param_groups
    assert twin.alpha == optimizer.alpha
    (copied,) = twin.param_groups[0]["params"]
    copied.grad = torch.ones(1)
    before = weight.detach().clone()
    twin.step()
    assert torch.equal(weight.detach(), before)
    assert not torch.equal(copied.detach(), before)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"alpha": 0.0}, ValueError, "alpha=0.2"),
        ({"alpha": float("nan")}, ValueError, "alpha=0.2"),
        ({"beta": 1.5}, ValueError, "beta=0.5"),
        ({"optimizer": 3}, TypeError, r"FPTT\(torch\.optim\.SGD"),
    ],
)
def test_illegal_arguments_are_told(
    options: dict[str, Any], error: type[Exception], told: str, unchecked: None
) -> None:
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(error, match=told):
        FPTT(**{"optimizer": inner, **options})


def test_a_sparse_gradient_is_refused_before_anything_moves() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = FPTT(torch.optim.SGD(table.parameters(), lr=0.1))
    table(torch.tensor([1])).sum().backward()
    before = table.weight.detach().clone()
    with pytest.raises(TypeError, match="sparse=False"):
        optimizer.step()
    assert torch.equal(table.weight.detach(), before)


def test_a_learner_steps_it_at_every_step() -> None:
    """The same as a plain loop that follows the equations; and not the same as SGD."""
    net, x, y = live_net(), live_input(6, 4), nets_labels(4)
    start, ends = copy.deepcopy(net.state_dict()), {}
    for name in ("fptt", "sgd"):
        net.load_state_dict(start)
        inner = torch.optim.SGD(net.parameters(), lr=0.05)
        optimizer = FPTT(inner, ALPHA, BETA) if name == "fptt" else inner
        result = OnlineLearner(net, SLTT(), F.cross_entropy, optimizer, update=1).learn(x, y)
        assert result.updates == 6
        assert 0.02 < result.firing_rates["hidden"] < 0.9
        ends[name] = weights(net)
    net.load_state_dict(start)
    learner = OnlineLearner(net, SLTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0))
    learner.reset()
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    multiplier = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for x_t in x:
        net.zero_grad()
        F.cross_entropy(net(x_t), y).backward()
        with torch.no_grad():
            for name, p in net.named_parameters():
                assert p.grad is not None
                p -= 0.05 * (p.grad + ALPHA * (p - average[name]) - multiplier[name])
                multiplier[name] -= ALPHA * (p - average[name])
                average[name] = 0.5 * average[name] + 0.5 * p - 0.5 / ALPHA * multiplier[name]
    for name, value in weights(net).items():
        torch.testing.assert_close(ends["fptt"][name], value, rtol=1e-12, atol=1e-12)
        assert float((ends["fptt"][name] - ends["sgd"][name]).abs().max()) > 1e-4
