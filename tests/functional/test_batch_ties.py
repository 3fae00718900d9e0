"""The derivative of batch statistics against autograd's, in both directions."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.normed_step import step_behind_norm
from snnlearn.functional.synaptic import inputs_of
from snnlearn.functional.traced_step import GatedStep, LinearisedStep

TOLERANCE = {"rtol": 0.0, "atol": 1e-13}


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2)], ids=str)
def test_back_to_the_value_before_the_norm(shape: tuple[int, ...]) -> None:
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    z = F.batch_norm(y, None, None, training=True, eps=0.1)
    d = torch.randn_like(z)
    over = [k for k in range(z.dim()) if k != 1]
    scale = torch.rsqrt(y.var(over, correction=0, keepdim=True) + 0.1)
    (true,) = torch.autograd.grad(z, y, d)
    mine = scale * BatchTies(z.detach()).project(d)
    torch.testing.assert_close(mine.detach(), true, **TOLERANCE)
    assert float((scale * d - true).detach().norm()) > 0.1  # control: the ties are no small thing


def test_on_to_the_weights_before_the_norm() -> None:
    x, weight = torch.rand(5, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    norm = nn.BatchNorm1d(3, affine=False).double()
    jacobian = torch.autograd.functional.jacobian(lambda w: norm(x @ w.T), weight)  # [B, O, O', I]
    y = x @ weight.T
    own = torch.einsum("booi->boi", jacobian)
    mine = BatchTies(norm(y)).inputs(x) * torch.rsqrt(y.var(0, correction=0) + norm.eps)[:, None]
    torch.testing.assert_close(mine, own, **TOLERANCE)
    torch.testing.assert_close(jacobian.sum(2), own, **TOLERANCE)  # no other unit's weight reaches a unit


def test_what_is_refused() -> None:
    one = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"of shape \[2, 5, 4\] under a rule per synapse.*block\.norm\.eval\(\)"):
        inputs_of(torch.ones(2, 5, 4), BatchTies(torch.ones(2, 5, 3)))
    with pytest.raises(TypeError, match="pass a LinearisedStep"):
        step_behind_norm(GatedStep(one, one), one[0], (one,))


def test_the_step_behind_a_norm_by_hand() -> None:
    """Drive 2 and ds/dy' 3, factor 0.5, normalised value 4."""
    one = torch.ones(1, 1)
    step = LinearisedStep(one, Jacobian(one[None, None], 2 * one[None], one[None], 3 * one), ())
    normed = step_behind_norm(step, torch.tensor([0.5]), (4 * one, 1.0))
    assert isinstance(normed, LinearisedStep)
    assert (normed.jacobian.drive.item(), normed.spike_input.item()) == (1.0, 1.5)
    assert [(p.spike.item(), p.state.item()) for p in normed.parameters] == [(12.0, 8.0), (3.0, 2.0)]
    assert torch.equal(normed.jacobian.transition, step.jacobian.transition)
