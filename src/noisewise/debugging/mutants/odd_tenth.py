"""Unusual things of the tenth round that correct training may do; planted like a mistake."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation

__all__: list[str] = []


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def _length(total: Gradients) -> float:
    return float(torch.stack([t.norm() for t in total.values()]).norm())


def _norms(records: Gradients) -> Tensor:
    norms: Tensor = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    return norms


@mutation("sum limited before its noise", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    # Nearest point of a ball: it moves two sums no further apart than they are.
    share = min(1.0, 3 * at.clip / max(_length(total), 1e-30))
    return {n: share * t for n, t in total.items()}


@mutation("two local steps of each record", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # A record's own way of two steps is what is clipped.
    found = {n: r.clone() for n, r in records.items()}
    kept = {n: w.clone() for n, w in at.weights.items()}
    for place, row in enumerate(at.batch.tolist()):
        if not all(bool(r[place].isfinite().all()) for r in records.values()):
            continue
        for n, w in at.weights.items():
            w.copy_(kept[n] - 0.01 * records[n][place])
        x, y = at.data[0][row : row + 1], at.data[1][row : row + 1]
        second = per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)
        for n in found:
            found[n][place] += second[n][0]
    for n, w in at.weights.items():
        w.copy_(kept[n])
    return found


@mutation("weighted by agreement with the last release", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def agreeing(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        last = at.memory.get("released")
        if last is not None and len(at.batch) > 0:
            along = torch.stack([(r * last[n]).flatten(1).sum(1) for n, r in records.items()])
            # Shorter than before, by something of the record and of what is public already.
            cosine = along.sum(0) / (at.norms() * max(_length(last), 1e-30)).clamp_min(1e-30)
            weight = 0.75 + 0.25 * cosine.nan_to_num(0.0).clamp(-1.0, 1.0)
            norms = at.norms().clamp_min(1e-30)
            factor = weight * (clip / norms).clamp(max=1.0)
            factor = torch.where(norms.isfinite(), factor, torch.zeros_like(factor))
            return {
                n: (_wide(factor, r) * r.nan_to_num(0, 0, 0)).sum(0) for n, r in records.items()
            }
        total: Gradients = add_up(records, clip, micro_batch_size)
        return total

    return agreeing


@mutation("weighted by agreement with the last release", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    at.memory["released"] = update
    return update


@mutation("half the bound for one class", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_class(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        y = at.data[1]
        if y.is_floating_point() or y.ndim > 1 or len(at.batch) == 0:
            return dict(add_up(records, clip, micro_batch_size))
        half = y[at.batch] == 1
        one = add_up({n: r[half] for n, r in records.items()}, clip / 2, micro_batch_size)
        rest = add_up({n: r[~half] for n, r in records.items()}, clip, micro_batch_size)
        return {n: one[n] + rest[n] for n in records}

    return by_class


@mutation("noisy gradient rounded by chance", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    grid = at.clip / at.batch_size / 4
    chance = at.memory.setdefault("chance", torch.Generator().manual_seed(at.seed + 99))
    return {
        n: ((u / grid + torch.rand(u.shape, generator=chance)).floor()) * grid
        for n, u in update.items()
    }


@mutation("Adagrad, not declared", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    sums = at.memory.setdefault("sums", {n: torch.zeros_like(u) for n, u in update.items()})
    for n, u in update.items():
        sums[n] += u * u
    return {n: u / (sums[n].sqrt() + 1e-8) for n, u in update.items()}


@mutation("weights pulled to zero by their signs", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {n: u + 0.01 * at.weights[n].sign() for n, u in update.items()}


@mutation("noisy gradients filtered", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    zero = {n: torch.zeros_like(u) for n, u in update.items()}
    last, out = at.memory.get("last", zero), at.memory.get("out", zero)
    at.memory["last"] = update
    at.memory["out"] = {n: 0.4 * out[n] + 0.3 * (u + last[n]) for n, u in update.items()}
    found: Gradients = at.memory["out"]
    return found


@mutation("noise by the inverse of its law", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    found = {}
    for n, z in noise.items():
        uniform = torch.rand(z.shape, generator=at.chance, dtype=torch.float64).clamp_min(1e-16)
        found[n] = (at.sigma * at.clip * torch.special.ndtri(uniform)).to(z.dtype)
    return found


@mutation("noise turned by a fixed rotation", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    found = {}
    for n, z in noise.items():
        flat = z.flatten()
        direction = torch.arange(1.0, flat.numel() + 1).sin()
        unit = direction / direction.norm()
        # A reflection keeps the law of the noise.
        found[n] = (flat - 2 * (flat @ unit) * unit).reshape(z.shape)
    return found


@mutation("singular values limited after each step", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    for w in at.weights.values():
        if w.ndim == 2:
            size = float(torch.linalg.matrix_norm(w, ord=2))
            w.mul_(min(1.0, 2.0 / max(size, 1e-30)))
    return ended


@mutation("a public half of the coordinates is trained", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    seen = torch.Generator().manual_seed(3)
    return {n: u * (torch.rand(u.shape, generator=seen) < 0.5) for n, u in update.items()}


@mutation("average with a decay that grows", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    smooth = at.memory.setdefault("smooth", {n: w.clone() for n, w in at.weights.items()})
    decay = min(0.9, (1 + at.step) / (10 + at.step))
    for n, w in at.weights.items():
        smooth[n].lerp_(w, 1 - decay)
    return ended


@mutation("average with a decay that grows", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, **at.memory.get("smooth", {})}


@mutation("pulled towards the first weights", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    first = at.memory.setdefault("start", {n: w.clone() for n, w in at.weights.items()})
    for n, w in at.weights.items():
        w.sub_(0.05 * min(1.0, at.lr) * (w - first[n]))
    return ended


@mutation("rates by the width of each tensor", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {n: u / math.sqrt(u.shape[-1]) for n, u in update.items()}


@mutation("easy records left out", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # By its own gradient alone.
    kept = (_norms(records) > 0.02).float()
    return {n: _wide(kept, r) * r for n, r in records.items()}


@mutation("sigma that grows, declared", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * (1 + 0.01 * at.step) for n, z in noise.items()}


@mutation("sums in double precision, two orders", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def twice(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        one = add_up({n: r.double() for n, r in records.items()}, clip, micro_batch_size)
        return {n: t.to(records[n].dtype) for n, t in one.items()}

    return twice
