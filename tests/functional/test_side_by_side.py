"""Inputs that stand side by side against the same inputs joined."""

import pytest
import torch

from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.weighted_map import rows_of


@pytest.mark.parametrize("has_one", [False, True])
@pytest.mark.parametrize("widths", [(3,), (3, 2), (1, 4, 2)])
def test_the_sum_of_products_is_that_of_the_joined_inputs(widths: tuple[int, ...], has_one: bool) -> None:
    torch.manual_seed(0)
    beside = SideBySide(tuple(torch.randn(5, 2, width, dtype=torch.float64) for width in widths), has_one)
    d = torch.randn(5, 2, 4, dtype=torch.float64)
    found = beside.summed_products(d, lambda d, part: rows_of(d).T @ rows_of(part))
    expected = torch.einsum("kbo,kbi->oi", d, beside.joined())
    assert beside.shape == (5, 2, sum(widths) + has_one)
    assert beside.joined().shape == beside.shape
    assert float(expected.norm()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    without = beside._replace(has_one=False).joined()
    assert beside.joined().shape != without.shape if has_one else torch.equal(beside.joined(), without)


def test_a_part_that_stands_alone_is_no_copy() -> None:
    x = torch.zeros(2, 3)
    assert SideBySide((x,)).joined() is x
