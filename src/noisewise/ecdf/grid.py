"""Public grids of thresholds, and the counts of records between them.

Bounds and thresholds are arguments, never taken from the data: the smallest and largest
record of a dataset are records, and publishing them, or anything scaled by them, publishes
those records (the thesis's phi_min and phi_max do).

Every curve stands on a :class:`Grid`, and none exists whose bins are finer than double precision
tells apart: places within a bin, widths and their inverses are computed from its edges, and must
be what they are meant to be for every record, not for most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.counted import Counted
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.errors import UnsoundError

__all__ = ["Grid", "as_records"]

#: A bin is at least this part of its larger edge wide: four steps of double precision.
LEAST_RELATIVE_WIDTH = 2.0**-50
#: Widths, the whole range and their inverses stay far from where doubles lose digits or overflow.
LEAST_WIDTH, LARGEST_RANGE = 2.0**-960, 2.0**960
MOST_BINS = 1 << 26


def as_records(x: Any, name: str = "x") -> FloatArray:
    """Return records as a flat float array, or raise if one of them is not a number."""
    numbers = as_numbers(x, name)
    if np.isnan(numbers).any():
        raise ValueError(
            f"{name} holds NaN, which has no place in an order. Leave such records out or put a "
            "public constant there, by a rule that looks at one record at a time."
        )
    return numbers


def as_numbers(x: Any, name: str) -> FloatArray:
    """Return numbers and NaN as a flat float array; of anything else no entry is shown."""
    found = checks.array(name, x)
    if found.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {found.dtype}")
    if found.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {found.shape}")
    return found.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Grid:
    """Thresholds t_1 < ... < t_N = upper bound; bin i holds t_(i-1) < x <= t_i.

    Parameters
    ----------
    lower : float
        Lower bound. Smaller records are moved to it.
    thresholds : array
        Increasing; the last one is the upper bound, to which larger records are moved.
    """

    lower: float
    thresholds: FloatArray

    def __post_init__(self) -> None:
        points = np.array(self.thresholds, np.float64)  # a copy, which nobody can change
        points.setflags(write=False)
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "thresholds", points)
        edges = self.edges
        if points.ndim != 1 or points.size == 0 or not np.isfinite(edges).all():
            raise ValueError("a grid has finite thresholds, at least one")
        with np.errstate(over="ignore"):
            widths = np.diff(edges)
            size = np.maximum(np.abs(edges[1:]), np.abs(edges[:-1]))
            range_ = self.upper - self.lower
        least = np.maximum(size * LEAST_RELATIVE_WIDTH, LEAST_WIDTH)
        if np.any(widths <= 0):
            raise ValueError("thresholds must increase strictly, from above the lower bound on")
        if np.any(widths < least) or not range_ <= LARGEST_RANGE:
            raise ValueError(
                f"{points.size} bins in [{self.lower!r}, {self.upper!r}] are finer than double "
                "precision tells apart: two of their edges are nearly the same number. Use fewer "
                "bins or wider ones; move the zero of the scale nearer to the data if it is far."
            )

    @classmethod
    def of(cls, bounds: Any, bins: int, thresholds: Any = None) -> Grid:
        """Make a grid from what the user gave.

        Parameters
        ----------
        bounds : pair of float
            Public range of the data.
        bins : int
            Number of bins, if `thresholds` does not say.
        thresholds : None, "linear", "log" or array
            How the range is divided.
        """
        lower, upper = _bounds(bounds)
        if thresholds is None or (isinstance(thresholds, str) and thresholds == "linear"):
            steps = np.arange(1, _bins(bins) + 1) / _bins(bins)
            points = lower + (upper - lower) * steps
        elif isinstance(thresholds, str):
            checks.choice("thresholds", thresholds, ("linear", "log"))
            if lower <= 0:
                raise ValueError(
                    f"thresholds='log' needs bounds above 0, got {bounds!r}; raise the lower "
                    "bound (smaller records are moved to it) or use 'linear'"
                )
            steps = np.arange(1, _bins(bins) + 1) / _bins(bins)
            points = lower * (upper / lower) ** steps
        else:
            points = _given(thresholds, lower, upper)
        points[-1] = upper
        if np.any(np.diff(points) <= 0) or points[0] <= lower:
            raise ValueError(
                f"bins={points.size} is too fine for bounds {bounds!r}: finer than double "
                "precision tells apart"
            )
        return cls(lower, points)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return int(self.thresholds.size)

    @property
    def upper(self) -> float:
        """Upper bound."""
        return float(self.thresholds[-1])

    @property
    def edges(self) -> FloatArray:
        """Lower bound and thresholds."""
        return np.concatenate([[self.lower], self.thresholds])

    def count(self, x: Any) -> IntArray:
        """Histogram of records, those outside the bounds moved to the nearest bound."""
        if isinstance(x, Counted):  # by an engine, on this very grid
            return x.on(self.bins)
        return np.bincount(self.place(x), minlength=self.bins).astype(np.int64)

    def place(self, x: Any) -> IntArray:
        """Return the bin of each record, those outside the bounds moved to the nearest bound."""
        return self._place(np.clip(as_records(x), self.lower, self.upper))

    def _place(self, records: FloatArray) -> IntArray:
        """Return the first threshold that is not below each record.

        On even grids arithmetic finds it up to rounding, and the thresholds themselves decide;
        what then is still not between its neighbours, and any other grid, is searched for.
        """
        if not self._even:
            return np.searchsorted(self.thresholds, records, side="left").astype(np.int64)
        per_unit = self.bins / (self.upper - self.lower)
        place = ((records - self.lower) * per_unit).astype(np.int64)
        np.minimum(place, self.bins - 1, out=place)
        edges = self.edges
        place -= records <= edges[place]
        np.maximum(place, 0, out=place)
        place += records > edges[place + 1]
        wrong = (records > edges[place + 1]) | ((records <= edges[place]) & (place > 0))
        if wrong.any():
            place[wrong] = np.searchsorted(self.thresholds, records[wrong], side="left")
        return place

    @cached_property
    def _even(self) -> bool:
        """Whether the bins are equally wide, up to rounding."""
        width = (self.upper - self.lower) / self.bins
        return bool(np.all(np.abs(np.diff(self.edges) - width) <= 1e-6 * width))


def _bounds(bounds: Any) -> tuple[float, float]:
    if bounds is None or isinstance(bounds, str):
        raise UnsoundError(
            f"bounds={bounds!r}: bounds must be two numbers that are known without looking at the "
            "data. The smallest and the largest record are records themselves: a grid made from "
            "them publishes them, at no epsilon. Give the range that such data can have, e.g. "
            "bounds=(0, 120) for ages; records outside are moved to the nearest bound."
        )
    try:
        lower, upper = bounds
    except (TypeError, ValueError) as error:
        raise ValueError(f"bounds must be a pair (lower, upper), got {bounds!r}") from error
    lower, upper = checks.finite("bounds[0]", lower), checks.finite("bounds[1]", upper)
    if not lower < upper:
        raise ValueError(f"bounds must increase, got {bounds!r}")
    return lower, upper


def _bins(bins: Any) -> int:
    return checks.integer("bins", bins, minimum=2, maximum=MOST_BINS)


def _given(thresholds: Any, lower: float, upper: float) -> FloatArray:
    points = np.array(thresholds, dtype=np.float64).ravel()
    if points.size == 0 or not np.isfinite(points).all():
        raise ValueError("thresholds must be finite numbers, at least one")
    if np.any(np.diff(points) <= 0):
        raise ValueError("thresholds must increase strictly")
    if points[0] <= lower or points[-1] > upper:
        raise ValueError(f"thresholds must lie above {lower!r} and not above {upper!r}, the bounds")
    if points[-1] < upper:
        points = np.append(points, upper)
    if points.size < 2:
        raise ValueError("thresholds must hold at least one number below the upper bound")
    return points
