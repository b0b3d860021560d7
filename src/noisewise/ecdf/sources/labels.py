"""Which labels of a column are positive, decided by code so that engines and arrays agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MISSING", "NEGATIVE", "OTHER", "POSITIVE", "SIGNED", "LabelRule"]

#: Codes of a label: 0, 1, -1 (negative too), anything else, none.
NEGATIVE, POSITIVE, SIGNED, OTHER, MISSING = range(5)


@dataclass(frozen=True)
class LabelRule:
    """A column of labels and which of them is positive.

    Parameters
    ----------
    column : str
    positive : object, optional
        The positive label; all others are negative. By default 1, beside 0 or -1.
    """

    column: str
    positive: Any = None

    def codes(self, labels: NDArray[np.generic]) -> NDArray[np.int64]:
        """Return the codes of labels none of which is missing."""
        if self.positive is not None:
            return np.where(np.asarray(labels == self.positive, np.bool_), POSITIVE, NEGATIVE)
        numbers = labels.astype(np.float64)
        found = np.select([numbers == 1, numbers == 0, numbers == -1], [POSITIVE, NEGATIVE, SIGNED])
        found[(found == NEGATIVE) & (numbers != 0)] = OTHER
        return np.asarray(found, np.int64)

    def check(self, seen: set[int]) -> None:
        """Refuse labels by the codes that occur, as arrays of labels are refused."""
        if MISSING in seen:
            raise ValueError(
                f"column {self.column!r} holds missing labels; drop or impute such records first"
            )
        if OTHER in seen or {NEGATIVE, SIGNED} <= seen:
            raise ValueError(
                f"column {self.column!r} must hold 0 and 1, or -1 and 1, and holds other labels: "
                "give pos_label to say which one is positive"
            )
