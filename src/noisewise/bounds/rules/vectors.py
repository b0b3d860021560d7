"""Norms of weight vectors, rounded up in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.arithmetic import up

__all__ = ["largest_entry", "largest_row", "vector_norm", "wide"]


def wide(tensor: Tensor) -> Tensor:
    """Return a public tensor in float64, on the CPU where its device has no such type."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def _slack(entries: int) -> float:
    """Above the relative error of a float64 sum of squares and its root, in any order."""
    return 1.0 + (entries + 4) * 2.3e-16


def vector_norm(vector: Tensor | None) -> float:
    """Euclidean norm over all entries; zero for an absent vector."""
    if vector is None or vector.numel() == 0:
        return 0.0
    value = float(torch.linalg.vector_norm(wide(vector)))
    return up(value * _slack(vector.numel()))


def largest_entry(vector: Tensor | None, absent: float = 1.0) -> float:
    """Largest absolute entry, exact; `absent` if there is no vector."""
    return absent if vector is None else float(wide(vector).abs().max())


def largest_row(matrix: Tensor) -> float:
    """Largest Euclidean norm of a row."""
    rows = torch.linalg.vector_norm(wide(matrix), dim=-1)
    return up(float(rows.max()) * _slack(matrix.shape[-1]))
