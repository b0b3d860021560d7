"""Public cells in which every party places its records, and the records of one party.

Two conventions of :mod:`noisewise.ecdf` must be kept, or values on a threshold would be counted
differently than on one machine: distribution functions close their bins above (t < x <= t'),
ROC curves and histograms below, in decreasing order of the values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf import Grid, as_labelled, as_records
from noisewise.ecdf.mechanisms import FloatArray, IntArray

__all__ = ["Domain", "Records"]


@dataclass(frozen=True, eq=False)
class Records:
    """The records of one party: values, and labels if there are any.

    Parameters
    ----------
    values : array of float
    positive : array of bool, optional
    codes : array of int, optional
        Which rows are one unit's; they are chosen from before anything is counted.
    bounded_by : object, optional
        For what these rows were chosen; see :class:`noisewise.federated.Protected`.
    """

    values: FloatArray
    positive: NDArray[np.bool_] | None = None
    codes: IntArray | None = None
    bounded_by: Any = None

    @classmethod
    def of(cls, data: Any, pos_label: Any = None) -> Records:
        """Take values, or a pair (labels, values), as a party gave them."""
        if isinstance(data, Records):
            return data
        if isinstance(data, tuple) and len(data) == 2:
            rows = as_labelled(data[0], data[1], pos_label)
            return cls(rows[:, 1], rows[:, 0] > 0)
        if getattr(data, "ndim", 1) == 2:
            raise ValueError(
                "a party gives its values, or a pair (labels, values), not a table: choose the "
                'columns, for example (frame["y"], frame["score"])'
            )
        return cls(as_records(data))

    def __len__(self) -> int:
        return int(self.values.size)

    def only(self, rows: IntArray, bounded_by: Any) -> Records:
        """Return some of the rows, and for what they were chosen."""
        positive = None if self.positive is None else self.positive[rows]
        return Records(self.values[rows], positive, bounded_by=bounded_by)


@dataclass(frozen=True)
class Domain:
    """A public grid of cells; what a contribution says is "one record is in this cell".

    Parameters
    ----------
    lower, upper : float
        Public bounds; values outside are moved to them.
    bins : int
        Number of cells for each label.
    labelled : bool
        Whether negatives and positives have cells of their own (negatives first).
    closed : {"above", "below"}
        Which end belongs to a cell. "below" also orders the cells by decreasing value.
    thresholds : tuple of float, optional
        Upper ends of the cells, if they are not equally wide.

    Examples
    --------
    >>> domain = Domain(0.0, 1.0, 4)
    >>> domain.place(Records(np.array([0.0, 0.25, 0.26, 7.0]))).tolist()
    [0, 0, 1, 3]
    >>> domain.levels
    2
    """

    lower: float
    upper: float
    bins: int
    labelled: bool = False
    closed: Literal["above", "below"] = "above"
    thresholds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checks.choice("closed", self.closed, ("above", "below"))
        grid = Grid.of((self.lower, self.upper), self.bins, self.thresholds)
        object.__setattr__(self, "lower", grid.lower)
        object.__setattr__(self, "upper", grid.upper)
        object.__setattr__(self, "bins", grid.bins)
        object.__setattr__(self, "labelled", bool(self.labelled))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(grid.thresholds.tolist()))

    @cached_property
    def grid(self) -> Grid:
        """The grid that counts these cells; of the *negated* values if closed below."""
        grid = Grid.of((self.lower, self.upper), self.bins, self.thresholds)
        if self.closed == "above":
            return grid
        edges = -grid.edges[::-1]
        return Grid(float(edges[0]), edges[1:])

    @property
    def cells(self) -> int:
        """Number of cells."""
        return 2 * self.bins if self.labelled else self.bins

    @property
    def levels(self) -> int:
        """Binary digits of a cell's number: cells <= 2^levels."""
        return max(1, (self.cells - 1).bit_length())

    def place(self, records: Records) -> IntArray:
        """Return the cell of each record."""
        values = as_records(records.values)
        if self.closed == "below":
            values = -values
        grid = self.grid
        inside = np.clip(values, grid.lower, grid.upper)
        cells = np.searchsorted(grid.thresholds, inside, side="left").astype(np.int64)
        if not self.labelled:
            return cells
        if records.positive is None:
            raise ValueError("this question is about labelled records: give pairs (labels, values)")
        return cells + self.bins * records.positive.astype(np.int64)

    def count(self, records: Records) -> IntArray:
        """Histogram of the records over the cells."""
        return np.bincount(self.place(records), minlength=self.cells).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "bins": self.bins,
            "labelled": self.labelled,
            "closed": self.closed,
            "thresholds": None if self.thresholds is None else list(self.thresholds),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Domain:
        """Return the domain that :meth:`to_dict` described, checked."""
        unknown = set(fields) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"a domain has no fields {sorted(unknown)}")
        values = dict(fields)
        points = values.get("thresholds")
        if points is not None:
            if not isinstance(points, Iterable) or isinstance(points, (str, bytes)):
                raise ValueError(f"thresholds must be a list of numbers, got {points!r}")
            values["thresholds"] = tuple(checks.finite("thresholds", point) for point in points)
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"not a domain: {error}") from error

    @property
    def digest(self) -> bytes:
        """32 bytes that two parties can compare to know that they mean the same cells."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"noisewise/domain/1/" + text.encode()).digest()
