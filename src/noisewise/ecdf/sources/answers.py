"""What a source answers to one grouped count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.release import PerUnit

__all__ = ["Answer", "Piece", "Whose"]


class Piece(NamedTuple):
    """Some rows: values, codes of their labels, whether a value is missing, and whose they are."""

    values: FloatArray
    codes: IntArray | None
    missing: bool
    identifiers: Any = None


@dataclass(frozen=True, eq=False)
class Whose:
    """A column that says whose row it is, and how rows of a unit are bounded together.

    Parameters
    ----------
    column : str
    bounded : PerUnit
        By weights, which need no chance.
    """

    column: str
    bounded: PerUnit


@dataclass(frozen=True, eq=False)
class Answer:
    """Integer totals by label (negative, positive) and bin, and what was wrong with the columns.

    Parameters
    ----------
    tables : dict of str to array
        "count", and one table for each sum.
    absent : bool
        Whether a value is missing or NaN.
    labels : set of int
        Codes of the labels that occur.
    ends : pair of float, optional
        Least and largest value; private.
    units : int, optional
        Their number, if rows of units were bounded together; private, too. Counts are then in steps
        of such a bound, and so is the table "weight" of sums.
    unknown : bool
        Whether an engine found that an identifier of a unit is missing.
    """

    tables: dict[str, IntArray]
    absent: bool
    labels: set[int]
    ends: tuple[float, float] | None
    units: int | None = None
    unknown: bool = False

    @property
    def counts(self) -> IntArray:
        """Records by label and bin."""
        return self.tables["count"]
