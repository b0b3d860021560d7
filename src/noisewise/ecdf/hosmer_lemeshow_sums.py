"""What the Hosmer-Lemeshow test sums over groups, of arrays and of tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.group_sums import SUM_UNIT, Family, SummedFamily, group_of, to_units
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.sources.tables import Column

__all__ = ["SUMMED"]

# What is summed of the records of a table, beside their number and that of positives.
SUMMED = {"residual": ("residual",), "thesis": ("expected",), "statistic": ("expected",)}


def _families(
    labels: FloatArray, predictions: FloatArray | Column, cuts: FloatArray, residual: bool
) -> tuple[NDArray[np.intp] | None, list[Family]]:
    """Return what is summed, and the group of each record where there are records here."""
    if not isinstance(predictions, Column):
        found = _residual_family(labels, predictions) if residual else _thesis(labels, predictions)
        return group_of(predictions, cuts), found
    sums = predictions.sums(cuts, SUMMED["residual" if residual else "thesis"])
    made = predictions.assumptions
    if residual:
        return None, [SummedFamily(("residual",), sums["residual"][:, None], SUM_UNIT, 1.0, made)]
    both = [
        np.column_stack([part, SUM_UNIT * sums["count"] - part])
        for part in (SUM_UNIT * sums["positives"], sums["expected"])
    ]
    return None, [
        SummedFamily(("observed_1", "observed_0"), both[0], SUM_UNIT, 0.5, made),
        SummedFamily(("expected_1", "expected_0"), both[1], SUM_UNIT, 0.5, made),
    ]


def _residual_family(labels: FloatArray, predictions: FloatArray) -> list[Family]:
    return [Family(("residual",), to_units(labels - predictions)[:, None], SUM_UNIT, 1.0)]


def _thesis(labels: FloatArray, predictions: FloatArray) -> list[Family]:
    """O1, O0, E1, E0; positives and negatives of a record always sum to one."""
    observed, expected = to_units(labels), to_units(predictions)
    both = [np.column_stack([part, SUM_UNIT - part]) for part in (observed, expected)]
    return [
        Family(("observed_1", "observed_0"), both[0], SUM_UNIT, 0.5),
        Family(("expected_1", "expected_0"), both[1], SUM_UNIT, 0.5),
    ]
