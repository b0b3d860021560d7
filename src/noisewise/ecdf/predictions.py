"""Labels and predicted probabilities, as arrays or as columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from noisewise.ecdf.grid import Grid
from noisewise.ecdf.group_sums import Held
from noisewise.ecdf.labelled import as_labelled
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.sources.tables import Column, column_of
from noisewise.privacy import Relation
from noisewise.release import PerUnit

__all__ = ["as_predictions", "curve_records", "public_count"]


def as_predictions(
    y: Any,
    p: Any,
    pos_label: Any = None,
    data: Any = None,
    units: Any = None,
    bounded: PerUnit | None = None,
) -> tuple[FloatArray, FloatArray | Column]:
    """Return labels as 0.0 and 1.0, and predicted probabilities, checked.

    With a table as `data`: no labels, and a column that knows where its labels are.
    """
    if data is not None:
        return np.zeros(0), column_of(data, p, y, pos_label, units, bounded)
    rows = as_labelled(y, p, pos_label, name="p")
    labels, predictions = rows[:, 0], rows[:, 1]
    if np.any((predictions < 0) | (predictions > 1)):
        raise ValueError(
            "p must hold probabilities in [0, 1]; turn scores into probabilities by a public "
            "rule first, for example 1 / (1 + exp(-score))"
        )
    return labels, predictions


def curve_records(predictions: FloatArray | Column, bins: int) -> Any:
    """Return what a curve of the predictions counts; a table is asked now, and checked."""
    if isinstance(predictions, Column):
        return predictions.counted_probabilities(Grid.of((0.0, 1.0), bins))
    return predictions


def public_count(records: int, relation: Relation, held: Held | None = None) -> int | None:
    """Return the number of records (or of units) if it is public, or raise if there are none."""
    if not relation.count_is_public:
        return None
    if records == 0:
        raise ValueError(
            "y and p are empty: nothing can be calibrated. If the number of records is private, "
            "use relation='add-remove'."
        )
    return records if held is None else held.public_total(relation, records)
