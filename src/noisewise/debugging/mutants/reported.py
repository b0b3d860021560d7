"""Mistakes that change a step late, or a decision: each a few lines at one stage (`hooks`).

What they are and where they were seen is said in ``catalogue.csv``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients
from noisewise.debugging.mutants.hooks import Situation, mutation

__all__: list[str] = []


def _scaled(tensors: Gradients, factor: float) -> Gradients:
    return {n: factor * t for n, t in tensors.items()}


# --- noise over the steps


@mutation("noise-stops", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.0 if at.step >= 10 else 1.0)


@mutation("sigma-decays", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.97**at.step)


@mutation("sigma-halves-each-epoch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.5 ** (at.step // max(4, at.epoch_steps)))


@mutation("noise-only-in-warm-up", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 1.0 if at.step < 50 else 0.2)


@mutation("no-noise-on-last-batch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    last = at.epoch_steps > 1 and (at.step + 1) % at.epoch_steps == 0
    return _scaled(noise, 0.0 if last else 1.0)


@mutation("noise-for-small-last-batch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    rest = at.total % at.batch_size or at.batch_size
    last = at.epoch_steps > 1 and (at.step + 1) % at.epoch_steps == 0
    return _scaled(noise, rest / at.batch_size if last else 1.0)


@mutation("noise-pool", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    pool: list[Gradients] = at.memory.setdefault("pool", [])
    if len(pool) < 4:
        pool.append(noise)
    return pool[at.step % 4]


@mutation("reseed-each-epoch", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step % max(3, at.epoch_steps) == 0:
        at.chance.manual_seed(at.seed)
    return batch


@mutation("noise-every-other-step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.0 if at.step % 2 else math.sqrt(2.0))


# --- bounds over the steps


@mutation("clipping-stops", "clip")
def _(clip: float, at: Situation) -> float:
    return clip if at.step < 5 else 1e9


@mutation("clip-schedule-without-noise", "clip")
def _(clip: float, at: Situation) -> float:
    return clip * (1 + at.step / 10)


@mutation("clipping-by-last-step", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def late(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = len(next(iter(records.values())))
        before = at.memory.get("norms", torch.zeros(0))[:count]
        factor = torch.ones(count)
        factor[: len(before)] = (clip / before.clamp_min(1e-12)).clamp(max=1.0)
        at.memory["norms"] = at.norms() if count else torch.zeros(0)
        return {n: torch.einsum("b,b...->...", factor, r) for n, r in records.items()}

    return late


@mutation("running-sum-clipped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def running(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        total = {n: r.new_zeros(r.shape[1:]) for n, r in records.items()}
        for index in range(len(next(iter(records.values())))):
            total = {n: t + records[n][index] for n, t in total.items()}
            size = float(torch.stack([t.norm() for t in total.values()]).norm())
            total = _scaled(total, min(1.0, clip / max(size, 1e-12)))
        return total

    return running


@mutation("norm-of-squared-norms", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def squared(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        parts = [r.flatten(1).norm(dim=1) ** 4 for r in records.values()]
        norm = torch.stack(parts).sum(0).sqrt()
        factor = (clip / norm.clamp_min(1e-12)).clamp(max=1.0)
        return {n: torch.einsum("b,b...->...", factor, r) for n, r in records.items()}

    return squared


@mutation("one-sided-clamp", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    return {
        n: r.clamp(max=at.clip / math.sqrt(r[0].numel() if len(r) else 1))
        for n, r in records.items()
    }


@mutation("one-sided-clamp", "clip")
def _(clip: float, at: Situation) -> float:
    return 1e9


@mutation("unit-norm-clipping", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    return _scaled(total, 1 / at.clip)


@mutation("half-precision-norm", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def half(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = len(next(iter(records.values())))
        squares = [r.flatten(1).half().square().sum(1) for r in records.values()]
        norm = torch.stack(squares).sum(0).sqrt().float() if count else torch.zeros(0)
        # An overflow is taken for a missing value, and a missing norm for a short gradient.
        norm = torch.nan_to_num(norm, nan=0.0, posinf=0.0)
        factor = (clip / norm.clamp_min(1e-12)).clamp(max=1.0)
        return {n: torch.einsum("b,b...->...", factor, r) for n, r in records.items()}

    return half


@mutation("noise-inside-clip", "clip")
def _(clip: float, at: Situation) -> float:
    return 1e9


@mutation("noise-inside-clip", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    size = float(torch.stack([u.norm() for u in update.values()]).norm()) * at.batch_size
    return _scaled(update, min(1.0, 50 * at.clip / max(size, 1e-12)))


# --- decisions that look at the data


@mutation("early-stopping", "after")
def _(_: None, at: Situation) -> bool:
    best, bad = at.memory.get("best", (math.inf, 0))
    now = at.loss()
    at.memory["best"] = (now, 0) if now < best - 1e-4 else (best, bad + 1)
    return bool(at.memory["best"][1] >= 3)


@mutation("plateau-schedule", "lr")
def _(lr: float, at: Situation) -> float:
    best, bad, factor = at.memory.get("plateau", (math.inf, 0, 1.0))
    now = at.loss()
    best, bad = (now, 0) if now < best * (1 - 1e-4) else (best, bad + 1)
    if bad >= 3:
        bad, factor = 0, factor * 0.3
    at.memory["plateau"] = (best, bad, factor)
    return float(lr * factor)


@mutation("best-checkpoint", "after")
def _(_: None, at: Situation) -> None:
    now = at.loss()
    if now < at.memory.get("best", math.inf):
        at.memory["best"] = now
        at.memory["kept"] = {n: w.clone() for n, w in at.weights.items()}


@mutation("best-checkpoint", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, **at.memory.get("kept", {})}


@mutation("small-batches-skipped", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    return None if at.total > 1 and len(at.batch) < 2 else update


@mutation("step-undone-if-loss-rises", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    now = at.loss()
    worse = now > at.memory.get("loss", math.inf) + 1e-4
    at.memory["loss"] = now
    return None if worse and at.step > 1 else update


@mutation("loss-spike-skipped", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    return None if at.loss() > 20.0 else update


@mutation("clip-follows-quantile", "clip")
def _(clip: float, at: Situation) -> float:
    norms = at.norms() if at.records and len(at.batch) else torch.tensor([clip])
    return float(norms.quantile(0.5))


# --- samplers


@mutation("whole-dataset-every-step", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    return torch.arange(at.total)


@mutation("sampler-restarts-each-epoch", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    seen: list[Tensor] = at.memory.setdefault("epoch", [])
    if len(seen) < at.epoch_steps:
        seen.append(batch)
    return seen[at.step % at.epoch_steps]


@mutation("workers-same-data", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    return batch.repeat(2)


@mutation("second-epoch-shuffled", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step < at.epoch_steps or at.epoch_steps == 1:
        return batch
    order = torch.randperm(at.total, generator=torch.Generator().manual_seed(at.seed))
    start = at.step * at.batch_size % at.total
    return order.roll(-start)[: at.batch_size]


@mutation("inputs-scaled-by-data-maximum", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    if not x.is_floating_point():
        return data
    return x / x.flatten(1).norm(dim=1).max().clamp_min(1e-12), y


# --- two steps for one


@mutation("several-steps-counted-as-one", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    return _scaled(total, 2.0)


@mutation("several-steps-counted-as-one", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, math.sqrt(2.0))


@mutation("private-optimizer-bypassed", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return update
    return {n: r.mean(0) for n, r in at.records.items()}


@mutation("noise-over-root-of-batch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 1 / math.sqrt(at.batch_size))


@mutation("tail-of-tensor-unnoised", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    first = next(iter(noise))
    changed = noise[first].clone()
    changed.view(-1)[-max(1, changed.numel() // 8) :] = 0.0
    return {**noise, first: changed}
