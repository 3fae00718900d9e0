"""Surrogates: each derivative is that of its primitive, finite everywhere, and what backward and jvp use."""

import math

import pytest
import torch
from torch.func import jvp

from snnlearn.functional import SURROGATES, ArcTan, Constant, Spike, Surrogate

ALL = [cls() for cls in SURROGATES.values()]
IDS = list(SURROGATES)
POINTS = torch.tensor([-3.7, -0.61, -0.2, -0.013, 0.027, 0.17, 0.39, 1.3, 2.9], dtype=torch.float64)


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
def test_derivative_is_the_slope_of_the_primitive(surrogate: Surrogate) -> None:
    h = 1e-6
    slope = (surrogate.primitive(POINTS + h) - surrogate.primitive(POINTS - h)) / (2 * h)
    torch.testing.assert_close(surrogate.derivative(POINTS), slope, atol=1e-8, rtol=1e-7)
    assert surrogate.derivative(torch.zeros(1, dtype=torch.float64)).abs() > 0.1
    with pytest.raises(AssertionError):  # negative control: a derivative that is one percent off is seen
        torch.testing.assert_close(surrogate.derivative(POINTS) * 1.01, slope, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
def test_gradcheck_of_the_smooth_spike_backward_and_forward_mode(surrogate: Surrogate) -> None:
    u = POINTS.clone().requires_grad_()
    smooth = surrogate.smoothed()
    assert torch.autograd.gradcheck(lambda v: Spike.apply(v, smooth), (u,), check_forward_ad=True)


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_finite_for_every_input(surrogate: Surrogate, dtype: torch.dtype, device: torch.device) -> None:
    big = torch.finfo(dtype).max
    u = torch.tensor([-math.inf, -big, -1e30, -1.0, -1e-38, 0.0, 1e-38, 1.0, 1e30, big, math.inf], dtype=dtype)
    u = u.to(device).requires_grad_()
    spikes = surrogate(u)
    spikes.sum().backward()
    assert spikes.dtype == dtype
    assert spikes.detach().cpu().tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert u.grad is not None
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(surrogate.primitive(u.detach())).all()
    assert (surrogate.derivative(u.detach())[[0, -1]] == 0).all()


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
def test_spike_passes_the_derivative_both_ways(surrogate: Surrogate) -> None:
    u = POINTS.clone().requires_grad_()
    weight = torch.linspace(1, 2, len(POINTS), dtype=torch.float64)
    (weight * surrogate(u)).sum().backward()
    torch.testing.assert_close(u.grad, weight * surrogate.derivative(POINTS))
    _, tangent = jvp(surrogate, (POINTS,), (weight,))
    torch.testing.assert_close(tangent, weight * surrogate.derivative(POINTS))


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, c in SURROGATES.items() for f in c.__dataclass_fields__])
def test_every_width_matters_and_is_checked(name: str, field: str) -> None:
    cls = SURROGATES[name]
    base = cls()
    wider = cls(**{field: 1.5 * getattr(base, field)})
    assert not torch.allclose(base.derivative(POINTS), wider.derivative(POINTS))
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{field}=.*finite number above 0"):
            cls(**{field: bad})


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
def test_unit_area(surrogate: Surrogate) -> None:
    if type(surrogate).__name__ in ("FastSigmoid", "MultiGaussian"):
        pytest.skip("its published form is not normalised to area 1")
    wide = torch.tensor([-1e6, 1e6], dtype=torch.float64)
    low, high = surrogate.primitive(wide)
    assert abs(float(high - low) - 1.0) < 1e-5


def test_hand_values() -> None:
    u = torch.tensor([0.5], dtype=torch.float64)
    assert float(ArcTan().derivative(u)) == pytest.approx(1 / (1 + (math.pi * 0.5) ** 2), rel=1e-14)
    assert float(SURROGATES["sigmoid"]().derivative(u)) == pytest.approx(
        4 * math.exp(-2) / (1 + math.exp(-2)) ** 2, rel=1e-14
    )
    assert float(SURROGATES["triangle"]().derivative(u)) == 0.5
    assert float(SURROGATES["fast_sigmoid"]().derivative(u)) == pytest.approx(1 / 36, rel=1e-14)
    assert float(SURROGATES["gaussian"]().derivative(u)) == pytest.approx(
        math.exp(-0.5) / (0.5 * math.sqrt(2 * math.pi)), rel=1e-14
    )


@pytest.mark.parametrize("surrogate", ALL, ids=IDS)
def test_second_derivative_is_that_of_the_surrogate(surrogate: Surrogate) -> None:
    """create_graph=True is no silent zero: the derivative of psi itself arrives."""
    u = POINTS.clone().requires_grad_()
    (psi,) = torch.autograd.grad(surrogate(u).sum(), u, create_graph=True)
    second = torch.zeros_like(POINTS)  # a rectangle is flat, so its psi has no graph
    if psi.requires_grad:
        (second,) = torch.autograd.grad(psi.sum(), u)
    h = 1e-6
    slope = (surrogate.derivative(POINTS + h) - surrogate.derivative(POINTS - h)) / (2 * h)
    torch.testing.assert_close(second, slope, atol=1e-7, rtol=1e-6)


def test_probes_and_wrappers_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="finite"):
        Constant(math.inf)
    with pytest.raises(TypeError, match="derivative"):
        Surrogate().derivative(torch.zeros(1))
    with pytest.raises(TypeError, match="primitive"):
        Surrogate().primitive(torch.zeros(1))
