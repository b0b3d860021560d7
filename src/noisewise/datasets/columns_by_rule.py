"""Columns whose cells are read by a public rule: yes or no in its usual words, dates, identifiers.

Like all kinds of columns they map one cell at a time, to a block of norm at most 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import date, datetime
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
    count_codes,
    folded,
    lookup,
)
from noisewise.datasets.columns import Column, Drop, Numeric

__all__ = ["NO_WORDS", "YES_WORDS", "Date", "Identifier", "YesNo", "day_numbers"]

#: What people write for yes and no: public lists, whatever a table holds.
YES_WORDS: tuple[Value, ...] = ("yes", "y", "true", "t", "1", 1, "ja", "j", "oui", "si", "sí")
NO_WORDS: tuple[Value, ...] = ("no", "n", "false", "f", "0", 0, "nein", "non")
_EPOCH = date(1970, 1, 1)
_ISO = "ISO8601"


@dataclass(frozen=True)
class YesNo(Column):
    """Yes or no, in any of several public words: 1 and -1 (or 1 and 0); anything else becomes 0.

    Capital letters and blanks around a word do not matter: ``yes``, ``Yes`` and ``YES`` are one.

    Parameters
    ----------
    yes, no : iterable of str or int
        The words; by default those of `YES_WORDS` and `NO_WORDS`.
    missing : {"zero", "indicator"}
        Whether a second number says that the cell is empty.

    Examples
    --------
    >>> YesNo().encode("smoker", pd.Series(["Yes", " y", "NO", "maybe", None]), True).ravel()
    array([ 1.,  1., -1.,  0.,  0.])
    """

    yes: tuple[Value, ...] = YES_WORDS
    no: tuple[Value, ...] = NO_WORDS
    missing: str = "zero"
    kind: ClassVar[str] = "yes_no"

    def __post_init__(self) -> None:
        for name in ("yes", "no"):
            object.__setattr__(self, name, categories(getattr(self, name)))
        both = {folded(word) for word in self.yes} & {folded(word) for word in self.no}
        if both:
            raise SchemaError(f"{min(map(str, both))!r} is listed as yes and as no")
        checks.choice("missing", self.missing, ("zero", "indicator"))

    def codes(self, name: str, cells: pd.Series[Any]) -> npt.NDArray[np.int64]:
        """Return 0 for no, 1 for yes, or UNKNOWN or MISSING."""
        known = {folded(word): 0 for word in self.no} | {folded(word): 1 for word in self.yes}

        def place(value: Hashable) -> int:
            return known.get(folded(value), UNKNOWN)

        return lookup(name, cells, place)

    def describe(self) -> str:
        """Return the first word of each."""
        return f"{self.no[0]} or {self.yes[0]}, in their usual words"

    def features(self, name: str) -> tuple[str, ...]:
        """Return the column's own name, and that of the indicator."""
        return (name, f"{name}=<missing>") if self.missing == "indicator" else (name,)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Return the end of the range that the word stands for."""
        found = self.codes(name, cells)
        low = -1.0 if symmetric else 0.0
        value = np.where(found == 0, low, np.where(found == 1, 1.0, 0.0))
        if self.missing == "indicator":
            return np.stack([value, (found == MISSING).astype(np.float64)], axis=1)
        return value[:, None]

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count unknown words and missing cells."""
        return count_codes(self.codes(name, cells))


@dataclass(frozen=True)
class Date(Column):
    """A day, as a number within a public range; days outside are moved to its ends.

    Parameters
    ----------
    low, high : str
        First and last possible day, ``"2010-01-31"``.
    format : str or tuple of str, optional
        How days are written, such as ``"%d.%m.%Y"``; by default ISO 8601. Of several formats the
        first that reads a cell counts.
    missing : {"zero", "indicator"}
        A missing or unreadable day becomes 0, and with "indicator" a second number says so.

    Examples
    --------
    >>> Date("2020-01-01", "2020-12-31").describe()
    '2020-01-01 to 2020-12-31'
    """

    low: str
    high: str
    format: str | tuple[str, ...] | None = None
    missing: str = "zero"
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _day(name, getattr(self, name)).isoformat())
        if not self.low < self.high:
            raise SchemaError(f"a range of days needs low < high, got {self.low} and {self.high}")
        given: Any = self.format
        if isinstance(given, list):
            object.__setattr__(self, "format", tuple(given))
        if not self._formats or not all(
            isinstance(form, str) and ("%" in form or form == _ISO) for form in self._formats
        ):
            raise SchemaError(
                f'format must be like "%d.%m.%Y" (day.month.year) or "{_ISO}", or a list of such, '
                f"got {self.format!r}"
            )
        checks.choice("missing", self.missing, ("zero", "indicator"))

    @property
    def _formats(self) -> tuple[str, ...]:
        if self.format is None:
            return (_ISO,)
        return self.format if isinstance(self.format, tuple) else (self.format,)

    @property
    def _number(self) -> Numeric:
        first, last = (_days(_day("", end)) for end in (self.low, self.high))
        return Numeric(first, last, missing=self.missing)

    def describe(self) -> str:
        """Return the range."""
        return f"{self.low} to {self.high}"

    def features(self, name: str) -> tuple[str, ...]:
        """Return the column's own name, and that of the indicator."""
        return self._number.features(name)

    def encode(self, name: str, cells: pd.Series[Any], symmetric: bool) -> Floats:
        """Count days, clamp and scale."""
        return self._number.encode(name, day_numbers(name, cells, self._formats), symmetric)

    def count(self, name: str, cells: pd.Series[Any]) -> Counts:
        """Count days outside the range, unreadable ones and missing ones."""
        days = day_numbers(name, cells, self._formats)
        found = self._number.count(name, days)
        empty = int(cells.isna().sum())
        return Counts(clamped=found.clamped, unknown=found.missing - empty, missing=empty)


@dataclass(frozen=True)
class Identifier(Drop):
    """A column that names a person or a thing. It is never learnt from."""

    kind: ClassVar[str] = "identifier"

    def describe(self) -> str:
        """Return the reason."""
        return self.reason or "identifier, not used"


def day_numbers(name: str, cells: pd.Series[Any], forms: tuple[str, ...]) -> pd.Series[Any]:
    """Return days since 1970 as floats; what no format reads as a day is missing."""
    if pd.api.types.is_numeric_dtype(cells.dtype) and cells.notna().any():
        raise SchemaError(
            f"column {name!r} is declared a date but holds numbers; declare it a number with a "
            "public range, or convert it to days first"
        )
    read, *others = (
        pd.to_datetime(cells, format=form, errors="coerce", utc=True) for form in forms
    )
    for other in others:
        read = read.fillna(other)
    days = (read - pd.Timestamp(_EPOCH, tz="UTC")) / pd.Timedelta(days=1)
    found: pd.Series[Any] = pd.Series(days.to_numpy(np.float64), index=cells.index)
    return found


def _day(name: str, value: object) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise SchemaError(f'{name} must be a day like "2010-01-31", got {value!r}') from None


def _days(day: date) -> float:
    return float((day - _EPOCH).days)
