"""Schemas taken from the data itself, for studies that report no epsilon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from noisewise import checks
from noisewise.datasets.cells import SchemaError, numbers
from noisewise.datasets.columns import Categorical, Column, Drop, Numeric

__all__ = ["declarations"]


def declarations(
    frame: pd.DataFrame, target: str | None, method: str, max_categories: int
) -> dict[str, Any]:
    """Return the arguments of a Schema that is marked as not sound."""
    checks.choice("method", method, ("min-max", "mean-std"))
    checks.integer("max_categories", max_categories, minimum=1)
    if target is not None and target not in frame.columns:
        raise SchemaError(f"the table has no target column {target!r}")
    columns: dict[str, Column] = {}
    for name in frame.columns:
        if name != target:
            columns[str(name)] = _column(str(name), frame[name], method, max_categories)
    arguments: dict[str, Any] = {
        "columns": columns,
        "target": target,
        "source": "the private data itself",
        "sound": False,
        "reason": (
            f"its ranges ({method}) and categories were read from the private records themselves, "
            "so every record influenced the encoding of all others without any noise."
        ),
    }
    if target is not None:
        cells = frame[target]
        if pd.api.types.is_float_dtype(cells.dtype):
            arguments["target_range"] = _range(target, cells, "min-max")
        else:
            arguments["classes"] = _distinct(cells)
    return arguments


def _column(name: str, cells: pd.Series[Any], method: str, max_categories: int) -> Column:
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return _range(name, cells, method)
    distinct = _distinct(cells)
    if not 0 < len(distinct) <= max_categories:
        return Drop(f"{len(distinct)} distinct values")
    return Categorical(distinct, missing=bool(cells.isna().any()))


def _range(name: str, cells: pd.Series[Any], method: str) -> Numeric:
    values = numbers(name, cells)
    missing = "indicator" if np.isnan(values).any() and method != "target" else "zero"
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return Numeric(0, 1)
    if method == "mean-std":
        middle, spread = float(values.mean()), 3.0 * float(values.std())
        low, high = middle - spread, middle + spread
    else:
        low, high = float(values.min()), float(values.max())
    return Numeric(low, high if high > low else low + 1.0, missing=missing)


def _distinct(cells: pd.Series[Any]) -> tuple[Any, ...]:
    return tuple(sorted(pd.unique(cells.dropna()).tolist()))
