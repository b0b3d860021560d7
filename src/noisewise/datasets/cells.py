"""Read the cells of a column: as numbers, or as places in a public list of categories.

Every reading depends on the one cell and on the declaration; what does not fit is
unknown or missing, which the kinds of columns turn into numbers by their public rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise.errors import DatasetError

__all__ = [
    "MISSING",
    "UNKNOWN",
    "Counts",
    "Floats",
    "SchemaError",
    "Value",
    "categories",
    "codes",
    "count_codes",
    "folded",
    "lookup",
    "numbers",
    "one_hot",
    "plain",
]

Floats = npt.NDArray[np.float64]
Value = str | int
MISSING = -2
UNKNOWN = -1


class SchemaError(DatasetError, ValueError):
    """A table that does not fit its schema, or a schema that makes no sense."""


@dataclass(frozen=True)
class Counts:
    """How many cells of a column a rule changes (not private)."""

    clamped: int = 0
    unknown: int = 0
    missing: int = 0


def numbers(name: str, cells: pd.Series[Any]) -> Floats:
    """Return the cells as floats, missing as NaN; text is refused with the way out."""
    dtype = cells.dtype
    if len(cells) == 0:
        return np.empty(0)
    if not pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_complex_dtype(dtype):
        raise SchemaError(
            f"column {name!r} is declared a number but holds {dtype}; convert it first "
            f"(pandas.to_numeric(frame[{name!r}], errors='coerce') makes what is no number "
            "missing) or declare it Categorical"
        )
    return cells.to_numpy(dtype=np.float64, na_value=np.nan)


def lookup(
    name: str, cells: pd.Series[Any], position: Callable[[Hashable], int]
) -> npt.NDArray[np.int64]:
    """Position of each cell by a rule that is asked once per distinct value."""
    try:
        inverse, distinct = pd.factorize(cells)
    except TypeError as error:
        raise SchemaError(f"column {name!r} holds values that are no categories: {error}") from None
    table = np.fromiter((position(value) for value in distinct), np.int64, len(distinct))
    # factorize gives -1 to missing cells; they take the last entry.
    return np.append(table, MISSING)[inverse]


def codes(
    name: str, cells: pd.Series[Any], values: tuple[Value, ...], ignore_case: bool = False
) -> npt.NDArray[np.int64]:
    """Index of each cell in `values`, or UNKNOWN or MISSING."""
    numeric = pd.api.types.is_numeric_dtype(cells.dtype)
    text = isinstance(cells.dtype, pd.StringDtype)
    if len(cells) and (
        (numeric and all(isinstance(value, str) for value in values))
        or (text and not any(isinstance(value, str) for value in values))
    ):
        raise SchemaError(
            f"column {name!r} holds {cells.dtype}, but its declared categories are "
            f"{'text' if numeric else 'numbers'} ({values[0]!r}, ...): no cell could match; "
            "convert the column with astype, or declare the categories as they are stored"
        )
    form = folded if ignore_case else plain
    index = {form(value): place for place, value in enumerate(values)}
    return lookup(name, cells, lambda value: index.get(form(value), UNKNOWN))


def folded(value: Hashable) -> Hashable:
    """One form for texts that differ in capital letters or blanks around them."""
    return value.strip().casefold() if isinstance(value, str) else plain(value)


def plain(value: Hashable) -> Hashable:
    """One form for equal categories: 1, 1.0, True and their NumPy kin are 1."""
    if isinstance(value, (bool, np.bool_, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def categories(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return a checked list of public categories."""
    if isinstance(values, str):
        raise SchemaError(f"categories must be a list of values, got the text {values!r}")
    listed = tuple(plain(value) for value in values)
    for value in listed:
        if not isinstance(value, (str, int)):
            raise SchemaError(f"a category must be text or a whole number, got {value!r}")
    if not listed:
        raise SchemaError("a list of categories must not be empty")
    if len(set(listed)) != len(listed):
        twice = next(value for value in listed if listed.count(value) > 1)
        raise SchemaError(f"category {twice!r} is listed twice")
    return listed  # type: ignore[return-value]


def one_hot(found: npt.NDArray[np.int64], size: int, other: bool, missing: bool) -> Floats:
    """At most one 1 per row: the category, else other, else missing."""
    block = np.zeros((len(found), size + other + missing))
    column = np.where(found >= 0, found, UNKNOWN)
    if other:
        column[found < 0] = size
    if missing:
        column[found == MISSING] = size + other
    rows = np.flatnonzero(column >= 0)
    block[rows, column[rows]] = 1.0
    return block


def count_codes(found: npt.NDArray[np.int64]) -> Counts:
    """Count what :func:`codes` did not find."""
    return Counts(unknown=int((found == UNKNOWN).sum()), missing=int((found == MISSING).sum()))
