"""Names of columns that say who a row belongs to: rows are not people."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["looks_like_unit"]

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
