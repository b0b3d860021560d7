"""Columns that say who a row belongs to, by their names or values: rows are not people."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

__all__ = ["holds_codes_again", "looks_like_unit"]

#: Words for people, accounts and the like, beside a word for a number or a name of theirs.
_WHO = (
    "patient|subject|person|user|customer|client|member|participant|account|employee|student|"
    "household|card|device|respondent"
)
_NUMBER = "id|ids|nbr|no|num|number|code|key|uuid|hash|pseudonym|identifier"
_NAME = re.compile(rf"^(?:{_WHO})[ _.-]?(?:{_NUMBER})$|^(?:{_NUMBER})[ _.-]?(?:{_WHO})$")


def looks_like_unit(name: Any) -> bool:
    """Whether a column's name says that it tells who a row belongs to.

    Examples
    --------
    >>> [looks_like_unit(n) for n in ("patient_nbr", "userId", "encounter_id", "age", "card")]
    [True, True, False, False, False]
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower()
    return _NAME.match(words) is not None


#: A number of some length, perhaps behind a few letters, or a universally unique identifier.
_CODE = re.compile(
    r"^(?:[A-Za-z]{0,4}[-_ ]?[0-9]{3,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$"
)
#: Of so many rows on, and of so many different codes to a row, at least.
_ROWS, _SHARE = 20, 0.05


def holds_codes_again(column: pd.Series) -> bool:
    """Whether a column's values look like numbers of people, of whom some come again.

    Examples
    --------
    >>> holds_codes_again(pd.Series([f"P{1000 + row // 2}" for row in range(40)]))
    True
    >>> holds_codes_again(pd.Series(["north", "south"] * 20))
    False
    """
    known = column.dropna()
    if len(known) < _ROWS:
        return False
    different = known.drop_duplicates()
    if not _SHARE * len(known) <= len(different) < len(known):
        return False
    words = different.astype(str).str.strip().str.removesuffix(".0")
    return float(words.map(lambda word: _CODE.match(word) is not None).mean()) > 0.95
