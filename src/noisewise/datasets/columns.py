"""How one column becomes numbers by public rules alone.

Each kind maps a cell to a short block of numbers with a rule that depends on that cell
and on what the schema declares, never on other cells. Every block has Euclidean norm at
most 1 whatever the cell is: numbers lie in [-1, 1] (or [0, 1]), a one-hot block has at
most one 1, and an indicator of missingness is 1 only where the number beside it is 0.
:class:`~noisewise.datasets.schema.Schema` builds its norm bound on this alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise import checks
from noisewise.datasets.cells import (
    MISSING,
    UNKNOWN,
    Counts,
    Floats,
    SchemaError,
    Value,
    categories,
    codes,
    count_codes,
    folded,
    lookup,
    numbers,
    one_hot,
)

__all__ = [
    "Binary",
    "Categorical",
    "CodeRanges",
    "Column",
    "Drop",
    "Numeric",
    "Ordinal",
]


class Column:
    """What every kind of column can do; the kinds below are the whole list."""

    kind: ClassVar[str]
    #: Largest squared norm of an encoded cell.
    norm_squared: ClassVar[int] = 1

    def describe(self) -> str:
        """Return the rule in a few words."""
        raise NotImplementedError

    def features(self, name: str) -> tuple[str, ...]:
        """Names of the numbers that a cell becomes."""
        raise NotImplementedError

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """One row of numbers per cell."""
        raise NotImplementedError

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """How many cells are clamped, unknown or missing."""
        raise NotImplementedError


_TRANSFORMS: dict[str, Callable[[Floats], Floats]] = {
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "signed_log1p": lambda values: np.sign(values) * np.log1p(np.abs(values)),
}


@dataclass(frozen=True)
class Numeric(Column):
    """A number with a public range; values outside are moved to its ends.

    Parameters
    ----------
    low, high : float
        Public range, before the transform.
    transform : {None, "log1p", "sqrt", "signed_log1p"}
        Applied to value and range, for quantities of very different sizes.
    missing : {"zero", "indicator"}
        A missing value becomes 0 (the middle of the range if the schema is symmetric),
        and with "indicator" a second number says so.
    fill : float, optional
        A public number that stands for missing values, instead of an indicator.

    Examples
    --------
    >>> Numeric(0, 99).features("hours")
    ('hours',)
    """

    low: float
    high: float
    transform: str | None = None
    missing: str = "zero"
    fill: float | None = None
    kind: ClassVar[str] = "numeric"

    def __post_init__(self) -> None:
        low, high = checks.finite("low", self.low), checks.finite("high", self.high)
        if self.transform is not None:
            checks.choice("transform", self.transform, tuple(_TRANSFORMS))
        checks.choice("missing", self.missing, ("zero", "indicator"))
        if not low < high:
            raise SchemaError(f"a range needs low < high, got {low:g} and {high:g}")
        if self.transform in ("log1p", "sqrt") and low < 0:
            raise SchemaError(
                f"{self.transform} needs a range from 0 upward, got low={low:g}; "
                'use "signed_log1p" for quantities of either sign'
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        if self.fill is not None:
            # With an indicator beside it the block would be longer than 1, and gain nothing: the
            # weight of the indicator can stand for any number.
            if self.missing == "indicator":
                raise SchemaError(
                    'fill and missing = "indicator" exclude each other: an indicator learns by '
                    "itself what to put in place of a missing value; remove one of them"
                )
            fill = checks.finite("fill", self.fill)
            if not low <= fill <= high:
                raise SchemaError(f"fill must lie in the range {low:g} to {high:g}, got {fill:g}")
            object.__setattr__(self, "fill", fill)
        start, stop = self._ends
        if not (math.isfinite(stop - start) and stop > start):
            raise SchemaError(f"the range {low:g}..{high:g} is too wide or too narrow for floats")

    @property
    def _ends(self) -> tuple[float, float]:
        ends = self._apply(np.array([self.low, self.high]))
        return float(ends[0]), float(ends[1])

    def _apply(self, values: Floats) -> Floats:
        return values if self.transform is None else _TRANSFORMS[self.transform](values)

    def describe(self) -> str:
        """Return the range and the transform."""
        return f"{self.low:.12g} to {self.high:.12g}" + (
            f", {self.transform}" if self.transform else ""
        )

    def features(self, name: str) -> tuple[str, ...]:
        """Return the column's own name, and that of the indicator."""
        return (name, f"{name}=<missing>") if self.missing == "indicator" else (name,)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Clamp, transform and scale; see the class."""
        return self._scale(numbers(name, cells), symmetric)

    def _scale(self, values: Floats, symmetric: bool) -> Floats:
        if self.fill is not None:
            values = np.where(np.isnan(values), self.fill, values)
        absent = np.isnan(values)
        start, stop = self._ends
        inside = self._apply(np.clip(np.where(absent, self.low, values), self.low, self.high))
        # Clipped once more, since a logarithm need not be monotone in its last bit.
        share = np.clip((inside - start) / (stop - start), 0.0, 1.0)
        scaled = np.where(absent, 0.0, 2.0 * share - 1.0 if symmetric else share)
        if self.missing == "indicator":
            return np.stack([scaled, absent.astype(np.float64)], axis=1)
        return scaled[:, None]

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count the values outside the range and those that are missing."""
        values = numbers(name, cells)
        outside = (values < self.low) | (values > self.high)
        return Counts(clamped=int(outside.sum()), missing=int(np.isnan(values).sum()))

    def decode(self, encoded: npt.ArrayLike, symmetric: bool) -> Floats:
        """Return encoded numbers to the units of the column, within its range."""
        values = np.asarray(encoded, dtype=np.float64)
        share = np.clip((values + 1.0) / 2.0 if symmetric else values, 0.0, 1.0)
        start, stop = self._ends
        moved = start + share * (stop - start)
        if self.transform == "log1p":
            moved = np.expm1(moved)
        elif self.transform == "sqrt":
            moved = np.square(moved)
        elif self.transform == "signed_log1p":
            moved = np.sign(moved) * np.expm1(np.abs(moved))
        return np.clip(moved, self.low, self.high)


@dataclass(frozen=True)
class Categorical(Column):
    """One of a public list of values, as a one-hot block.

    Parameters
    ----------
    values : iterable of str or int
        The public categories; 1, 1.0 and True are the same category.
    other : bool
        Whether unknown values get a number of their own; else they become all zeros.
    missing : bool
        Whether missing values get a number of their own; else they count as unknown.
    ignore_case : bool
        Whether "Paris", "paris" and " PARIS " are the same text.
    """

    values: tuple[Value, ...]
    other: bool = True
    missing: bool = False
    ignore_case: bool = False
    kind: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", categories(self.values))
        _flag("other", self.other)
        _flag("missing", self.missing)
        _flag("ignore_case", self.ignore_case)
        if self.ignore_case and len({folded(value) for value in self.values}) < len(self.values):
            raise SchemaError("two categories are equal but for capital letters or blanks")

    def codes(self, name: str, cells: pd.Series[Any]) -> npt.NDArray[np.int64]:
        """Return the place of each cell in the list, or UNKNOWN or MISSING."""
        return codes(name, cells, self.values, self.ignore_case)

    def describe(self) -> str:
        """Return the first categories and their number."""
        return _listing(self.values)

    def features(self, name: str) -> tuple[str, ...]:
        """Return one name per category, then those of other and missing."""
        listed = [f"{name}={value}" for value in self.values]
        extra = [f"{name}=<other>"] * self.other + [f"{name}=<missing>"] * self.missing
        return (*listed, *extra)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return a block with at most one 1 per row."""
        return one_hot(self.codes(name, cells), len(self.values), self.other, self.missing)

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count unknown and missing values."""
        return count_codes(self.codes(name, cells))


@dataclass(frozen=True)
class Binary(Column):
    """One of two public values, as -1 and 1 (or 0 and 1); anything else becomes 0."""

    values: tuple[Value, Value] = (0, 1)
    kind: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        values = categories(self.values)
        if len(values) != 2:
            raise SchemaError(f"a binary column has two values, got {len(values)}: {values!r}")
        object.__setattr__(self, "values", values)

    def describe(self) -> str:
        """Return the two values, the lower first."""
        return f"{self.values[0]} or {self.values[1]}"

    def features(self, name: str) -> tuple[str, ...]:
        """Return the column's own name."""
        return (name,)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return the end of the range that the value stands for."""
        found = codes(name, cells, self.values)
        low = -1.0 if symmetric else 0.0
        return np.where(found == 0, low, np.where(found == 1, 1.0, 0.0))[:, None]

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count unknown and missing values."""
        return count_codes(codes(name, cells, self.values))


@dataclass(frozen=True)
class Ordinal(Column):
    """One of a public ordered list, as evenly spaced numbers; unknown values become 0."""

    values: tuple[Value, ...]
    missing: str = "zero"
    kind: ClassVar[str] = "ordinal"

    def __post_init__(self) -> None:
        values = categories(self.values)
        if len(values) < 2:
            raise SchemaError("an ordinal column needs at least two values")
        checks.choice("missing", self.missing, ("zero", "indicator"))
        object.__setattr__(self, "values", values)

    def describe(self) -> str:
        """Return the first values and their number."""
        return _listing(self.values)

    def features(self, name: str) -> tuple[str, ...]:
        """Return the column's own name, and that of the indicator."""
        return (name, f"{name}=<missing>") if self.missing == "indicator" else (name,)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return the place of the value in the list, scaled."""
        found = codes(name, cells, self.values)
        share = np.clip(found, 0, None) / (len(self.values) - 1)
        scaled = np.where(found >= 0, 2.0 * share - 1.0 if symmetric else share, 0.0)
        if self.missing == "indicator":
            return np.stack([scaled, (found == MISSING).astype(np.float64)], axis=1)
        return scaled[:, None]

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count unknown and missing values."""
        return count_codes(codes(name, cells, self.values))


@dataclass(frozen=True)
class CodeRanges(Column):
    """Codes of a public classification, such as ICD-9, grouped by ranges of numbers.

    A code belongs to the first group with a range that contains its whole part
    (``250.83`` is 250); codes that are no numbers (``V45``) or in no range are other.

    Parameters
    ----------
    groups : iterable of (label, iterable of (first, last))
        Ranges include both ends.
    """

    groups: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    kind: ClassVar[str] = "code_ranges"

    def __post_init__(self) -> None:
        groups = tuple(
            (
                str(label),
                tuple((checks.finite("first", a), checks.finite("last", b)) for a, b in spans),
            )
            for label, spans in self.groups
        )
        categories(label for label, _ in groups)
        for label, spans in groups:
            if not spans or any(first > last for first, last in spans):
                raise SchemaError(f"group {label!r} needs ranges with first <= last")
        object.__setattr__(self, "groups", groups)

    def describe(self) -> str:
        """Return the names of the groups."""
        return _listing(tuple(label for label, _ in self.groups))

    def features(self, name: str) -> tuple[str, ...]:
        """Return one name per group, then other and missing."""
        listed = (f"{name}={label}" for label, _ in self.groups)
        return (*listed, f"{name}=<other>", f"{name}=<missing>")

    def _codes(self, name: str, cells: pd.Series[Any]) -> npt.NDArray[np.int64]:
        return lookup(name, cells, self._group)

    def _group(self, value: Hashable) -> int:
        try:
            whole = math.floor(float(str(value)))
        except (ValueError, OverflowError):
            return UNKNOWN
        for position, (_, spans) in enumerate(self.groups):
            if any(first <= whole <= last for first, last in spans):
                return position
        return UNKNOWN

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return a block with exactly one 1 per row."""
        return one_hot(self._codes(name, cells), len(self.groups), True, True)

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count codes in no group, and missing ones."""
        return count_codes(self._codes(name, cells))


@dataclass(frozen=True)
class Drop(Column):
    """A column that is not used; `reason` says why, for readers."""

    reason: str = ""
    kind: ClassVar[str] = "drop"
    norm_squared: ClassVar[int] = 0

    def describe(self) -> str:
        """Return the reason."""
        return self.reason or "not used"

    def features(self, name: str) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return no numbers."""
        return np.empty((len(cells), 0))

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Return zeros: a dropped cell is not changed."""
        return Counts()


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SchemaError(f"{name} must be True or False, got {value!r}")


def _listing(values: tuple[Value, ...]) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return shown if len(values) <= 5 else f"{shown}, ... ({len(values)})"
