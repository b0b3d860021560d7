"""What a source answers to one grouped count."""

from __future__ import annotations

from dataclasses import dataclass

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray

__all__ = ["Answer", "Piece"]

#: Values, codes of their labels, and whether a value is missing.
Piece = tuple[FloatArray, IntArray | None, bool]


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
    """

    tables: dict[str, IntArray]
    absent: bool
    labels: set[int]
    ends: tuple[float, float] | None

    @property
    def counts(self) -> IntArray:
        """Records by label and bin."""
        return self.tables["count"]
