"""How an engine finds the bin of a value: arithmetic that gives the same bin as the local search.

An engine cannot search in an array of thresholds, but it can calculate. Which calculation is right
for a grid is decided here, before any record is read:

* "scaled": ``ceil((x - a) * s) - 1`` (or ``floor`` where bins are closed below), if it is right at
  every threshold and at the next double beyond it. Subtraction, multiplication, division and
  rounding up or down are monotone also when their results are rounded, so that what is right at
  these points is right everywhere.
* "stepped": the same, then one step down or up by comparison with the thresholds next to it, which
  the engine computes with the operations, in the order, by which :class:`Grid` made them. That
  these give the same doubles is checked here for every threshold, and that the calculation puts
  each threshold into one of the two bins beside it: then, as it is monotone, one step is enough.
* "searched": nested comparisons, for grids that no formula describes, of up to
  :data:`MOST_SEARCHED` bins.

That an engine computes as IEEE 754 says is not assumed: it also returns the least and the
largest value of every bin, and bins whose values are not all inside are refused
(:mod:`noisewise.ecdf.sources.pushed`).

Proof: docs/proofs/curves.md#engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray

__all__ = ["MOST_SEARCHED", "Placement"]

#: Nested comparisons of more bins than this would be a query of megabytes.
MOST_SEARCHED = 1 << 12

Kind = Literal["scaled", "divided", "stepped", "searched"]


@dataclass(frozen=True, eq=False)
class Placement:
    """A grid as an engine sees it, always in the order of the values themselves.

    Parameters
    ----------
    kind : str
        "scaled" (multiplied by bins / range), "divided" (by the range, times bins), "stepped" or
        "searched".
    edges : array
        Increasing, in the order of the column's values.
    closed : {"above", "below"}
        Which end belongs to a bin. "below": the grid is one of negated values, so that its bins
        are counted from the last one.
    """

    kind: Kind
    edges: FloatArray
    closed: Literal["above", "below"]

    @classmethod
    def of(cls, grid: Grid, *, negated: bool = False) -> Placement:
        """Return the cheapest way that is proven right for a grid (of negated values).

        Examples
        --------
        >>> Placement.of(Grid.of((0, 1), 1024)).kind, Placement.of(Grid.of((0, 120), 1000)).kind
        ('scaled', 'stepped')
        """
        edges = -grid.edges[::-1] + 0.0 if negated else grid.edges
        closed: Literal["above", "below"] = "below" if negated else "above"
        for candidate in (cls("scaled", edges, closed), cls("divided", edges, closed)):
            if candidate.is_right_at_thresholds():
                return candidate
        stepped = cls("stepped", edges, closed)
        if stepped._is_a_step_away() and stepped.is_right_at_thresholds():
            return stepped
        if grid.bins > MOST_SEARCHED:
            raise ValueError(
                f"these {grid.bins} thresholds are not evenly spaced, and an engine can only be "
                f"asked about {MOST_SEARCHED} such bins: use fewer, or bins of equal width"
            )
        return cls("searched", edges, closed)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return int(self.edges.size) - 1

    @property
    def lower(self) -> float:
        """Least value; smaller ones are moved to it."""
        return float(self.edges[0])

    @property
    def upper(self) -> float:
        """Largest value."""
        return float(self.edges[-1])

    @property
    def range(self) -> float:
        """From the least to the largest value."""
        return self.upper - self.lower

    def edge(self, number: FloatArray) -> FloatArray:
        """Return thresholds by the formula of an even grid, operation by operation."""
        return self.lower + self.range * (number / self.bins)

    def position(self, inside: FloatArray) -> FloatArray:
        """Return where values lie in units of bins, rounded."""
        if self.kind == "divided":
            return (inside - self.lower) / self.range * self.bins
        return (inside - self.lower) * (self.bins / self.range)

    def place(self, inside: FloatArray) -> FloatArray:
        """Return the bin of values within the bounds, as an engine computes it."""
        below, last = self.closed == "below", float(self.bins - 1)
        if self.kind == "searched":
            side: Literal["left", "right"] = "right" if below else "left"
            return np.searchsorted(self.edges[1:-1], inside, side=side).astype(np.float64)
        position = self.position(inside)
        if self.kind != "stepped":
            found = np.floor(position) if below else np.ceil(position) - 1.0
            return np.clip(found, 0.0, last)
        found = np.clip(np.floor(position), 0.0, last)
        start = self.edge(found)
        low = inside < start if below else inside <= start
        found = np.where(low & (found > 0.0), found - 1.0, found)
        end = self.edge(found + 1.0)
        high = inside >= end if below else inside > end
        return np.where(high & (found < last), found + 1.0, found)

    def is_right_at_thresholds(self) -> bool:
        """Whether all thresholds and the doubles next to them get their bins."""
        points, last = self.edges[1:-1], self.bins - 1
        numbers = np.arange(points.size)
        beyond = -np.inf if self.closed == "below" else np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            own, next_ = self.place(points), self.place(np.nextafter(points, beyond))
            ends = self.place(self.edges[[0, -1]])
        # Closed above: a threshold ends its bin and the next double starts another one.
        first, second = (numbers + 1, numbers) if self.closed == "below" else (numbers, numbers + 1)
        right = np.array_equal(own, first) and np.array_equal(next_, second)
        return bool(right and ends[0] == 0 and ends[1] == last)

    def _is_a_step_away(self) -> bool:
        """Whether the formula gives these thresholds, each to one of the bins beside it."""
        numbers = np.arange(1.0, self.bins)
        with np.errstate(over="ignore", invalid="ignore"):
            away = numbers - np.floor(self.position(self.edges[1:-1]))
            same = np.array_equal(self.edge(numbers), self.edges[1:-1])
        return bool(same and np.isin(away, (0.0, 1.0)).all())

    def holds(self, bins: IntArray, least: FloatArray, largest: FloatArray) -> bool:
        """Whether values that an engine put into bins belong there, by its extremes of each."""
        last = self.bins - 1
        start, end = self.edges[bins], self.edges[bins + 1]
        if self.closed == "below":
            right = ((least >= start) | (bins == 0)) & ((largest < end) | (bins == last))
        else:
            right = ((least > start) | (bins == 0)) & ((largest <= end) | (bins == last))
        return bool(right.all())

    def in_order(self, counts: IntArray) -> IntArray:
        """Return counts in the order of the grid's own bins."""
        return counts[..., ::-1] if self.closed == "below" else counts
