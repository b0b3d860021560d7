"""Batches as users bring them: a tensor, several, or a dict; records along the first axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Seeded", "count_records", "finite_records", "fold_views", "leading", "slice_batch"]


class Seeded(torch.autograd.Function):
    """The mean of the losses; backward, the seed of every row (one over the views).

    Whatever multiplies the loss afterwards is ignored: a factor would change the sum that
    the sensitivity belongs to.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, seeds: Tensor) -> Tensor:
        """Return the mean."""
        ctx.seeds = seeds
        return losses.detach().mean() if losses.numel() else losses.detach().sum()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Return the seeds, whatever arrives."""
        return ctx.seeds, None


def leading(values: Any) -> int:
    """Return the number of rows, which must be the same for all tensors."""
    sizes = {t.shape[0] if t.dim() else -1 for t in pytree.tree_leaves(values) if _is_tensor(t)}
    if not sizes:
        raise TypeError(
            f"a batch must hold torch tensors, got {type(values).__name__}; convert arrays with "
            "torch.from_numpy"
        )
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            "all tensors of a batch need the same number of records along their first axis, got "
            f"sizes {sorted(sizes)}"
        )
    return sizes.pop()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def count_records(x: Any, y: Any) -> int:
    """Return the number of records of a batch with targets."""
    records = leading(x)
    if any(_is_tensor(t) for t in pytree.tree_leaves(y)):
        targets = leading(y)
        if targets != records:
            raise ValueError(f"x has {records} records, but y has {targets}")
    return records


def slice_batch(values: Any, start: int, stop: int) -> Any:
    """Return some of the records."""
    return pytree.tree_map(lambda t: t[start:stop] if isinstance(t, Tensor) else t, values)


def fold_views(values: Any, views: int) -> Any:
    """Turn (records, views, ...) into rows (records * views, ...)."""

    def fold(value: Any) -> Any:
        if views == 1 or not isinstance(value, Tensor):
            return value
        if value.dim() < 2 or value.shape[1] != views:
            raise ValueError(
                f"with views={views}, every input needs shape (records, {views}, ...), "
                f"got {tuple(value.shape)}"
            )
        return value.flatten(0, 1)

    return pytree.tree_map(fold, values)


def finite_records(x: Any, views: int) -> tuple[Any, Tensor]:
    """Replace rows of records that are not finite by zeros; returns also which rows are kept."""
    rows = leading(x)
    kept: Tensor | None = None
    for value in pytree.tree_leaves(x):
        if isinstance(value, Tensor) and value.is_floating_point():
            # A sum is not finite if an entry is not, nor if it overflows: such a record would
            # have no finite gradient either. One pass, nothing stored.
            part = torch.isfinite(value.reshape(rows, -1).sum(1))
            kept = part if kept is None else kept & part
    if kept is None:
        device = next(t.device for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
        return x, torch.ones(rows, dtype=torch.bool, device=device)
    if views > 1:
        kept = kept.reshape(-1, views).all(1).repeat_interleave(views)
    if kept.device.type == "cpu" and bool(kept.all()):
        return x, kept
    mask = kept

    def clean(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        shaped = mask.view(-1, *[1] * (value.dim() - 1))
        return torch.where(shaped, value, torch.zeros((), dtype=value.dtype, device=value.device))

    return pytree.tree_map(clean, x), kept
