"""Is BPTT the right yardstick? The surrogate gradient against slopes of the loss that the network really has.

BPTT replaces the derivative of a spike by a surrogate, so it differentiates a loss that no forward pass computes. The
loss L(w) that is computed is flat but for jumps. Averaged over small Gaussian changes of the weights it has a gradient,
which finite differences estimate without bias. With w = w_0 + sigma S e, e standard normal and S diagonal (the root
mean square of each parameter, so that every tensor is moved by the same share of itself),

    L_sigma(w_0) = E_e L(w_0 + sigma S e)         G = S grad L_sigma(w_0) = E_e [ e * d(e) ]
    d(e) = (L(w_0 + sigma S e) - L(w_0 - sigma S e)) / (2 sigma)

by Stein's identity, E[e f(e)] = E[grad f(e)]; the two signs have the same expectation, and their difference drops
every even order of L (antithetic pairs; Nesterov and Spokoiny 2017, doi:10.1007/s10208-015-9296-2).

Let u_p be the unit vector along the surrogate gradient of parameter p (times S), and a_p = u_p . e_p. Least squares of
d on all a_p gives the components of G along the surrogate gradients,

    d = sum_p slope_p a_p + r            slope_p = u_p . G_p         BPTT predicts slope_p = |S g_p|

What is left of G_p is orthogonal to u_p. Its square, Q_p, is estimated without bias from pairs of different samples,

    v_i = r_i (e_i - a_i u)_p            Q_p = sum_{i != j} v_i . v_j / (N (N - 1))
    cosine_p = slope_p / sqrt(slope_p^2 + Q_p)

and so for the network, with sums over p. Where BPTT is right d has no remainder, so nothing is left to be noise.
Standard errors are the jackknife's of (slope, Q), carried to the cosine by its derivatives.

As a check of the machinery the spikes of a copy are replaced by the primitive of their surrogate, P with P' = psi, and
resets are attached: that network's loss is smooth, BPTT is its true gradient and has to equal finite differences.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.engine.fidelity import Pace, log
from snnlearn.engine.losses import LossRun, StepLoss
from snnlearn.engine.oracle import bptt_gradients
from snnlearn.engine.sequence import Meter, steps_of
from snnlearn.engine.surrogate_report import BiasRow, SurrogateBiasReport
from snnlearn.engine.yardsticks import Problem, working_copy
from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.functional.surrogates import Surrogate
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.state import reset

CHECK_DIRECTIONS, CHECK_SIGMA = 8, 1e-5
"""Directions, and the size of the step along them, of the check on the smoothed network."""


def surrogate_bias(
    net: nn.Module,
    batch: Sequence[Any],
    loss: StepLoss = F.cross_entropy,
    *,
    per_step_target: bool = False,
    pairs: int = 256,
    sigma: float = 0.05,
    dtype: torch.dtype | None = torch.float64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SurrogateBiasReport:
    """Compare BPTT's surrogate gradient with the slopes of the spiking loss, averaged over small weight changes.

    Equations at the head of this module. `batch`, `loss`, `per_step_target`, `dtype`, `seed` and `progress` as for
    `fidelity`; `pairs` of forward passes, each with all parameters changed at once by a share `sigma` of each one's
    root mean square. The more parameters, the more pairs a figure takes: its standard error says whether it was
    resolved. A cosine below 1 by more than that means that BPTT points elsewhere than the loss goes. `net` is left as
    it was.

    Raises ValueError for a wrong argument, or fewer pairs than four per parameter tensor.

    >>> from snnlearn import LI, ETBlock, ETLinear
    >>> net = nn.Sequential(ETBlock(ETLinear(3, 2), LI()))
    >>> report = surrogate_bias(net, (torch.ones(4, 2, 3), torch.tensor([0, 1])), pairs=16, sigma=1e-4)
    >>> round(report.total.cosine, 4), round(report.total.slope_ratio, 4)  # no spike, so no surrogate and no bias
    (1.0, 1.0)
    """
    problem = Problem(net, batch, loss, per_step_target, dtype, seed)
    if not problem.learned:
        raise ValueError("no parameter of this network requires a gradient, so there is none to compare")
    _check_arguments(pairs, sigma, len(problem.learned))
    gradients = _surrogate_gradients(problem, problem.net)
    walk = _Walk(problem, problem.net, gradients)
    rates = walk.rates()
    samples = walk.sample(pairs, sigma, Pace(pairs, progress or log.info))
    rows, total = _figures(walk, samples)
    error, remark = _check_machinery(problem)
    return SurrogateBiasReport(tuple(rows), total, pairs, sigma, error, remark, rates)


def _check_arguments(pairs: int, sigma: float, tensors: int) -> None:
    if not is_whole(pairs, 4 * tensors):
        raise ValueError(
            f"pairs={pairs} for {tensors} parameter tensors: each takes a regression of its own, so at least "
            f"{4 * tensors} are needed; write pairs={max(256, 4 * tensors)}"
        )
    if not (is_number(sigma) and sigma > 0):
        raise ValueError(f"sigma={sigma!r}: the share by which weights are changed is above 0; write sigma=0.05")


def _surrogate_gradients(problem: Problem, net: nn.Module) -> dict[str, Tensor]:
    with problem.drawing():
        return bptt_gradients(net, problem.x, problem.y, problem.loss, per_step_target=problem.per_step_target)


def sequence_loss(problem: Problem, net: nn.Module) -> float:
    """Return the mean loss over the counted steps of `problem`, from fresh state and with its random numbers.

    >>> problem = Problem(nn.Linear(2, 1), (torch.ones(3, 4, 2), None), lambda output, _: 0 * output.sum(), False, None)
    >>> sequence_loss(problem, problem.net)
    0.0
    """
    reset(net)
    with problem.drawing(), torch.no_grad():
        run = LossRun(problem.loss, problem.steps, False)
        found = [run.step(net(x_t), y_t) for x_t, y_t in steps_of(problem.x, problem.y, problem.per_step_target)]
    counted = [float(loss) for loss in found if loss is not None]
    reset(net)
    return sum(counted) / len(counted)


class _Walk:
    """Steps from the weights of `net` along random directions, in units of each tensor's root mean square."""

    def __init__(self, problem: Problem, net: nn.Module, gradients: dict[str, Tensor]) -> None:
        self.problem, self.net = problem, net
        self.parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self.kept = {name: p.detach().clone() for name, p in self.parameters.items()}
        sizes = {name: float(p.double().square().mean().sqrt()) for name, p in self.kept.items()}
        others = sorted(size for size in sizes.values() if size > 0) or [1.0]
        self.scales = {name: size or others[len(others) // 2] for name, size in sizes.items()}  # zeros: a usual size
        scaled = {name: self.scales[name] * gradients[name].detach().double() for name in self.parameters}
        self.sizes = {name: float(gradient.norm()) for name, gradient in scaled.items()}
        self.units = {name: gradient / (self.sizes[name] or 1.0) for name, gradient in scaled.items()}

    def rates(self) -> dict[str, float]:
        """Return spikes per unit and step by block at the network's own weights."""
        with Meter(self.net) as meter:
            sequence_loss(self.problem, self.net)
        return meter.firing_rates()

    def directions(self, count: int) -> Iterator[dict[str, Tensor]]:
        """Yield `count` standard normal directions, the same at every call."""
        generator = torch.Generator().manual_seed(self.problem.seed)
        for _ in range(count):
            yield {
                name: torch.randn(p.shape, dtype=torch.float64, generator=generator).to(p.device)
                for name, p in self.kept.items()
            }

    def along(self, direction: dict[str, Tensor]) -> Tensor:
        """Return a_p, the components of a direction along the surrogate gradients [P]."""
        return torch.tensor([float((direction[name] * unit).sum()) for name, unit in self.units.items()]).double()

    def slope(self, direction: dict[str, Tensor], sigma: float) -> float:
        """Return the central difference of the loss along a direction, and put the weights back."""
        values = []
        try:
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    for name, p in self.parameters.items():
                        p.copy_(self.kept[name] + (sign * sigma * self.scales[name] * direction[name]).to(p.dtype))
                values.append(sequence_loss(self.problem, self.net))
        finally:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    p.copy_(self.kept[name])
        return (values[0] - values[1]) / (2 * sigma)

    def sample(self, pairs: int, sigma: float, pace: Pace) -> tuple[Tensor, Tensor]:
        """Return d [N] and a [N, P] of `pairs` directions."""
        slopes, along = [], []
        for number, direction in enumerate(self.directions(pairs), 1):
            slopes.append(self.slope(direction, sigma))
            along.append(self.along(direction))
            pace.done(1, f"surrogate bias: {number} of {pairs} pairs")
        return torch.tensor(slopes, dtype=torch.float64), torch.stack(along)


def _figures(walk: _Walk, samples: tuple[Tensor, Tensor]) -> tuple[list[BiasRow], BiasRow]:
    """Return a row per parameter, and one for all together."""
    d, a = samples
    names = list(walk.parameters)
    sizes = torch.tensor([walk.sizes[name] for name in names], dtype=torch.float64)
    slope, slopes, r = _regress(d, a, sizes > 0)
    rest, rests = _orthogonal(walk, names, a, r)
    rows = [
        BiasRow.of(name, sizes[p : p + 1], slope[p : p + 1], rest[p : p + 1], slopes[:, p : p + 1], rests[:, p : p + 1])
        for p, name in enumerate(names)
    ]
    return rows, BiasRow.of("all together", sizes, slope, rest, slopes, rests)


def _regress(d: Tensor, a: Tensor, used: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slopes [P], those without each sample in turn [N, P], and the residuals of d [N]."""
    n, p = a.shape
    slope, slopes = a.new_zeros(p), a.new_zeros(n, p)
    if not bool(used.any()):
        return slope, slopes, d
    part = a[:, used]
    inverse = torch.linalg.inv(part.T @ part)
    found = inverse @ (part.T @ d)
    r = d - part @ found
    leverage = ((part @ inverse) * part).sum(1)
    slope[used] = found
    slopes[:, used] = found - (part @ inverse) * (r / (1 - leverage))[:, None]
    return slope, slopes, r * n / (n - part.shape[1])  # the fit has taken its share of the residuals


def _orthogonal(walk: _Walk, names: list[str], a: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q [P] and Q without each sample in turn [N, P]; the directions are drawn again instead of kept."""
    n = len(r)

    def parts(number: int, direction: dict[str, Tensor]) -> list[Tensor]:
        across = [direction[name] - a[number, p].to(direction[name].device) * walk.units[name] for p, name in pairs]
        return [float(r[number]) * values for values in across]

    pairs = list(enumerate(names))
    sums = [torch.zeros_like(walk.units[name]) for name in names]
    for number, direction in enumerate(walk.directions(n)):
        for p, part in enumerate(parts(number, direction)):
            sums[p] += part
    squares, products = a.new_zeros(n, len(names)), a.new_zeros(n, len(names))
    for number, direction in enumerate(walk.directions(n)):
        for p, part in enumerate(parts(number, direction)):
            squares[number, p], products[number, p] = float(part.square().sum()), float((part * sums[p]).sum())
    whole = torch.tensor([float(total.square().sum()) for total in sums], dtype=torch.float64)
    together = squares.sum(0)
    rest = (whole - together) / (n * (n - 1))
    rests = (whole - 2 * products + squares - (together - squares)) / ((n - 1) * (n - 2))
    return rest, rests


def _check_machinery(problem: Problem) -> tuple[float | None, str]:
    """Return the relative error of BPTT against finite differences on the smoothed network, or None and why not."""
    net = working_copy(problem.net, torch.float64)
    for name, neuron in net.named_modules():
        if isinstance(neuron, Neuron):
            if neuron.spiking and type(neuron.surrogate).primitive is Surrogate.primitive:
                return None, f"{type(neuron.surrogate).__name__} of {name or 'the network'} has no primitive(u)"
            neuron.surrogate = neuron.surrogate if neuron.surrogate.smooth else neuron.surrogate.smoothed()
            if hasattr(neuron, "detach_reset"):
                neuron.detach_reset = False
    double = Problem(net, (problem.x, problem.y), problem.loss, problem.per_step_target, torch.float64, problem.seed)
    walk = _Walk(double, double.net, _surrogate_gradients(double, double.net))
    d, a = walk.sample(CHECK_DIRECTIONS, CHECK_SIGMA, Pace(CHECK_DIRECTIONS, lambda _: None))
    predicted = a @ torch.tensor(list(walk.sizes.values()), dtype=torch.float64)
    if float(d.norm()) == 0:
        return None, "the smoothed loss does not move at all"
    return float((d - predicted).norm() / d.norm()), ""


__all__ = ["sequence_loss", "surrogate_bias"]
