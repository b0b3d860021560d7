"""Whether a record's numbers depend on the slot of a piece that it is in.

Kernels may compute rows in different ways (those at an edge, or at another alignment), and a model
may treat rows differently (a constant that varies from row to row, the first half of a batch).
Which way a row goes depends on shapes and constants, not on the records' values
(docs/proofs/rounding.md, premise 2), so it can be seen on made-up records: each is put into all
slots, and its loss, factors and lengths must be the same everywhere, to the bit. Sums of
few terms may agree by accident, so several are tried, some with terms of very different sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.contractions import Contraction

__all__ = ["LAST_BITS", "TRIALS", "UNSEEN", "Difference", "one_record_everywhere"]

TRIALS = 4

#: Differences beyond this are the program's doing, not that of rounding.
LAST_BITS = 1e-3
#: Stands for a path that could not be compared: perhaps in its last bits it differs.
UNSEEN = 1e-9


def one_record_everywhere(x: Any, y: Any, trial: int) -> tuple[Any, Any]:
    """A made-up record in every slot; whole numbers are those of the first record."""
    drawn = torch.Generator().manual_seed(trial)

    def leaf(value: Any, draw: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        row = value[:1]
        if value.is_floating_point():
            # In double precision: rounder numbers would hide how doubles are rounded.
            row = draw(row.shape, generator=drawn, dtype=torch.float64).to(value)
        return row.expand_as(value).contiguous()

    def spread(shape: torch.Size, **options: Any) -> Tensor:
        sizes = torch.randint(-6, 7, shape, generator=drawn)
        return torch.randn(shape, **options) * 2.0**sizes

    # Targets between 0 and 1 suit every loss.
    return (
        pytree.tree_map(lambda v: leaf(v, spread if trial % 2 else torch.randn), x),
        pytree.tree_map(lambda v: leaf(v, torch.rand), y),
    )


class Difference:
    """The largest difference between slots, relative to the factor that it was found in."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.largest = 0.0

    def look(self, contraction: Contraction) -> None:
        """Compare the factors of all records of one use."""
        self.compare([factor for _, factor in contraction.ingredients()])

    def compare(self, tensors: Iterable[Tensor]) -> None:
        """Compare all records in tensors whose first axis counts them, or their rows."""
        for tensor in tensors:
            if not tensor.dim() or not tensor.is_floating_point():
                continue
            if tensor.shape[0] % self.records:
                continue
            rows = tensor.detach().reshape(self.records, -1)
            first = rows[:1].expand_as(rows)
            if torch.equal(rows, first):
                continue
            gap = torch.where(rows == first, 0.0, (rows - first).abs().nan_to_num(0.0))
            scale = rows.abs().nan_to_num(0.0, 0.0, 0.0).amax().clamp_min(1e-30)
            self.largest = max(self.largest, float((gap.amax() / scale).double()))
