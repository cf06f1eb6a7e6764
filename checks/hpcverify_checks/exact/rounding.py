"""
What rounding explains of a sum of products, and what it does not.

Computed in any order, with any tiles, a sum of k products is within k eps of the sum of their
magnitudes from the exact one (Higham, Accuracy and Stability of Numerical Algorithms, 3.1; half
of that where each step rounds to nearest). So two sums that are further apart than twice
that are no matter of order, and one that is further from the exact sum is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import view_integers

if TYPE_CHECKING:
    from torch import Tensor


Bounds = tuple[Fraction, Fraction]


def find_share(a: Tensor, out: Tensor) -> float:
    """Find k eps for products of *a* into *out*: 0 of integers, which are not rounded."""
    import torch

    return a.shape[1] * torch.finfo(out.dtype).eps if out.is_floating_point() else 0.0


def is_of_order(a: Tensor, b: Tensor, found: Tensor, reference: Tensor) -> bool:
    """Whether another order of its sums may make of *reference*, A x B, what was *found*."""
    import torch

    narrow = found.is_floating_point() and found.element_size() < torch.float64.itemsize
    wide = torch.float32 if narrow else torch.float64
    rows = (view_integers(found) != view_integers(reference)).any(dim=1)
    magnitudes = a[rows].to(wide).abs() @ b.to(wide).abs()
    apart = (found[rows].to(wide) - reference[rows].to(wide)).abs()
    return bool((apart <= 2 * find_share(a, found) * magnitudes).all())


def list_apart(products: Sequence[Tensor], count: int) -> list[tuple[int, int]]:
    """List the *count* places, rows and columns, in which *products* are furthest apart."""
    import torch

    if len(products) < 2:  # noqa: PLR2004 - nothing to compare
        return []

    stack = torch.stack([product.double().nan_to_num(math.inf) for product in products])
    apart = (stack.amax(dim=0) - stack.amin(dim=0)).nan_to_num(math.inf)
    places = apart.flatten().topk(count).indices.tolist()
    return [divmod(place, apart.shape[1]) for place in places if apart.flatten()[place]]


def enclose_sum(row: list[float], column: list[float], share: float) -> Bounds:
    """Enclose the sum of products of *row* and *column*, by integers: it may be off by *share*."""
    products = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
    exact, room = sum(products), Fraction(share) * sum(map(abs, products))
    return exact - room, exact + room
