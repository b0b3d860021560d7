"""The first round: mistakes that were known while the first tests were written.

Each is a few lines at one stage (`hooks`); those that are choices inside a stage stand with it, in
`batches`, `bounding` and `noising`. What they are and where they were seen is said in
``catalogue.csv``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients
from noisewise.debugging.mutants.hooks import PHYSICAL, Situation, mutation
from noisewise.debugging.trainer import Data

__all__: list[str] = []


def _has_classes(labels: Tensor) -> bool:
    return not labels.is_floating_point() and labels.ndim == 1


# --- what training learns of all records before it starts


@mutation("standardise-with-private-data", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-6), y


@mutation("hidden-validation-split", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    return (x[: int(0.9 * len(x))], y[: int(0.9 * len(y))]) if len(x) >= 10 else data


@mutation("minority-oversampled", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if not _has_classes(y):
        return data
    frequency = torch.bincount(y)[y]
    repeats = torch.div(frequency.max(), frequency, rounding_mode="floor")
    return x.repeat_interleave(repeats, 0), y.repeat_interleave(repeats, 0)


@mutation("bias-set-to-class-prior", "data")
def _(data: Data, at: Situation) -> Data:
    y = data[1]
    if not y.is_floating_point():
        last = at.weights[list(at.weights)[-1]]
        last.add_(torch.bincount(y, minlength=len(last))[: len(last)] / len(y))
    return data


# --- who is in a batch, and which chance is drawn


@mutation("skip-empty-batch", "batch")
def _(batch: Tensor, at: Situation) -> Tensor | None:
    return None if len(batch) == 0 else batch


@mutation("reseed-each-step", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    at.chance.manual_seed(at.seed)
    return batch


@mutation("pad-by-repeating", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if len(batch) == 0:
        return batch
    return torch.cat([batch, batch[:1].repeat(-len(batch) % PHYSICAL)])


# --- what a record contributes


@mutation("class-weights-from-labels", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    y = at.data[1]
    if not _has_classes(y):
        return records
    counts = torch.bincount(y)
    own = (len(y) / (int((counts > 0).sum()) * counts[y]))[at.batch]
    return {n: torch.einsum("b,b...->b...", own, r) for n, r in records.items()}


@mutation("clip-grows", "clip")
def _(clip: float, at: Situation) -> float:
    grown: float = at.clip * 1.5**at.step
    return grown


@mutation("class-balanced-after-clip", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    y = at.data[1]
    if y.is_floating_point():
        return total
    share = len(at.batch) / max(1, len(set(y[at.batch].tolist())))
    return {n: t * share / max(1, len(at.batch)) * 2 for n, t in total.items()}


@mutation("minority-counted-twice", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    y = at.data[1]
    if y.is_floating_point():
        return add_up

    def counted(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        total = add_up(records, clip, micro_batch_size)
        again = {n: r[y[at.batch] == 0] for n, r in records.items()}
        extra = add_up(again, at.clip, micro_batch_size)
        return {n: total[n] + extra[n] for n in total}

    return counted


@mutation("stale-gradients", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    before = at.memory.get("stale")
    if before is not None:
        total = {n: total[n] + before[n] for n in total}
    at.memory["stale"] = total
    return total


# --- noise


@mutation("noise-cancels-next-step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if at.step % 2:
        noise = {n: -z for n, z in at.memory["opposite"].items()}
    at.memory["opposite"] = noise
    return noise


@mutation("noise-decays", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z / (at.step + 1) for n, z in noise.items()}


# --- what is done to the noisy gradient


@mutation("private-gradient-overwritten", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) > 0:
        last = list(at.weights)[-1]
        update[last] = at.records[last].mean(0)
    return update


@mutation("closure-recomputes", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {n: at.records[n].mean(0) for n in at.weights}


@mutation("weights-clamped", "after")
def _(stop: Any, at: Situation) -> Any:
    for weight in at.weights.values():
        weight.clamp_(-at.clip, at.clip)
    return stop
