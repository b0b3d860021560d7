"""Gram matrices of a record's positions: the length of a product without the product.

|L R'|^2 = <L'L, R'R> (the ghost norm of Li et al., 2022). The inner product may cancel, so the
matrices are made of kernels that add few products, whose sums are added in float64
(docs/proofs/rounding.md#gram).
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import chunks
from noisewise.gradients.contractions.rounding import gamma

__all__ = ["Squares", "price", "squares"]

#: Positions times products of a float32 kernel, at most: it makes a length longer by half of a
#: thousandth where positions have nothing to do with each other.
_EXACT = 1 << 13
#: Kernels of fewer products are no faster than float64.
_LEAST = 64
#: What float64 costs, and float32 with its sums: measured, they only steer a choice.
_DOUBLE, _SINGLE = 2.0, 1.2

#: Squared lengths of records, the lengths of their products, and what rounding may have taken from
#: a square.
Squares = tuple[Tensor, Tensor, Tensor]


def _products(positions: int, dtype: torch.dtype) -> int | None:
    """How many products a float32 kernel adds; None: kernels are of float64."""
    products = _EXACT // max(positions, 1)
    return products if dtype == torch.float32 and products >= _LEAST else None


def price(positions: int, dtype: torch.dtype) -> float:
    """Of a Gram matrix, in multiplications of float32 for each number of the factor."""
    double = _products(positions, dtype) is None
    return (_DOUBLE if double else _SINGLE) * positions


def squares(left: Tensor, right: Tensor) -> Squares:
    """Of factors (records, groups, M, T) and (records, groups, N, T); all in float64."""
    (one, first, tiny), (other, second, _) = _gram(left), _gram(right)
    groups, positions = one.shape[1], one.shape[2]
    found = (one * other).flatten(1).sum(1)
    m, n = left.shape[2], right.shape[2]
    # What underflowed in a kernel may have hidden a position: so much it was at most.
    ends = one.diagonal(0, -2, -1) + m * tiny, other.diagonal(0, -2, -1) + n * tiny
    products = torch.linalg.vector_norm((ends[0] * ends[1]).sqrt().sum(-1), dim=1)
    products = products * (1 + first + second)
    # A factor that float32 cannot measure has no length here either: it could overflow
    # when it is scaled (#factors).
    longest = torch.maximum(*ends).flatten(1).amax(1)
    products = torch.where(longest < torch.finfo(left.dtype).max / 2, products, torch.inf)
    # An inner product of Gram matrices that cancels is known up to its rounding only.
    wide = gamma(2 * (m + n + groups * positions**2), torch.float64)
    known = (first + second + first * second + wide) * products.square()
    if tiny:
        sides = [end.sqrt().sum(-1).square().sum(1) for end in ends]
        known = known + 2 * tiny * (n * sides[0] + m * sides[1] + groups * positions**2)
    return found, products, known


def _gram(factor: Tensor) -> tuple[Tensor, float, float]:
    """The matrices in float64, and how wrong an entry may be.

    Relative to the lengths of its two positions, and for each product that underflowed.
    """
    records, groups, features, positions = factor.shape
    products = _products(positions, factor.dtype)
    if products is None:
        wide = factor.double()
        tiny = torch.finfo(wide.dtype).tiny if factor.dtype == wide.dtype else 0.0
        return wide.transpose(-1, -2) @ wide, 0.0, tiny
    total: Tensor | None = None
    flat = factor.flatten(0, 1)
    for a, b in chunks(features, products):
        part = flat[:, a:b]
        found = torch.bmm(part.transpose(1, 2), part)
        total = found.double() if total is None else total.add_(found)
    assert total is not None
    error = gamma(min(products, features), factor.dtype)
    tiny = torch.finfo(factor.dtype).tiny
    return total.view(records, groups, positions, positions), error, tiny
