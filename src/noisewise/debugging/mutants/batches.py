"""Stage 1 of a mutant: which records are in a batch. Right: each by itself, with rate q."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["batches"]


def batches(
    bug: str | None, total: int, batch_size: int, steps: int, draw: torch.Generator
) -> Iterator[Tensor]:
    """Yield the numbers of the records of each step."""
    rate = min(1.0, batch_size / total)
    if bug == "twice-the-rate":
        rate = min(1.0, 2 * rate)
    order = torch.randperm(total, generator=draw)
    chances = torch.full((total,), rate)
    if bug == "weighted-sampler":
        chances = (rate * torch.linspace(0.1, 1.9, total)).clamp(max=1.0)
        chances = chances if rate < 1 else torch.ones(total)
    if bug == "incomplete-batch-dropped":
        chances[total - total % batch_size :] = 0.0
    first = None
    for step in range(steps):
        if bug == "shuffle":
            start = step * batch_size % total
            batch = order.roll(-start)[:batch_size]
        elif bug == "fixed-size":
            batch = torch.randperm(total, generator=draw)[:batch_size]
        elif bug == "with-replacement":
            batch = torch.randint(total, (batch_size,), generator=draw)
        else:
            batch = torch.nonzero(torch.rand(total, generator=draw) < chances).flatten()
            while bug == "resample-empty" and len(batch) == 0:
                batch = torch.nonzero(torch.rand(total, generator=draw) < chances).flatten()
        if bug == "poisson-truncated":
            batch = batch[:batch_size]
        if bug == "same-batch-every-step":
            first = batch if first is None else first
            batch = first
        yield batch
