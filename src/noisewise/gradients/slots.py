"""Whether kernels compute a record's numbers alike, to the bit, in every slot of a piece.

Kernels may compute rows in different ways (those at an edge, or at another alignment). Which way a
row goes depends on shapes, not on the records' values (docs/proofs/rounding.md, premise 2), so it
can be seen on made-up records: each is put into all slots, and its loss, factors and lengths must
be the same everywhere, to the bit. Sums of few terms may agree by accident, so several are tried,
some with terms of very different sizes. Nothing of a record is looked at, unless the program takes
no made-up one. (That the program itself treats all records alike is shown for all values:
`noisewise.separation.alike`.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from noisewise.gradients.contractions import Contraction

__all__ = ["KINDS", "TRIALS", "Difference", "one_record_everywhere"]

#: How many records are made up.
TRIALS = 4


#: Kinds of made-up records, one after the other until the program takes one: floats of any sign
#: or between 0 and 1, with whole numbers below 2 or 1; in the end the first record itself.
KINDS = ((False, 2), (False, 1), (True, 2), (True, 1), None)


def one_record_everywhere(
    x: Any, y: Any, trial: int, kind: tuple[bool, int] | None = KINDS[0]
) -> tuple[Any, Any]:
    """One record in every slot, made up as `kind` says."""
    drawn = torch.Generator().manual_seed(trial)

    def leaf(value: Any, draw: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        row = value[:1]
        if kind is not None and value.is_floating_point():
            # In double precision: rounder numbers would hide how doubles are rounded.
            draw = torch.rand if kind[0] else draw
            row = draw(row.shape, generator=drawn, dtype=torch.float64).to(value)
        elif kind is not None and not value.is_complex():
            # Ones first: a mask of zeros would hide everything.
            lowest = kind[1] - 1 if trial == 0 else 0
            row = torch.randint(lowest, kind[1], row.shape, generator=drawn).to(value)
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
    """Whether anything was found that is not the same in every slot."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.found = False

    def look(self, contraction: Contraction) -> None:
        """Compare the factors of all records of one use."""
        with _disable_current_modes():  # whoever follows the run does not follow us
            self.compare([factor for _, factor in contraction.ingredients()])

    def compare(self, tensors: Iterable[Tensor], count: int | None = None) -> None:
        """Compare all records (or `count` units) in tensors whose first axis counts them."""
        count = self.records if count is None else count
        for tensor in tensors:
            if not tensor.dim() or not tensor.is_floating_point():
                continue
            if tensor.shape[0] % count:
                continue
            rows = tensor.detach().reshape(count, -1)
            same = (rows == rows[:1]) | rows.isnan()
            self.found = self.found or not bool(same.all())
