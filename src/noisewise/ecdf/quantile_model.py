"""Which mechanism for quantiles: what each one misses on public shapes, by public numbers.

The table says by how many records ranks are wrong, times epsilon, on average over records of six
shapes with bounds that fit and bounds that are a million times too wide. It depends on how many
quantiles there are and on the number of records times epsilon, hardly on these two apart. It is
printed by ``python -m benchmarks.quantile_model``; no records of any user are in it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

__all__ = ["MANY", "MECHANISMS", "SIZES", "Way", "best", "expected", "needs_size"]

Way = Literal["exponential", "search", "curve"]
MECHANISMS: tuple[Way, ...] = ("exponential", "search", "curve")
#: Numbers of quantiles: the columns of the table.
MANY = (1, 3, 9, 40)
#: Numbers of records times epsilon: its rows.
SIZES = (10, 100, 1000)
MISSED: dict[Way, tuple[tuple[float, ...], ...]] = {
    "exponential": (
        (1.2, 2.2, 2.2, 2.4),
        (1.4, 3.7, 9.9, 12.0),
        (1.1, 2.3, 6.2, 13.0),
    ),
    "search": (
        (3.6, 4.0, 3.6, 3.2),
        (13.0, 12.0, 12.0, 9.7),
        (4.9, 8.3, 27.0, 41.0),
    ),
    "curve": (
        (5.0, 3.6, 5.0, 4.8),
        (32.0, 23.0, 25.0, 23.0),
        (260.0, 220.0, 190.0, 170.0),
    ),
}
#: Of the curve in the table.
BINS = 2**15
#: A mechanism that may be used everywhere must promise so much less than the first.
CLEARLY = 0.9


def expected(way: Way, many: int, size: float, bins: int = BINS) -> float:
    """Return how many records ranks miss, times epsilon, between the entries of the table.

    Parameters
    ----------
    way : str
    many : int
        Quantiles.
    size : float
        Records times epsilon.
    bins : int
        Of a curve: with few, records that are spread evenly over all of them miss a quarter of one.
    """
    (low, high, share), (left, right, part) = _between(SIZES, size), _between(MANY, many)
    rows = MISSED[way]

    def along(row: Sequence[float]) -> float:
        return (1 - part) * math.log(row[left]) + part * math.log(row[right])

    missed = math.exp((1 - share) * along(rows[low]) + share * along(rows[high]))
    return missed if way != "curve" else missed + max(0.0, size / (4 * bins) - size / (4 * BINS))


def best(many: int, size: float, among: Iterable[Way], bins: int = BINS) -> Way:
    """Return the mechanism that misses least; the first one if no other does by far."""
    first, *others = among
    least = min(others, key=lambda way: expected(way, many, size, bins), default=first)
    limit = CLEARLY * expected(first, many, size, bins)
    return least if expected(least, many, size, bins) < limit else first


def needs_size(many: int, among: Sequence[Way], bins: int = BINS) -> bool:
    """Whether the number of records decides."""
    return len({best(many, size, among, bins) for size in SIZES}) > 1


def _between(marks: Sequence[int], value: float) -> tuple[int, int, float]:
    """Return two neighbouring marks, and how far between them a value is, in logarithms."""
    high = min(max(bisect_right(marks, value), 1), len(marks) - 1)
    low = high - 1
    value = min(max(value, marks[0]), marks[-1])
    return low, high, math.log(value / marks[low]) / math.log(marks[high] / marks[low])
