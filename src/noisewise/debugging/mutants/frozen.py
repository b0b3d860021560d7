"""The fourth round: mistakes written after the tests of late steps had been frozen.

Each is a few lines at one stage (`hooks`). What they are and where they were seen is said in
``catalogue.csv``. What was missed when they were first run is told in the documentation.
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


def _added(one: Gradients, other: Gradients, factor: float = 1.0) -> Gradients:
    return {n: t + factor * other[n] for n, t in one.items()}


def _size(tensors: Gradients) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())


def _by_factor(records: Gradients, factor: Tensor) -> Gradients:
    return {n: torch.einsum("b,b...->...", factor.to(r), r) for n, r in records.items()}


# --- what a record contributes


@mutation("raw-momentum", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    before = at.memory.get("velocity")
    velocity = total if before is None else _added(total, before, 0.5)
    at.memory["velocity"] = velocity
    return velocity


@mutation("residual-past-noise", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return _added(update, at.memory["total"], 1 / at.batch_size)


@mutation("residual-past-noise", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    at.memory["total"] = total
    return total


@mutation("tied-halves-counted-apart", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def halves(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        squares = [r.flatten(1).square().sum(1) for r in records.values()]
        squares[0] = squares[0] / 2
        norm = torch.stack(squares).sum(0).sqrt()
        return _by_factor(records, (clip / norm.clamp_min(1e-12)).clamp(max=1.0))

    return halves


@mutation("weights-after-clip", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def weighted(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norm = at.norms() if len(at.batch) else torch.zeros(0)
        factor = (clip / norm.clamp_min(1e-12)).clamp(max=1.0)
        weight = torch.where(norm > norm.median(), 1.5, 0.5) if len(norm) > 1 else 1.5
        return _by_factor(records, factor * weight)

    return weighted


@mutation("largest-tensor-norm", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def largest(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norm = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).amax(0)
        return _by_factor(records, (clip / norm.clamp_min(1e-12)).clamp(max=1.0))

    return largest


@mutation("records-carried-over", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    before = at.memory.get("before")
    at.memory["before"] = total
    return total if before is None else _added(total, before)


@mutation("clip-error-feedback", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def feedback(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        total: Gradients = add_up(records, clip, micro_batch_size)
        lost = {n: records[n].sum(0) - t for n, t in total.items()}
        before = at.memory.get("lost")
        at.memory["lost"] = lost
        return total if before is None else _added(total, before, 0.5)

    return feedback


@mutation("clipped-after-learning-rate", "clip")
def _(clip: float, at: Situation) -> float:
    return clip / at.lr


@mutation("mixup", "inputs")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    return (0.7 * x + 0.3 * x.roll(1, 0), y) if x.is_floating_point() and len(x) else data


@mutation("features-centred", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    return (x - x.mean(0), y) if x.is_floating_point() else data


@mutation("clip-is-running-maximum", "clip")
def _(clip: float, at: Situation) -> float:
    seen = float(at.norms().max()) if at.records and len(at.batch) else clip
    at.memory["largest"] = max(at.memory.get("largest", clip), seen)
    return float(at.memory["largest"])


@mutation("final-polish-step", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    if not at.records or len(at.batch) == 0:
        return result
    return {
        n: v - 0.1 * at.lr * at.records[n].mean(0) if n in at.records else v
        for n, v in result.items()
    }


@mutation("batch-clipped-per-tensor", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def batch(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        sums = {n: r.sum(0) for n, r in records.items()}
        return {n: s * min(1.0, clip / max(float(s.norm()), 1e-12)) for n, s in sums.items()}

    return batch


# --- noise


@mutation("sigma-squared", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, at.sigma)


@mutation("annealed-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, (1 + at.step) ** -0.275)


@mutation("noise-on-first-tensor-only", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    first = next(iter(noise))
    return {n: z if n == first else torch.zeros_like(z) for n, z in noise.items()}


@mutation("noise-on-divisor", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.0)


@mutation("noise-on-divisor", "divisor")
def _(divisor: float, at: Situation) -> float:
    shift = float(torch.randn((), generator=at.chance)) * min(at.sigma, 2.0) / 10
    return divisor * (1 + shift)


@mutation("noise-over-accumulation", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 1 / max(1, math.ceil(at.batch_size / 4)))


@mutation("client-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, math.sqrt(len(at.batch) / at.batch_size))


@mutation("mean-by-drawn-noise-by-expected", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    return _scaled(total, at.batch_size / max(1, len(at.batch)))


@mutation("last-tensor-half-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    last = list(noise)[-1]
    return {n: z / 2 if n == last else z for n, z in noise.items()}


@mutation("uniform-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    width = math.sqrt(12) * at.sigma * at.clip
    return {
        n: (width * (torch.rand(z.shape, generator=at.chance) - 0.5)).to(z)
        for n, z in noise.items()
    }


@mutation("top-half-by-raw", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    kept = {}
    for n, u in update.items():
        raw = at.records[n].sum(0).abs() if len(at.batch) else u.abs()
        kept[n] = torch.where(raw >= raw.flatten().median(), u, torch.zeros_like(u))
    return kept


@mutation("noise-quantised", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    unit = 0.2 * at.sigma * at.clip
    return {n: (z / unit).round() * unit if unit else z for n, z in noise.items()}


@mutation("noise-differenced", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    before = at.memory.get("noise")
    at.memory["noise"] = noise
    return noise if before is None else _added(noise, before, -1.0)


@mutation("noise-times-learning-rate", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, min(1.0, at.lr))


@mutation("fallback-without-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.0 if len(at.batch) > 8 else 1.0)


@mutation("few-seeds", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    at.chance.manual_seed(at.seed % 4)
    return data


@mutation("rank-one-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {
        n: z[:, :1] * z[:1] / (at.sigma * at.clip) if z.ndim == 2 and at.sigma * at.clip else z
        for n, z in noise.items()
    }


@mutation("noise-on-support-only", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return _scaled(noise, 0.0)
    return {n: z * (at.records[n].sum(0) != 0) for n, z in noise.items()}


@mutation("sign-from-raw", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return update
    return {n: u.abs() * at.records[n].sum(0).sign() for n, u in update.items()}


# --- decisions and samplers


@mutation("adaptive-clip-without-noise", "clip")
def _(clip: float, at: Situation) -> float:
    moved = float(at.memory.get("clip", 1.0))
    if at.records and len(at.batch):
        share = float((at.norms() < clip * moved).float().mean())
        moved *= math.exp(-0.2 * (share - 0.5))
    at.memory["clip"] = moved
    return clip * moved


@mutation("adaptive-clip-without-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, float(at.memory["clip"]))


@mutation("line-search", "lr")
def _(lr: float, at: Situation) -> float:
    now = at.loss()
    factor = float(at.memory.get("factor", 1.0))
    if now > at.memory.get("loss", math.inf):
        factor *= 0.5
    at.memory["loss"], at.memory["factor"] = now, factor
    return lr * factor


@mutation("stops-at-small-gradient", "after")
def _(_: None, at: Situation) -> bool:
    mean = {n: r.mean(0) for n, r in at.records.items()} if len(at.batch) else {}
    return bool(mean) and _size(mean) < 0.3


@mutation("plain-step-each-epoch", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    due = at.step > 0 and at.step % max(10, at.epoch_steps) == 0 and len(at.batch) > 0
    return {n: r.mean(0) for n, r in at.records.items()} if due else update


@mutation("batch-ramp", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step < 6:
        return batch
    rate = min(1.0, 2 * at.batch_size / at.total)
    return torch.nonzero(torch.rand(at.total, generator=at.draw) < rate).flatten()


@mutation("sharded-sampler", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    half = at.total // 2
    mine = torch.arange(at.total)[:half] if at.step % 2 == 0 else torch.arange(at.total)[half:]
    rate = min(1.0, 2 * at.batch_size / at.total)
    return mine[torch.rand(len(mine), generator=at.draw) < rate]


@mutation("empty-batch-filled", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    return batch if len(batch) else torch.randint(at.total, (1,), generator=at.draw)


@mutation("step-counter-in-batch-order", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # The sampler's generator is seeded by the epoch, so all runs and all users draw alike.
    epoch = at.step // at.epoch_steps
    source = torch.Generator().manual_seed(epoch)
    draws = [torch.rand(at.total, generator=source) for _ in range(at.step % at.epoch_steps + 1)]
    return torch.nonzero(draws[-1] < at.batch_size / at.total).flatten()


@mutation("loss-scaled-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, min(1.0, at.loss()))
