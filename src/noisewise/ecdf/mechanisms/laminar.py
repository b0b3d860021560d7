"""Exact sensitivities of tree noise: how cheaply a shift of the noise hides a change.

Eq. 6.3.1 of Barczewski (2025) adds to threshold i the noise of all nodes of a complete
tree above leaf i. One record changes the counts of a run of leaves by one. The
change is hidden by shifting the noise by any c whose path sums are the indicator v of that
run; here are the cheapest shifts, over all runs:

* l1, over integer c (:func:`least_l1`). The node-leaf matrix of a tree is a laminar
  family, hence totally unimodular, so no fractional shift is cheaper. For base 2: L for a
  run, ceil((L+1)/2) for a prefix (Lemma 6.3.1; the thesis's Theorem 6.3.1 uses L+1).
* squared l2, over real c (:func:`least_squares`): v' (Z Z')^-1 v, where Z Z' is diagonal in
  the Haar basis of the tree: contrasts between the children of a node of height s have
  eigenvalue lambda_s = (k^s - 1)/(k - 1), the constant vector has lambda_(L+1).

Proof: docs/proofs/curves.md#paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["LeastShift", "least_l1", "least_squares", "run_cost"]

Costs = tuple[int, ...]


@dataclass(frozen=True)
class LeastShift:
    """Cost of the dearest suffix and of the dearest run of leaves."""

    suffix: float
    interval: float


def _rise(costs: Costs, reach: int) -> Costs:
    """Cost by incoming offset of a node, from the cost by the offset that leaves it."""
    return tuple(
        min(abs(out - into) + costs[out + reach] for out in range(-reach, reach + 1))
        for into in range(-reach, reach + 1)
    )


def _add(*parts: Costs) -> Costs:
    return tuple(map(sum, zip(*parts, strict=True)))


@lru_cache(maxsize=256)
def least_l1(base: int, height: int) -> LeastShift:
    """Return the exact least l1 shifts of a tree with ``base ** height`` leaves.

    A subtree is summarised by its cost as a function of the sum of c above it. Runs that
    look alike share a summary, so the set of all summaries of a height stays small and the
    maxima are exact for every run at any height.

    Examples
    --------
    >>> least_l1(2, 10)
    LeastShift(suffix=6, interval=10)
    """
    # An offset beyond the two values 0 and 1 costs more on the way there and back; 3 is ample.
    reach = 3
    zero = tuple(abs(o) for o in range(-reach, reach + 1))
    one = tuple(abs(o - 1) for o in range(-reach, reach + 1))
    suffixes, inner = {one}, {one}
    for _ in range(height):
        new_suffixes = {one}
        new_inner = {one}
        for full in range(base):
            rest = [zero] * (base - 1 - full)
            for suffix in suffixes:
                new_suffixes.add(_rise(_add(suffix, *[one] * full, *rest), reach))
        for run in inner:
            new_inner.add(_rise(_add(run, *[zero] * (base - 1)), reach))
        # Prefixes mirror suffixes and the order of children does not matter to the cost.
        for full in range(base - 1):
            rest = [zero] * (base - 2 - full)
            for left in suffixes:
                for right in suffixes:
                    new_inner.add(_rise(_add(left, right, *[one] * full, *rest), reach))
        suffixes, inner = new_suffixes, new_inner | new_suffixes
    return LeastShift(
        suffix=max(costs[reach] for costs in suffixes),
        interval=max(costs[reach] for costs in inner),
    )


def run_cost(first: int, last: int, base: int, height: int, reach: int = 3) -> int:
    """Return the least l1 shift that hides leaves first..last (from 0), by direct recursion."""

    def cost(low: int, size: int) -> Costs:
        high = low + size - 1
        if last < low or first > high:
            return tuple(abs(o) for o in range(-reach, reach + 1))
        if first <= low and high <= last:
            return tuple(abs(o - 1) for o in range(-reach, reach + 1))
        child = size // base
        return _rise(_add(*(cost(low + j * child, child) for j in range(base))), reach)

    return cost(0, base**height)[reach]


def _eigenvalue(base: int, height: int) -> float:
    return (float(base) ** height - 1) / (base - 1)


def _contrasts(lengths: FloatArray, base: int, height: int) -> FloatArray:
    """Energy of prefixes of a node of this height in the contrasts inside it."""
    energy = np.zeros_like(lengths)
    for level in range(1, height + 1):
        child = float(base) ** (level - 1)
        inside = np.mod(lengths, child * base)
        full = np.floor(inside / child)
        partial = inside - full * child
        share = full * child + partial**2 / child - inside**2 / (base * child)
        energy += share / _eigenvalue(base, level)
    return energy


@lru_cache(maxsize=64)
def least_squares(base: int, height: int, tolerance: float = 1e-6) -> LeastShift:
    """Return upper bounds, tight to `tolerance`, of the least squared l2 shifts.

    A run splits at one node of height s into a suffix of length x, some full children and
    a prefix of length y. With T the length of the run and c the size of a child,
    ``Q = f(x) + f(y) + full c / lambda_s + kappa_s T^2`` with kappa_s < 0; the largest Q is
    found by branch and bound over blocks of (x, y).

    Examples
    --------
    >>> round(least_squares(2, 10).suffix, 2)
    1.79
    """
    leaves = base**height
    inverse = [np.inf, *(1 / _eigenvalue(base, level) for level in range(1, height + 2))]
    lengths = np.arange(leaves + 1, dtype=np.float64)
    suffix = _contrasts(lengths, base, height) + lengths**2 / leaves * inverse[height + 1]
    best = float(suffix.max())
    bound = best
    for split in range(height, 0, -1):
        child = base ** (split - 1)
        kappa = -sum(
            (inverse[level] - inverse[level + 1]) / float(base) ** level
            for level in range(split, height + 1)
        )
        part = np.arange(child + 1, dtype=np.float64)
        value = _contrasts(part, base, split - 1) + part**2 / child * inverse[split]
        for full in range(base - 1):
            found, upper = _largest_pair(
                value, full * child, full * child * inverse[split], kappa, best, tolerance
            )
            best, bound = max(best, found), max(bound, upper)
    return LeastShift(suffix=float(suffix.max()) * (1 + 1e-12), interval=bound * (1 + 1e-12))


def _largest_pair(
    value: FloatArray,
    offset: float,
    constant: float,
    kappa: float,
    best: float,
    tolerance: float,
) -> tuple[float, float]:
    """Largest value[x] + value[y] + constant + kappa (x + y + offset)^2: found, upper bound."""
    count = len(value)
    width = 1
    while count / width > 64:
        width *= 2
    blocks = np.arange(0, count, width)
    left, right = (index.ravel() for index in np.meshgrid(blocks, blocks))
    keep = left <= right
    left, right = left[keep], right[keep]
    upper = best
    while left.size:
        starts = np.arange(0, count, width)
        peak = np.maximum.reduceat(value, starts)
        where = np.array([start + int(value[start : start + width].argmax()) for start in starts])
        i, j = left // width, right // width
        bounds = peak[i] + peak[j] + constant + kappa * (left + right + offset) ** 2
        at = peak[i] + peak[j] + constant + kappa * (where[i] + where[j] + offset) ** 2
        best = max(best, float(at.max()))
        keep = bounds > best * (1 + tolerance)
        # What is dropped lies below this level, so it is a valid upper bound for it.
        upper = max(upper, best * (1 + tolerance))
        if width == 1 or not keep.any():
            break
        left, right = left[keep], right[keep]
        width //= 2
        halves_left = np.repeat([left, left + width, left, left + width], 1, axis=0).ravel()
        halves_right = np.repeat([right, right, right + width, right + width], 1, axis=0).ravel()
        inside = (halves_left < count) & (halves_right < count)
        left, right = halves_left[inside], halves_right[inside]
    return best, upper
