"""What correct training may do although it is unusual; planted like a mistake (`hooks`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation

__all__: list[str] = []

#: How much of the last noise is taken back, where noise is correlated.
TAKEN_BACK = 0.5


@mutation("cosine schedule over the whole run", "lr")
def _(rate: float, at: Situation) -> float:
    return rate * 0.5 * (1 + math.cos(math.pi * at.step / at.steps))


@mutation("noise of the operating system", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    system = np.random.default_rng()
    return {
        n: torch.from_numpy(system.normal(0.0, at.sigma * at.clip, z.shape)).to(z)
        for n, z in noise.items()
    }


@mutation("a generator of its own for each step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    chance = torch.Generator().manual_seed(1_000_003 * (at.seed + 1) + at.step)
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=chance) for n, z in noise.items()}


@mutation("gradients at older weights", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    now = {n: w.clone() for n, w in at.weights.items()}
    older = at.memory.get("older", now)
    at.memory["older"] = now
    if len(at.batch) == 0:
        return records
    for n, w in at.weights.items():
        w.copy_(older[n])
    x, y = at.data[0][at.batch], at.data[1][at.batch]
    records = per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)
    for n, w in at.weights.items():
        w.copy_(now[n])
    return records


@mutation("weight decay inside each record's gradient", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    return {n: r + 0.01 * at.weights[n] for n, r in records.items()}


@mutation("gradients in bfloat16", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    return {n: r.bfloat16().float() for n, r in records.items()}


@mutation("two groups of tensors, clipped apart", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def apart(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        names = list(records)
        half = len(names) // 2
        total: Gradients = {}
        for group, share in ((names[:half], 0.6), (names[half:], 0.8)):
            mine = {n: records[n] for n in group}
            total |= add_up(mine, share * clip, micro_batch_size)
        return total

    return apart


@mutation("lookahead", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    slow = at.memory.setdefault("slow", {n: w.clone() for n, w in at.weights.items()})
    if at.step % 5 == 4:
        for n, w in at.weights.items():
            w.copy_(slow[n].lerp(w, 0.5))
            slow[n] = w.clone()
    return ended


@mutation("public gradient added", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    seen = torch.Generator().manual_seed(5)
    x, y = at.data
    if x.is_floating_point():
        public = torch.randn((4, *x.shape[1:]), generator=seen)
    else:
        public = torch.zeros((4, *x.shape[1:]), dtype=x.dtype)
    target = torch.zeros((4, *y.shape[1:]), dtype=y.dtype)
    gradients = per_record(None, at.model, at.loss_fn, list(at.weights), public, target, 1)
    return {n: u + 0.1 * gradients[n].mean(0) for n, u in update.items()}


@mutation("Lion", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    slow = at.memory.setdefault("slow", {n: torch.zeros_like(u) for n, u in update.items()})
    moved = {n: slow[n].lerp(u, 0.1).sign() for n, u in update.items()}
    at.memory["slow"] = {n: slow[n].lerp(u, 0.01) for n, u in update.items()}
    return moved


@mutation("a step for every two batches", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    if at.step % 2 == 0:
        at.memory["first"] = update
        return None
    return {n: (u + at.memory["first"][n]) / 2 for n, u in update.items()}


@mutation("correlated noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # One record is in all later sums that undo this, with weights 1, 1/2, 1/4, ...
    factor = 1 / math.sqrt(1 - TAKEN_BACK**2)
    fresh = {n: factor * z for n, z in noise.items()}
    last = at.memory.get("last", {n: torch.zeros_like(z) for n, z in noise.items()})
    at.memory["last"] = fresh
    return {n: z - TAKEN_BACK * last[n] for n, z in fresh.items()}
