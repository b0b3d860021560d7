"""Identifiers of units: who a row belongs to, and nothing that could be shown of them.

A unit is what is protected: a patient with all visits, a customer with all transactions. Its
identifiers may be anything hashable. Here they become numbers without meaning, in the order in
which they come; beyond this file nobody sees an identifier, and no error here quotes one.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["unit_codes"]


def unit_codes(units: Any, rows: int | None = None) -> NDArray[np.int64]:
    """Number the units of all rows from 0, in the order in which they come.

    Parameters
    ----------
    units : sequence
        One identifier per row: a list, an array, a tensor, a pandas column.
    rows : int, optional
        How many there must be.

    Raises
    ------
    ValueError
        If there are too few or too many, or one is missing (None or not a number). No identifier
        is shown.
    TypeError
        If they cannot be told apart: not hashable, or more than one column.

    Examples
    --------
    >>> unit_codes(["b", "a", "b", "c"]).tolist()
    [0, 1, 0, 2]
    """
    values = _column(getattr(units, "identifiers", units))
    if rows is not None and len(values) != rows:
        raise ValueError(
            f"units needs one identifier for each of the {rows} rows, got {len(values)}"
        )
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub":
        return _in_order(values)
    known: dict[Any, int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    trouble = ""
    for row, value in enumerate(values):
        try:
            # A value that differs from itself is not a number, not a time, or pandas' missing.
            if value is None or bool(value != value):
                trouble = "missing"
                break
            codes[row] = known.setdefault(value, len(known))
        except (TypeError, ValueError) as error:
            # The error would quote the identifier; it ends here.
            trouble = "missing" if "ambiguous" in str(error) else "unhashable"
            break
    if len({isinstance(value, (str, bytes)) for value in known}) > 1:
        warnings.warn(
            "units holds text and numbers: 17 and '17' are two units. If they are one, as in a "
            "column that was read in parts, convert all of them to text first.",
            stacklevel=3,
        )
    if trouble == "missing":
        raise ValueError(
            "an identifier in units is missing (None, NaN or NaT). A row of an unknown unit cannot "
            "be protected together with the unit's other rows: leave such rows out, or give each "
            "of them a unit of its own if you know that it is one."
        )
    if trouble:
        raise TypeError(
            "the identifiers in units must be hashable (numbers, strings, tuples, ...), one per "
            "row in one column"
        )
    return codes


def _column(units: Any) -> Any:
    if hasattr(units, "detach"):  # a tensor, without importing torch here
        units = units.detach().cpu().numpy()
    if isinstance(units, (str, bytes)) or not hasattr(units, "__len__"):
        raise TypeError(
            f"units must hold one identifier per row (a list, an array, a column), got a "
            f"{type(units).__name__}"
        )
    if hasattr(units, "to_numpy"):
        units = units.to_numpy(dtype=object)
    if isinstance(units, np.ndarray):
        if units.ndim == 2 and units.shape[1] == 1:
            units = units[:, 0]
        if units.ndim != 1:
            raise TypeError(f"units must be one column, got an array of {units.ndim} axes")
        return units if units.dtype.kind in "iub" else units.tolist()
    if isinstance(units, (dict, set, frozenset)):
        raise TypeError("units must be in the order of the rows, which a dict or set has not")
    return list(units)


def _in_order(values: NDArray[Any]) -> NDArray[np.int64]:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
