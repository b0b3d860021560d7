"""Lengths of records, each a row: sums of squares without loss (docs/proofs/rounding.md#norms)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["SQUARES_AT_ONCE", "row_norms", "underflow"]

#: Entries whose squares are added in float32: #norms.
SQUARES_AT_ONCE = 512
#: Root of the smallest normal number: the square of anything smaller may count nothing.
_UNDERFLOW = {torch.float32: 2.0**-63, torch.float64: 2.0**-511}


def row_norms(rows: Tensor) -> Tensor:
    """Norm of every row in float64, never too small by more than 2e-5 of it: #norms.

    float32 squares are added in blocks, since a long float32 sum loses percents of itself.
    Squares that underflow are made up for, and those that overflow give infinity.
    """
    flat = rows if rows.dim() == 2 else rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)
    flat = flat if flat.dtype in _UNDERFLOW else flat.float()
    entries = flat.shape[1]
    if flat.dtype == torch.float64 or entries <= SQUARES_AT_ONCE:
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1).double()
    else:
        whole = entries - entries % SQUARES_AT_ONCE
        parts = flat[:, :whole].reshape(len(flat), -1, SQUARES_AT_ONCE)
        blocks = torch.linalg.vector_norm(parts, dim=2).double()
        if whole < entries:
            rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True)
            blocks = torch.cat([blocks, rest.double()], 1)
        norms = torch.linalg.vector_norm(blocks, dim=1)
    return norms + underflow(entries, flat.dtype)


def underflow(entries: int, dtype: torch.dtype) -> float:
    """Bound what squares that vanish can take from the norm of so many entries."""
    return math.sqrt(entries) * _UNDERFLOW[dtype]
