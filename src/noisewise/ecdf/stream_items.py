"""Items of a stream, checked; and of each unit only the first few, if units are protected.

Which items of a unit count cannot be chosen at random, as the later ones are not there yet. The
first `limit` do, others count 0. A unit whose items are replaced, at the same times, then changes
at most `limit` items by at most the bound each, whatever other units do: the noise is that of one
item with `limit` times the bound (docs/proofs/curves.md#streams).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.privacy import Event, identifiers_of
from noisewise.release import STREAM_UNIT

__all__ = ["FirstOfUnit", "checked_items"]


def checked_items(items: Iterable[int] | IntArray, bound: int) -> IntArray:
    """Return items as whole numbers in [0, bound], or refuse them."""
    numbers = checks.array("items", items if hasattr(items, "shape") else list(items))
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.dtype.kind not in "biu" or numbers.ndim != 1:
        raise TypeError(f"items must be whole numbers, got dtype {numbers.dtype}")
    if int(numbers.min()) < 0 or int(numbers.max()) > bound:
        raise ValueError(
            f"items must lie in [0, {bound}], and one does not: clip them, or give a larger bound"
        )
    return numbers.astype(np.int64)


class FirstOfUnit:
    """Counts at most so many items of each unit. Lives in memory: identifiers are private.

    Parameters
    ----------
    limit : int or None
        None: every item is a unit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = (
            None
            if limit is None
            else checks.integer("max_per_unit", limit, minimum=1, maximum=1 << 20)
        )
        self._seen: dict[Any, int] = {}

    @property
    def times(self) -> int:
        """How many items one unit may change."""
        return self.limit or 1

    @property
    def unit(self) -> str:
        """What is protected."""
        return (
            STREAM_UNIT
            if self.limit is None
            else "one unit: all its items of the stream, at their times"
        )

    def told(self, event: Event) -> Event:
        """Return what all items of a unit cost, told by one of them."""
        return event if self.limit is None else event.per_row(self.limit)

    @property
    def sentences(self) -> tuple[str, ...]:
        """For the statement."""
        if self.limit is None:
            return ()
        return (
            f"of each unit the first {self.limit} items count and later ones count 0",
            "all items of a unit carry its identifier, and those of no other unit do",
        )

    def require_no_file(self) -> None:
        """Raise if a stream is to be kept whose units would have to be kept with it."""
        if self.limit is not None:
            raise ValueError("max_per_unit= cannot be had with path=: identifiers are not stored")

    def kept(self, items: IntArray, units: Any) -> IntArray:
        """Return the items, with 0 for those that a unit has too many."""
        if self.limit is None:
            if units is not None:
                raise ValueError("units= needs a counter that was made with max_per_unit=")
            return items
        if units is None:
            raise ValueError("this counter has max_per_unit=: give one identifier for each item")
        names = identifiers_of(units)
        if len(names) != items.size:
            raise ValueError(
                f"units must hold one identifier for each item, got {len(names)} for {items.size}"
            )
        counted: IntArray = items.copy()
        for place, name in enumerate(names):
            before = self._seen.get(name, 0)
            if before >= self.limit:
                counted[place] = 0
            else:
                self._seen[name] = before + 1
        return counted
