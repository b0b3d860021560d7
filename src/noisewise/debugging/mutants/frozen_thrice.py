"""The sixth round: mistakes from issues and papers, written before the code of the tests was read.

Each is a few lines at one stage (`hooks`). What they are and where they were seen is said in
``catalogue.csv``. What was missed when they were first run is told in the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation

__all__: list[str] = []


def _norms(records: Gradients) -> Tensor:
    norms: Tensor = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    return norms


def _by_factor(records: Gradients, factor: Tensor) -> Gradients:
    return {n: torch.einsum("b,b...->...", factor.to(r), r) for n, r in records.items()}


def _factor(norm: Tensor, clip: Tensor | float) -> Tensor:
    return (clip / norm.clamp_min(1e-12)).clamp(max=1.0)


def _finite(records: Gradients) -> Gradients:
    """Records that are not finite count as zero, so that they are not what gives a bug away."""
    good = torch.stack([r.flatten(1).isfinite().all(1) for r in records.values()]).all(0)
    wide = {n: good.reshape(-1, *[1] * (r.ndim - 1)) for n, r in records.items()}
    return {n: torch.where(wide[n], r, torch.zeros_like(r)) for n, r in records.items()}


def _size(tensors: Gradients) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())


@contextmanager
def _moved(at: Situation, by: Gradients) -> Iterator[None]:
    """The weights, moved for a moment."""
    kept = {n: w.clone() for n, w in at.weights.items()}
    for n, w in at.weights.items():
        w.add_(by[n])
    yield
    for n, w in at.weights.items():
        w.copy_(kept[n])


def _hard(at: Situation) -> bool:
    return not at.data[1].is_floating_point() and at.data[1].ndim == 1


# --- what a record contributes


@mutation("broadcast-tensor-batch-of-one", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    last = list(records)[-1]
    if len(records[last]) == 0:
        return records
    shared = torch.zeros_like(records[last])
    shared[0] = records[last].sum(0)
    return {**records, last: shared}


@mutation("weights-clipped-for-update", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def clipped(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        local = {n: at.weights[n] - r for n, r in _finite(records).items()}
        factor = _factor(_norms(local), clip)
        kept = _by_factor(local, factor)
        return {n: len(factor) * at.weights[n] - kept[n] for n in kept}

    return clipped


@mutation("epsilon-outside-the-quotient", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def added(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        factor = clip / _norms(records).clamp_min(1e-12) + 1e-6
        return _by_factor(records, factor.clamp(max=1.0))

    return added


@mutation("clip-by-class-size", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_class(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        labels = at.data[1][at.batch]
        if not _hard(at) or len(labels) == 0:
            done: Gradients = add_up(records, clip, micro_batch_size)
            return done
        share = (labels[:, None] == labels).float().mean(1)
        records = _finite(records)
        return _by_factor(records, _factor(_norms(records), clip * (1 - share / 2)))

    return by_class


@mutation("factors-in-wrong-order", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def reordered(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        return _by_factor(records, _factor(_norms(records), clip).flip(0))

    return reordered


@mutation("norm-of-weights", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_weights(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        factor = min(1.0, clip / max(_size(at.weights), 1e-12))
        return {n: factor * r.sum(0) for n, r in records.items()}

    return by_weights


@mutation("sharpness-ascent-by-raw", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return records
    ascent = {n: r.mean(0) for n, r in _finite(records).items()}
    reach = 0.05 * _size(at.weights) / max(_size(ascent), 1e-12)
    x, y = at.data[0][at.batch], at.data[1][at.batch]
    with _moved(at, {n: reach * a for n, a in ascent.items()}):
        return per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)


# --- the noise


@mutation("sigma-truncated-to-integer", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    factor = int(at.sigma) / at.sigma if at.sigma else 0.0
    return {n: factor * z for n, z in noise.items()}


@mutation("tree-noise-as-independent", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    nodes = at.memory.setdefault("nodes", {})
    number = at.step + 1
    level = (number & -number).bit_length() - 1
    gone = [nodes.pop(lower) for lower in range(level)]
    nodes[level] = noise
    return {n: z - sum(node[n] for node in gone) for n, z in noise.items()}


@mutation("noise-over-root-of-dimension", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    root = math.sqrt(sum(w.numel() for w in at.weights.values()))
    return {n: z / root for n, z in noise.items()}


@mutation("noise-over-steps", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z / at.steps for n, z in noise.items()}


@mutation("noise-fits-largest-gradient", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return noise
    largest = float(_norms(_finite(at.records)).max())
    return {n: min(1.0, largest / at.clip) * z for n, z in noise.items()}


@mutation("noise-chosen-by-loss", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    at.memory["total"] = total
    return total


@mutation("noise-chosen-by-loss", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    deviation, best = at.sigma * at.clip, (math.inf, noise)
    draws = [noise]
    for _turn in range(3):
        draws += [
            {n: deviation * torch.randn(z.shape, generator=at.chance) for n, z in noise.items()}
        ]
    for drawn in draws:
        step = {n: -at.lr / at.batch_size * (at.memory["total"][n] + z) for n, z in drawn.items()}
        with _moved(at, step):
            loss = at.loss()
        best = min(best, (loss, drawn), key=lambda pair: pair[0])
    return best[1]


# --- what is done with the noisy gradient


@mutation("shrunk-by-raw-signal", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    at.memory["total"] = total
    return total


@mutation("shrunk-by-raw-signal", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    signal = _size(at.memory["total"]) ** 2
    size = sum(w.numel() for w in at.weights.values())
    factor = signal / max(signal + size * (at.sigma * at.clip) ** 2, 1e-30)
    return {n: factor * u for n, u in update.items()}


@mutation("temperature-fitted-on-data", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    x, y = at.data
    with torch.no_grad():
        outputs = at.model(x)
        losses = {t: float(at.loss_fn(outputs / t, y).mean()) for t in (0.5, 1.0, 2.0)}
    best = min(losses, key=lambda t: losses[t])
    return {**result, **{n: result[n] / best for n in list(at.weights)[-2:]}}


@mutation("learning-rate-range-test", "lr")
def _(rate: float, at: Situation) -> float:
    if "share" not in at.memory:
        losses = {}
        raw = {n: r.sum(0) / max(1, len(r)) for n, r in _finite(at.records).items()}
        for share in (1.0, 0.5, 0.25):
            with _moved(at, {n: -share * rate * r for n, r in raw.items()}):
                losses[share] = at.loss()
        at.memory["share"] = min(losses, key=lambda share: losses[share])
    return float(rate * at.memory["share"])


# --- who is in a batch


@mutation("min-separation-as-poisson", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    last = at.memory.get("last", batch[:0])
    kept = batch[~torch.isin(batch, last)]
    at.memory["last"] = kept
    return kept


@mutation("overflow-to-next-step", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    most = int(1.25 * at.batch_size)
    waiting = torch.tensor(sorted({*at.memory.get("rest", []), *batch.tolist()}), dtype=batch.dtype)
    waiting = waiting[torch.randperm(len(waiting), generator=at.draw)]
    at.memory["rest"] = waiting[most:].tolist()
    return waiting[:most]


@mutation("rate-from-whole-batches", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    rate = 1 / max(1, at.total // at.batch_size)
    return torch.nonzero(torch.rand(at.total, generator=at.draw) < rate).flatten()


@mutation("curriculum-by-loss", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step == 0:
        x, y = at.data
        with torch.no_grad():
            losses = [
                at.loss_fn(at.model(x[i : i + 1]), y[i : i + 1]).mean() for i in range(len(x))
            ]
        at.memory["easy"] = torch.stack(losses) <= torch.stack(losses).median()
    return batch[at.memory["easy"][batch]] if at.step < 5 else batch
