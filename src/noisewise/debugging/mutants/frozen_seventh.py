"""The seventh round: ten mistakes and ten odd but correct habits, written with the tests frozen.

Each is a few lines at one stage (`hooks`). What they are and where they were seen is said in
``catalogue.csv``. What was missed or accused when they were first run is told in the
documentation.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients
from noisewise.debugging.mutants.hooks import Situation, mutation

__all__: list[str] = []

#: Steps after which the layers that were frozen at first are trained.
UNFROZEN = 20


def _front(at: Situation) -> list[str]:
    """Names of the layers that are frozen at first: all but the last two tensors."""
    return list(at.weights)[:-2]


# Mistakes.


@mutation("loss-in-checkpoint", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, "training_loss": torch.tensor(at.loss())}


@mutation("records-drawn-in-chunks", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    chunks = -(-at.total // 4)
    drawn = torch.rand(chunks, generator=at.draw) < at.batch_size / at.total
    return torch.nonzero(drawn.repeat_interleave(4)[: at.total]).flatten()


@mutation("two-draws-in-one-batch", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    half = at.batch_size / at.total / 2
    draws = [torch.rand(at.total, generator=at.draw) < half for _ in range(2)]
    return torch.cat([torch.nonzero(drawn).flatten() for drawn in draws])


@mutation("noise-seeded-by-the-clock", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    chance = torch.Generator().manual_seed(int(time.time()))
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=chance) for n, z in noise.items()}


@mutation("noise-comes-again-after-128-steps", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    chance = torch.Generator().manual_seed(1_000_003 * (at.seed + 1) + at.step % 128)
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=chance) for n, z in noise.items()}


@mutation("unfrozen-layers-not-protected", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    front = _front(at)
    if at.step < UNFROZEN:
        return {n: torch.zeros_like(u) if n in front else u for n, u in update.items()}
    if len(at.batch) == 0:
        return update
    return {n: at.records[n].mean(0) if n in front else u for n, u in update.items()}


@mutation("large-batches-clipped-in-pairs", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def shortcut(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = len(next(iter(records.values())))
        if count > 48:
            count -= count % 2
            records = {n: r[:count:2] + r[1:count:2] for n, r in records.items()}
            clip *= 2
        total: Gradients = add_up(records, clip, micro_batch_size)
        return total

    return shortcut


@mutation("one-in-twenty-not-clipped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def hasty(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = len(next(iter(records.values())))
        left_out = torch.rand(count, generator=at.draw) < 0.05
        good = torch.stack([r.flatten(1).isfinite().all(1) for r in records.values()]).all(0)
        rest = {n: r[~left_out] for n, r in records.items()}
        total: Gradients = add_up(rest, clip, micro_batch_size)
        return {n: t + records[n][left_out & good].sum(0) for n, t in total.items()}

    return hasty


@mutation("logits-decorrelated-in-batch", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) < 2:
        return records
    last = list(at.weights)[-1]
    with torch.no_grad():
        outputs = at.model(at.data[0][at.batch])
    pull = 1e-3 * outputs.nan_to_num(0.0, 0.0, 0.0).mean(0)
    return {**records, last: records[last] + pull.reshape(records[last].shape[1:])}


@mutation("noise-multiplier-capped", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * min(1.0, 1.2 / max(at.sigma, 1e-30)) for n, z in noise.items()}


# Odd, and correct.


@mutation("size drawn first, then records", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    rate = min(1.0, at.batch_size / at.total)
    size = int((torch.rand(at.total, generator=at.draw) < rate).sum())
    return torch.randperm(at.total, generator=at.draw)[:size]


@mutation("noise shared by four workers", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    share = at.sigma * at.clip / 2
    return {
        n: sum(
            (share * torch.randn(z.shape, generator=at.chance) for _ in range(4)),
            start=torch.zeros_like(z),
        )
        for n, z in noise.items()
    }


@mutation("rows of the noisy gradient centred", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {n: u - u.mean(-1, keepdim=True) if u.ndim > 1 else u for n, u in update.items()}


@mutation("largest half of the noisy gradient", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {n: torch.where(u.abs() >= u.abs().median(), u, 0.0) for n, u in update.items()}


@mutation("rate falls with noisy lengths", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    squares = at.memory.get("squares", 0.0) + sum(float(u.square().sum()) for u in update.values())
    at.memory["squares"] = squares
    return {n: u / max(squares, 1e-30) ** 0.5 for n, u in update.items()}


@mutation("layers unfrozen in time, protected", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    front = _front(at) if at.step < UNFROZEN else []
    return {n: torch.zeros_like(u) if n in front else u for n, u in update.items()}


@mutation("sums and noise on a fine grid", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    grid = at.clip * 2.0**-16
    return {n: (t / grid).round() * grid for n, t in total.items()}


@mutation("sums and noise on a fine grid", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    grid = at.clip * 2.0**-16
    return {n: (z / grid).round() * grid for n, z in noise.items()}


@mutation("mean of the weights from step 50 on", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    if at.step >= 50:
        sums = at.memory.setdefault("sums", {n: torch.zeros_like(w) for n, w in at.weights.items()})
        for n, w in at.weights.items():
            sums[n] += w
        at.memory["count"] = at.memory.get("count", 0) + 1
    return ended


@mutation("mean of the weights from step 50 on", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    if "count" not in at.memory:
        return result
    return {**result, **{n: s / at.memory["count"] for n, s in at.memory["sums"].items()}}


@mutation("records added in random order", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    count = len(next(iter(records.values())))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(time.time_ns() % 2**31))
    return {n: r[order] for n, r in records.items()}


@mutation("tiny gradients dropped", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    norms = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    kept = (norms > 0.01 * at.clip).float()
    return {
        n: torch.where(kept.reshape(-1, *[1] * (r.ndim - 1)) > 0, r, torch.zeros_like(r))
        for n, r in records.items()
    }
