"""Identifiers of units: who a row belongs to, and nothing that could be shown of them.

A unit is what is protected: a patient with all visits, a customer with all transactions. Its
identifiers may be anything hashable. Here they become numbers without meaning, in the order in
which they come; beyond this file nobody sees an identifier, and no error here quotes one.

Rows that are taken for two units though they are one person's make every epsilon about people
false, so what looks equal and is not equal is refused (objects that are compared by their place in
memory, or have the same content and other hashes) or warned about (17 and "17", "Ada" and "ada ").
So do two people in one unit, since the rest of it stays when one of them leaves: numbers whose
type cannot tell neighbours apart are refused.
"""

from __future__ import annotations

import pickle
import re
import unicodedata
import warnings
from collections.abc import Hashable, Iterable
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MISSING_IDENTIFIERS",
    "MISSING_TEXT",
    "SPACES",
    "identifiers_of",
    "require_same_order",
    "unit_codes",
]

MISSING_IDENTIFIERS = (
    "units has missing identifiers (None, NaN, NaT, empty text or a word for it, such as 'NULL' or "
    "'NA'). A row of an unknown unit cannot "
    "be protected together with the unit's other rows: leave such rows out, or give each of them a "
    "unit of its own if you know that it is one."
)
#: What a missing value becomes when a column is turned into text, or is written as in files:
#: rows of many people would be one unit under it.
MISSING_TEXT = frozenset(
    {"nan", "NaN", "NAN", "-nan", "-NaN", "None", "none", "NONE", "<NA>", "NaT", "null", "NULL",
     "Null", "NA", "N/A", "n/a", "#N/A", "#NA", "<null>", "(null)", "\\N"}
)  # fmt: skip
#: What str.strip takes away, for engines that take away less by themselves.
SPACES = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005"
    "\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
#: From here on neighbouring whole numbers are the same number, by the name of a type.
_WHOLE = {"float16": 2**11, "halffloat": 2**11, "float32": 2**24, "float": 2**24}
_WHOLE_DOUBLE = 2**53
#: A whole number as text, however it is spelt: 7, 007, 7.0.
_NUMBER = re.compile(r"([+-]?)0*(\d+)(\.0*)?")
#: Types, not their subclasses, of which is known that what is equal has equal hashes.
_PLAIN = {
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    frozenset,
    Decimal,
    Fraction,
    date,
    datetime,
    UUID,
}
#: Characters that nobody sees.
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def unit_codes(units: Any, rows: int | None = None) -> NDArray[np.int64]:
    """Number the units of all rows from 0, in the order in which they come.

    Parameters
    ----------
    units : sequence
        One identifier per row: a list, an array, a tensor, a column of pandas, Polars or Arrow.
    rows : int, optional
        How many there must be.

    Raises
    ------
    ValueError
        If there are too few or too many, or one is missing (None, not a number, empty text). No
        identifier is shown.
    TypeError
        If they cannot be told apart: not hashable, or more than one column.

    Examples
    --------
    >>> unit_codes(["b", "a", "b", "c"]).tolist()
    [0, 1, 0, 2]
    """
    given = getattr(units, "identifiers", units)
    values = _column(given)
    if rows is not None and len(values) != rows:
        raise ValueError(
            f"units needs one identifier for each of the {rows} rows, got {len(values)}"
        )
    if isinstance(values, np.ndarray):
        return _in_order(values)
    known: dict[Hashable, int] = {}
    numbered = (known.setdefault(item, len(known)) for item in _checked(values))
    codes = np.fromiter(numbered, np.int64, len(values))
    _refuse_lost_digits(known, given)
    _refuse_equal_contents(known)
    _warn_of_twins(known)
    return codes


def require_same_order(rows: Any, units: Any) -> None:
    """Raise if rows and identifiers are columns of pandas with the same labels in another order.

    Identifiers are taken by position, like labels of classes. After one of both was sorted or
    drawn from, every row would be bounded with the rows of somebody else.
    """
    given = getattr(units, "identifiers", units)
    if not (hasattr(rows, "iloc") and hasattr(given, "iloc")) or len(rows) != len(given):
        return
    mine, other = rows.index, given.index
    if mine.equals(other) or not mine.is_unique or mine.difference(other).size:
        return
    raise ValueError(
        "units have the same row labels as the data, in another order: one of both was sorted or "
        "shuffled alone, and identifiers would belong to other rows. Sort both alike, for example "
        "units.loc[data.index]."
    )


def identifiers_of(units: Any) -> list[Hashable]:
    """Return identifiers as keys of a dictionary, for whoever must know a unit again.

    Examples
    --------
    >>> identifiers_of(("a", 2))
    ['a', 2]
    """
    given = getattr(units, "identifiers", units)
    values = _column(given)
    if isinstance(values, np.ndarray):
        return _checked(values.tolist())
    found = _checked(values)
    different = dict.fromkeys(found)
    _refuse_lost_digits(different, given)
    _refuse_equal_contents(different)
    return found


def _column(units: Any) -> Any:
    """Return whole numbers as an array, everything else as a list."""
    if hasattr(units, "detach"):  # a tensor, without importing torch here
        units = units.detach().cpu().numpy()
    if isinstance(units, (str, bytes)) or not hasattr(units, "__len__"):
        raise TypeError(
            f"units must hold one identifier per row (a list, an array, a column), got a "
            f"{type(units).__name__}"
        )
    if isinstance(units, (dict, set, frozenset)):
        raise TypeError("units must be in the order of the rows, which a dict or set has not")
    if hasattr(units, "to_pylist"):  # Arrow
        return units.to_pylist()
    if hasattr(units, "to_list"):  # a series of pandas or Polars
        return units.to_list()
    if hasattr(units, "to_numpy"):  # a table of one column
        units = units.to_numpy()
    if isinstance(units, np.ndarray):
        if units.ndim == 2 and units.shape[1] == 1:
            units = units[:, 0]
        if units.ndim != 1:
            raise TypeError(f"units must be one column, got an array of {units.ndim} axes")
        whole = units.dtype.kind in "iub" and not isinstance(units, np.ma.MaskedArray)
        return units if whole else units.tolist()
    return list(units)


def _checked(values: list[Any]) -> list[Hashable]:
    """Return identifiers that can be told apart; errors quote none of them."""
    trouble: Exception | None = None
    found: list[Hashable] = []
    try:
        found = [_identifier(value) for value in values]
        dict.fromkeys(found)
    except _MissingError:
        trouble = ValueError(MISSING_IDENTIFIERS)
    except Exception:  # whatever it says would quote the identifier; it ends here
        trouble = TypeError(
            "the identifiers in units must be hashable and equal where units are (numbers, text, "
            "tuples, ...), one per row in one column"
        )
    if trouble is not None:
        raise trouble
    return found


class _MissingError(Exception):
    pass


def _identifier(value: Any) -> Hashable:
    """Return one identifier, or raise: missing, or equal to nothing but itself."""
    # Content, not objects: a type of somebody's own may compare and hash as it likes.
    if isinstance(value, (int, np.integer)):
        return int.__int__(value) if isinstance(value, int) else int(value)
    if isinstance(value, str):
        text = str.__str__(value)
        if not (said := text.strip()) or said in MISSING_TEXT:
            raise _MissingError
        return text
    if isinstance(value, bytes):  # text of a fixed width, or that nobody has decoded
        said = value.decode("latin-1").strip("\0 \t\n\v\f\r")
        if not said or said in MISSING_TEXT:
            raise _MissingError
    if isinstance(value, (tuple, frozenset)):
        return (tuple if isinstance(value, tuple) else frozenset)(map(_identifier, value))
    if hasattr(value, "detach"):  # a tensor has the hash of its place in memory
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value):
        raise _MissingError
    kind: Any = type(value)
    if kind.__hash__ is object.__hash__:
        raise TypeError
    known: Hashable = value
    return known


def _refuse_lost_digits(known: Iterable[Hashable], given: Any) -> None:
    """Raise if numbers may have become others, in a type that does not hold them."""
    columns = given.dtypes if hasattr(given, "columns") else ()  # of a table of one column
    kinds = [getattr(given, "dtype", getattr(given, "type", "")), *columns]
    named = (str(kind).lower().removeprefix("torch.") for kind in kinds)
    limit = min((_WHOLE[kind] for kind in named if kind in _WHOLE), default=_WHOLE_DOUBLE)

    def lost(number: Hashable) -> bool:
        if isinstance(number, np.floating):
            own = _WHOLE.get(number.dtype.name, _WHOLE_DOUBLE)
            return bool(abs(number) >= min(own, limit))
        return isinstance(number, float) and abs(number) >= limit

    if any(map(lost, known)):
        raise ValueError(
            "identifiers in units are floating-point numbers so large that neighbours are the same "
            "number: different units may have become one, which is not hidden as one. Read the "
            "column as whole numbers or as text."
        )


def _refuse_equal_contents(known: Iterable[Hashable]) -> None:
    """Raise if objects with the same content are different keys: of such hashes nothing follows."""
    contents: set[bytes] = set()
    number = 0
    for name in known:
        if type(name) in _PLAIN or isinstance(name, np.generic):
            continue
        try:
            contents.add(pickle.dumps(name))
        except Exception:  # what has no content that can be compared is compared by itself alone
            continue
        number += 1
    if len(contents) < number:
        raise TypeError(
            "identifiers in units hold the same and are different to Python, because equal ones "
            "have different hashes: give what they hold (numbers, text, tuples, ...) instead"
        )


def _warn_of_twins(known: dict[Hashable, int]) -> None:
    """Say if identifiers look as if they were meant to be the same."""
    texts = [name for name in known if isinstance(name, str)]
    if 0 < len(texts) < len(known) and any(isinstance(n, (int, float, bytes)) for n in known):
        warnings.warn(
            "units holds text and numbers: 17 and '17' are two units. If they are one, as in a "
            "column that was read in parts, convert all of them to text first.",
            stacklevel=4,
        )
    alike = {_spelt_plainly(text) for text in texts}
    if len(alike) < len(texts):
        warnings.warn(
            "identifiers in units differ from others in nothing but capitals, spaces around them, "
            "the spelling of their characters or of a number (7, 007, 7.0), and are taken for "
            "different units. If they are the same, write them alike first.",
            stacklevel=4,
        )


def _spelt_plainly(text: str) -> str:
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).casefold().strip()
    number = _NUMBER.fullmatch(plain)
    return plain if number is None else number[1].removeprefix("+") + number[2]


def _in_order(values: NDArray[Any]) -> NDArray[np.int64]:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
