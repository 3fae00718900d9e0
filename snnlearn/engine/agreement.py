"""How close one gradient is to another: cosine, relative error, norm ratio, and when there is nothing to compare.

For a gradient g and its reference b,

    cosine = <g, b> / (|g| |b|)      error = |g - b| / |b|      norm ratio = |g| / |b|

all of which follow from four sums, so the figures of several parameters together follow from the sums of theirs.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SILENT = 0.001
"""Spikes per unit and step below which a layer is called silent."""

SATURATED = 0.8
"""Spikes per unit and step above which a layer is called saturated."""

NO_GRADIENT = 64
"""A gradient below this many roundings of the network's largest one is no gradient but its rounding error."""

BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative error up to which two computations of the same gradient count as equal, by precision.

Forward passes of the two are the same operations on the same numbers, so no spike differs; what differs is the order in
which T * B products are summed. With unit roundoff u that is about u * sqrt(T * B) relative to the root of the
summands' squares (Higham 2002, doi:10.1137/1.9780898718027, section 4.2), and cancellation between them multiplies it.
For float32, u = 6e-8: with 10^4 summands 6e-6, so 1e-4 leaves a cancellation of 16; float64 leaves 10^5. A lower
precision has no bound here, since its rounding is as large as what is looked for.
"""


@dataclass(frozen=True)
class Agreement:
    """Sums over the entries of a gradient g and of its reference b: g*b, g*g, b*b and (g-b)*(g-b).

    Add two of them for the parameters together.

    >>> same = Agreement(4.0, 4.0, 4.0, 0.0)
    >>> same.cosine, same.error, same.norm_ratio
    (1.0, 0.0, 1.0)
    >>> (same + Agreement(0.0, 0.0, 12.0, 12.0)).cosine
    0.5
    """

    inner: float
    square: float
    reference_square: float
    difference_square: float

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.inner + other.inner,
            self.square + other.square,
            self.reference_square + other.reference_square,
            self.difference_square + other.difference_square,
        )

    @property
    def norm(self) -> float:
        """|g|."""
        return math.sqrt(self.square)

    @property
    def reference_norm(self) -> float:
        """|b|."""
        return math.sqrt(self.reference_square)

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between g and b; None where one of them is zero."""
        size = self.norm * self.reference_norm
        return None if size == 0 else max(-1.0, min(1.0, self.inner / size))

    @property
    def error(self) -> float | None:
        """|g - b| / |b|; None where both are zero, infinite where b alone is."""
        return _ratio(math.sqrt(self.difference_square), self.reference_norm)

    @property
    def norm_ratio(self) -> float | None:
        """|g| / |b|; None where both are zero, infinite where b alone is."""
        return _ratio(self.norm, self.reference_norm)

    @property
    def missing(self) -> str:
        """Which of the two is zero, in words; empty where neither is."""
        if self.square == 0 and self.reference_square == 0:
            return "no gradient"
        if self.square == 0:
            return "no gradient from the rule"
        return "no gradient from BPTT" if self.reference_square == 0 else ""


def _ratio(part: float, whole: float) -> float | None:
    if whole > 0:
        return part / whole
    return math.inf if part > 0 else None


def compare(gradient: Float[Tensor, "*shape"], reference: Float[Tensor, "*shape"], floor: float = 0.0) -> Agreement:
    """Return the agreement of `gradient` with `reference`, both of one shape.

    One whose norm is at most `floor` counts as zero. Sums are taken in float64.

    >>> compare(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])).error
    1.25
    >>> compare(torch.tensor([1e-20]), torch.tensor([1e-20]), floor=1e-12).missing
    'no gradient'
    """
    g, b = (values.detach().double().flatten() for values in (gradient, reference))
    g = torch.zeros_like(g) if float(g.norm()) <= floor else g
    b = torch.zeros_like(b) if float(b.norm()) <= floor else b
    difference = g - b
    return Agreement(float(g @ b), float(g @ g), float(b @ b), float(difference @ difference))


def gradient_floor(*gradients: dict[str, Tensor]) -> float:
    """Return the norm below which a gradient of this network is rounding: `NO_GRADIENT` units of the largest norm.

    At most a ten-thousandth of it, however low the precision.

    >>> gradient_floor({}), gradient_floor({"w": torch.ones(1)}) < 1e-5
    (0.0, True)
    """
    tensors = [tensor for named in gradients for tensor in named.values()]
    return max(
        (min(NO_GRADIENT * torch.finfo(t.dtype).eps, 1e-4) * float(t.detach().double().norm()) for t in tensors),
        default=0.0,
    )


def rate_remark(rate: float | None) -> str:
    """Return why a layer that fires at `rate` (spikes per unit and step; None: no spikes) shows little; empty if not.

    >>> rate_remark(0.0), rate_remark(0.2)
    ('silent: 0.00 % of steps', '')
    """
    if rate is None or SILENT <= rate <= SATURATED:
        return ""
    return f"{'silent' if rate < SILENT else 'saturated'}: {100 * rate:.2f} % of steps"


__all__ = [
    "BOUNDS",
    "NO_GRADIENT",
    "SATURATED",
    "SILENT",
    "Agreement",
    "compare",
    "gradient_floor",
    "rate_remark",
]
