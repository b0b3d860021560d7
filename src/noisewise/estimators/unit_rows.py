"""Units of several rows in the estimators: who is who, and one row of each where rows count."""

from __future__ import annotations

from typing import Any

import torch

from noisewise.datasets import Schema
from noisewise.privacy import require_same_order
from noisewise.training import Streams, UnitTable

__all__ = ["one_row_each", "read_units", "rows_of"]


def rows_of(x: Any) -> int:
    """Return the number of rows of a table."""
    return int(x.shape[0]) if hasattr(x, "shape") else len(x)


def read_units(schema: Schema | None, x: Any, units: Any) -> UnitTable | None:
    """Read who the rows belong to; None if each is a unit of its own."""
    if units is None and schema is not None:
        units = schema.units(x)
    require_same_order(x, units)
    return None if units is None else UnitTable.of(units, rows_of(x))


def one_row_each(
    table: UnitTable | None, seed: int | None, bound_to: bytes, x: Any, target: Any
) -> tuple[Any, Any]:
    """One row of each unit, chosen by chance: what a row adds to a count is what a unit adds."""
    if table is None:
        return x, target
    chance = Streams(seed, "one row of a unit", bound_to=bound_to).choice(-1)
    rows = table.rows_of(torch.arange(len(table)), 1, chance)
    return x[rows.numpy()], target[rows]
