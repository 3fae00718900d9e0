"""Hebbian learning of a subspace of inputs, and taking that subspace out of a gradient.

Rows H [n, D] learn to span the directions in which inputs x [N, D] vary most, by Oja's rule for several units,

    y = x H^T ,    dH = y^T (x - y H) / N

and x - x H^T H is what is left outside. A weight gradient is a sum of terms d (x) e, where e is an input or a trace of
inputs, so that with the projection Q = 1 - H^T H

    sum d (x) (e Q) = (sum d (x) e) Q    and    decay * (e Q) + x Q = (decay * e + x) Q :

projecting the gradient is projecting every trace, which is tracing projected inputs; also where the trace's decay
differs from unit to unit, since Q acts on the inputs alone. The layer's value stays as it is. Oja 1989,
doi:10.1142/S0129065789000475; Xiao et al. 2024, doi:10.48550/arXiv.2402.11984.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def remove_subspace(
    values: Float[Tensor, "*leading inputs"], rows: Float[Tensor, "components inputs"]
) -> Float[Tensor, "*leading inputs"]:
    """Return values - values H^T H for `values` [..., D] and `rows` H [n, D], n from 0 up.

    >>> remove_subspace(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([[0., 4.]])
    """
    return values - (values @ rows.T) @ rows


def hebbian_step(
    rows: Float[Tensor, "components inputs"], x: Float[Tensor, "samples inputs"], rate: float
) -> Float[Tensor, "components inputs"]:
    """Return H + rate * dH, dH divided by the mean squared length of x, so that `rate` in (0, 1] has no unit.

    `rows` H [n, D]; `x` [N, D]. Rows without any input stay as they are.

    >>> hebbian_step(torch.tensor([[0.5, 0.0]]), torch.tensor([[2.0, 0.0]]), rate=1.0)
    tensor([[0.8750, 0.0000]])
    """
    y = x @ rows.T
    length = x.square().sum()
    return rows + rate * (y.T @ (x - y @ rows)) / length if float(length) > 0 else rows


def orthonormal_rows(rows: Float[Tensor, "components inputs"]) -> Float[Tensor, "components inputs"]:
    """Return orthonormal rows that span the same space as `rows` [n, D], n at most D.

    >>> orthonormal_rows(torch.tensor([[2.0, 0.0]])).abs()
    tensor([[1., 0.]])
    """
    columns: Tensor = torch.linalg.qr(rows.T)[0]
    return columns.T.contiguous()


__all__ = ["hebbian_step", "orthonormal_rows", "remove_subspace"]
