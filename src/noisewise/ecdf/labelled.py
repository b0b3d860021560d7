"""Labels and scores as the private curves need them: two classes, no missing values.

What counts as positive is decided by a public rule (`pos_label`), never by which labels happen
to be there: a dataset that has only one class is a neighbour of one that has two, so it
gets noise like any other and not an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf.counted import Counted
from noisewise.ecdf.grid import as_records
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.privacy import unit_codes
from noisewise.release import EACH_PARTY, PerUnit, as_units, chosen_among_all

__all__ = ["as_labelled", "as_parties", "as_positive", "with_codes"]


def as_positive(y: Any, pos_label: Any = None, name: str = "y") -> NDArray[np.bool_]:
    """Return which records are positive.

    Parameters
    ----------
    y : array
        Labels: booleans, 0 and 1, -1 and 1, or anything if `pos_label` is given.
    pos_label : object, optional
        The positive label; all others are negative. By default 1 (or True).
    name : str
        For messages.
    """
    labels = checks.array(name, y)
    if labels.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {labels.shape}")
    if labels.dtype.kind == "O":
        missing = [label is None or label != label for label in labels.tolist()]
        if any(missing):
            raise ValueError(f"{name} holds missing labels; leave such records out first")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"{name} holds NaN; leave records without a label out first")
    if pos_label is not None:
        return np.asarray(labels == pos_label, np.bool_)
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} holds labels of type {labels.dtype}: say which one is positive, "
            "for example pos_label='yes'"
        )
    negatives = set(np.unique(labels).tolist()) - {1}
    if len(negatives) > 1 or not negatives <= {0, -1}:
        raise ValueError(
            f"{name} must hold 0 and 1, or -1 and 1, and holds other labels: give pos_label to say "
            "which one is positive"
        )
    return np.asarray(labels == 1, np.bool_)


def as_labelled(y: Any, score: Any, pos_label: Any = None, name: str = "score") -> FloatArray:
    """Return records of two columns: whether positive (0 or 1), and the score."""
    positive = as_positive(y, pos_label)
    scores = as_records(score, name)
    if positive.size != scores.size:
        raise ValueError(
            f"y and {name} must have one entry for each record, got {positive.size} labels "
            f"and {scores.size} scores"
        )
    return np.column_stack([positive.astype(np.float64), scores])


def as_parties(y: Any, score: Any, pos_label: Any = None) -> list[FloatArray]:
    """Return the records of several parties, from a list of labels and a list of scores."""
    if len(y) != len(score):
        raise ValueError(
            f"with an aggregator, y and score are lists with one array for each party, got "
            f"{len(y)} and {len(score)}"
        )
    return [as_labelled(a, b, pos_label) for a, b in zip(y, score, strict=True)]


def with_codes(
    records: Any, units: Any, bounded: PerUnit | None = None, *, parties: bool = False
) -> Any:
    """Return records with a last column that says which rows are one unit's.

    Parameters
    ----------
    records : array, or list with one array for each party
    units : sequence or Units
        One identifier for each row; a list of such for parties.
    bounded : PerUnit, optional
        Chooses rows of units that several parties know under one identifier.
    parties : bool
        Whether there are several. Without a common identifier, rows of a unit at two of them are
        not brought together.
    """
    if isinstance(records, Counted):
        return records  # bounded where the rows are
    if not parties:
        return np.column_stack([records, unit_codes(units, len(records))])
    given = as_units(units)
    each = given.identifiers
    if isinstance(each, (str, bytes)) or not hasattr(each, "__len__") or len(each) != len(records):
        raise ValueError(f"{EACH_PARTY}: here {len(records)}")
    if given.common:
        assert bounded is not None
        for part, mine in zip(records, each, strict=True):
            unit_codes(mine, len(part))  # before anything is done with them
        rows, codes = chosen_among_all(given, bounded)
        chosen = [np.asarray(part)[own] for part, own in zip(records, rows, strict=True)]
        return [np.column_stack([part, own]) for part, own in zip(chosen, codes, strict=True)]
    return [with_codes(part, mine) for part, mine in zip(records, each, strict=True)]
