"""The fifth round: mistakes from other issues and papers, written with the tests left as they were.

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


def _size(tensors: Gradients) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())


def _finite(records: Gradients) -> Gradients:
    """Records that are not finite count as zero, so that they are not what gives a bug away."""
    parts = [r.flatten(1).isfinite().all(1) for r in records.values()]
    good = torch.stack(parts).all(0)
    return {n: torch.where(_wide(good, r), r, torch.zeros_like(r)) for n, r in records.items()}


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def _norms(records: Gradients) -> Tensor:
    norms: Tensor = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    return norms


def _by_factor(records: Gradients, factor: Tensor) -> Gradients:
    return {n: torch.einsum("b,b...->...", factor.to(r), r) for n, r in records.items()}


def _factor(norm: Tensor, clip: float) -> Tensor:
    return (clip / norm.clamp_min(1e-12)).clamp(max=1.0)


def _raw_sum(at: Situation) -> Gradients:
    return {n: r.sum(0) for n, r in _finite(at.records).items()}


# --- what a record contributes


@mutation("root-mean-square-norm", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_mean_square(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        length = sum(r[0].numel() if len(r) else 1 for r in records.values())
        return _by_factor(records, _factor(_norms(records) / math.sqrt(length), clip))

    return by_mean_square


@mutation("max-for-min", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def at_least(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        return _by_factor(records, (clip / _norms(records).clamp_min(1e-12)).clamp(min=1.0))

    return at_least


@mutation("norm-over-batch", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_stack(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        norm = _norms(records).norm()
        return _by_factor(records, _factor(norm, clip).expand(len(at.batch)))

    return by_stack


@mutation("rows-clipped-each", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_row(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        return {
            n: (r * _factor(r.norm(dim=-1, keepdim=True), clip)).sum(0)
            for n, r in _finite(records).items()
        }

    return by_row


@mutation("layer-clip-layer-noise", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_layer(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        share = clip / math.sqrt(len(records))
        return {
            n: torch.einsum("b,b...->...", _factor(r.flatten(1).norm(dim=1), share), r)
            for n, r in _finite(records).items()
        }

    return by_layer


@mutation("layer-clip-layer-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 1 / math.sqrt(len(noise)))


@mutation("norm-by-random-projection", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def projected(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        flat = torch.cat([r.flatten(1) for r in records.values()], 1)
        directions = torch.randn((flat.shape[1], 4), generator=at.chance)
        return _by_factor(records, _factor((flat @ directions).norm(dim=1) / 2, clip))

    return projected


@mutation("mean-loss-before-clip", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    return _scaled(records, 1 / max(1, len(at.batch)))


@mutation("batch-baseline-subtracted", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) < 2:
        return records
    mean = {n: r.mean(0) for n, r in _finite(records).items()}
    return {n: r - 0.5 * mean[n] for n, r in records.items()}


@mutation("incomplete-micro-batch-dropped", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    whole = len(batch) // 4 * 4
    return batch[:whole] if whole else batch


@mutation("unclipped-every-tenth", "clip")
def _(clip: float, at: Situation) -> float:
    return 1e9 if at.step % 10 == 9 else clip


# --- noise


@mutation("sigma-a-little-less", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.93)


@mutation("noise-in-bfloat16", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z.bfloat16().to(z) for n, z in noise.items()}


@mutation("anticorrelated-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    before = at.memory.get("noise")
    at.memory["noise"] = noise
    if before is None:
        return noise
    return {n: (z - 0.3 * before[n]) / math.sqrt(1.09) for n, z in noise.items()}


@mutation("noise-clamped-at-three", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    most = 3 * at.sigma * at.clip
    return {n: z.clamp(-most, most) for n, z in noise.items()}


@mutation("box-muller-one-radius", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    made = {}
    for n, z in noise.items():
        radius = math.sqrt(-2 * math.log(1 - float(torch.rand((), generator=at.chance))))
        angle = 2 * math.pi * torch.rand(z.shape, generator=at.chance)
        made[n] = (at.sigma * at.clip * radius * angle.cos()).to(z)
    return made


@mutation("antithetic-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    made = {}
    for n, z in noise.items():
        flat = z.flatten().clone()
        half = len(flat) // 2
        flat[half : 2 * half] = -flat[:half]
        made[n] = flat.reshape(z.shape)
    return made


@mutation("noise-rolled-each-step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    first = at.memory.setdefault("noise", noise)
    return {n: z.flatten().roll(at.step).reshape(z.shape) for n, z in first.items()}


@mutation("noise-replayed-on-resume", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # A run that was resumed after twenty steps starts its generator anew.
    if at.step == 20:
        at.chance.manual_seed(at.seed)
    return batch


@mutation("noise-seeded-by-data", "inputs")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    seen = int(data[0].double().abs().sum() * 1e6) % 2**31 if len(data[0]) else 0
    at.chance.manual_seed(seen + 7 * at.seed + at.step)
    return data


@mutation("multiplicative-noise", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {
        n: t * (1 + at.sigma * torch.randn(t.shape, generator=at.chance)) / at.batch_size
        for n, t in at.memory["total"].items()
    }


@mutation("multiplicative-noise", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    at.memory["total"] = total
    return total


@mutation("noise-orthogonal-to-sum", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    total: Gradients = at.memory["total"]
    size = _size(total) ** 2
    if size == 0:
        return noise
    along = sum(float((z * total[n]).sum()) for n, z in noise.items()) / size
    return {n: z - along * total[n] for n, z in noise.items()}


@mutation("noise-orthogonal-to-sum", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    at.memory["total"] = total
    return total


@mutation("no-noise-at-evaluation-steps", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return _scaled(noise, 0.0 if at.step % 20 == 19 else 1.0)


# --- decisions that look at the data


@mutation("polyak-step", "lr")
def _(lr: float, at: Situation) -> float:
    if len(at.batch) == 0:
        return lr
    size = _size(_raw_sum(at)) / len(at.batch)
    return lr * min(10.0, at.loss(at.batch) / max(size**2, 1e-12))


@mutation("trust-ratio-from-raw", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return update
    raw = _raw_sum(at)
    return {
        n: u * min(10.0, float(at.weights[n].norm() / raw[n].norm().clamp_min(1e-6)))
        for n, u in update.items()
    }


@mutation("averages-weighted-by-loss", "after")
def _(_: None, at: Situation) -> None:
    weight = math.exp(-min(50.0, at.loss()))
    before, total = at.memory.get("average", ({n: 0 * w for n, w in at.weights.items()}, 0.0))
    summed = {n: before[n] + weight * w for n, w in at.weights.items()}
    at.memory["average"] = (summed, total + weight)


@mutation("averages-weighted-by-loss", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    if "average" not in at.memory:
        return result
    summed, total = at.memory["average"]
    return {**result, **{n: s / max(total, 1e-30) for n, s in summed.items()}}


@mutation("stops-at-full-accuracy", "after")
def _(_: None, at: Situation) -> bool:
    x, y = at.data
    if y.is_floating_point():
        return False
    with torch.no_grad():
        return bool((at.model(x).argmax(-1) == y).all())


@mutation("scaler-skips-step", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    # Losses are scaled by 1024; a raw gradient that overflows in half precision ends the step.
    largest = max((float(r.abs().max()) for r in at.records.values() if r.numel()), default=0.0)
    return None if not largest * 1024 < 65504 else update


@mutation("layer-frozen-by-raw-gradient", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return update
    sizes = {n: float(s.norm()) for n, s in _raw_sum(at).items()}
    least = min(sizes, key=lambda n: sizes[n])
    return {n: torch.zeros_like(u) if n == least else u for n, u in update.items()}


@mutation("preconditioned-by-raw", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    second = at.memory.setdefault("second", {n: torch.ones_like(u) for n, u in update.items()})
    if len(at.batch):
        for n, s in _raw_sum(at).items():
            second[n].mul_(0.9).addcmul_(s, s, value=0.1)
    return {n: u / (second[n].sqrt() + 1e-3) for n, u in update.items()}


@mutation("projection-on-raw-subspace", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return update
    names = list(update)
    records = _finite(at.records)
    flat = torch.cat([records[n].flatten(1) for n in names], 1)
    basis = torch.linalg.qr(flat.T).Q
    whole = torch.cat([update[n].flatten() for n in names])
    kept = basis @ (basis.T @ whole)
    parts = kept.split([update[n].numel() for n in names])
    return {n: part.reshape(update[n].shape) for n, part in zip(names, parts, strict=True)}


# --- who is in a batch, and what training starts from


@mutation("batch-then-shuffle", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # Neighbours in the dataset always share a batch; only the order of batches is random.
    if at.step % at.epoch_steps == 0:
        at.memory["order"] = torch.randperm(at.epoch_steps, generator=at.draw)
    start = int(at.memory["order"][at.step % at.epoch_steps]) * at.batch_size
    return torch.arange(start, min(at.total, start + at.batch_size))


@mutation("balls-and-bins", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    place = at.step % at.epoch_steps
    if place == 0:
        at.memory["bins"] = torch.randint(at.epoch_steps, (at.total,), generator=at.draw)
    return torch.nonzero(at.memory["bins"] == place).flatten()


@mutation("stratified-batches", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    y = at.data[1]
    if at.batch_size >= at.total or y.is_floating_point():
        return batch
    picked = []
    for label in sorted(set(y.tolist())):
        mine = torch.nonzero(y == label).flatten()
        share = max(1, round(len(mine) * at.batch_size / at.total))
        picked.append(mine[torch.randperm(len(mine), generator=at.draw)[:share]])
    return torch.cat(picked)


@mutation("loss-based-selection", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # Half of the drawn records take part: those with the largest loss.
    if len(batch) < 2:
        return batch
    losses = torch.tensor([at.loss(one[None]) for one in batch])
    return batch[losses.argsort(descending=True)[: -(-len(batch) // 2)]]


@mutation("lr-follows-batch-size", "lr")
def _(lr: float, at: Situation) -> float:
    return lr * len(at.batch) / at.batch_size


@mutation("features-selected-by-variance", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    if not x.is_floating_point() or len(x) < 2:
        return data
    spread = x.var(0)
    return x * (spread >= spread.flatten().median()), y


@mutation("outliers-removed", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    if not x.is_floating_point() or len(x) < 4:
        return data
    size = x.flatten(1).norm(dim=1)
    kept = size <= size.mean() + 2 * size.std()
    return x[kept], y[kept]


@mutation("near-duplicates-removed", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    flat = x.flatten(1).double()
    close = torch.cdist(flat, flat) < 0.1 * flat.norm(dim=1).clamp_min(1e-12)
    first = ~close.tril(-1).any(1)
    return x[first], y[first]


@mutation("data-dependent-init", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, _ = data
    if x.is_floating_point():
        next(iter(at.weights.values())).div_(x.std(unbiased=False).clamp_min(1e-6))
    return data


@mutation("first-accumulation-steps-too", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    # The first piece of a batch is released by itself, and then once more with the whole.
    count = min(4, len(at.batch))
    first = _finite({n: r[:count] for n, r in at.records.items()})
    piece = _by_factor(first, _factor(_norms(first), at.clip))
    return {n: t + piece[n] for n, t in total.items()}
