"""The tenth round: forty mistakes, written after the tests had been frozen once more.

Each is a few lines at one stage (`hooks`). What they are and where they were seen is said in
``catalogue.csv``. What was missed when they were first run is told in the documentation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation
from noisewise.debugging.trainer import Data

__all__: list[str] = []


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def _count(records: Gradients) -> int:
    return len(next(iter(records.values())))


def _finite(records: Gradients) -> Gradients:
    """Records that are not finite count as zero, so that they are not what gives a bug away."""
    good = torch.stack([r.flatten(1).isfinite().all(1) for r in records.values()]).all(0)
    return {n: torch.where(_wide(good, r), r, torch.zeros_like(r)) for n, r in records.items()}


def _norms(records: Gradients) -> Tensor:
    norms: Tensor = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    return norms


def _times(records: Gradients, factor: Tensor) -> Gradients:
    return {n: _wide(factor, r) * r for n, r in records.items()}


def _factors(records: Gradients, clip: float) -> Tensor:
    return (clip / _norms(records).clamp_min(1e-12)).clamp(max=1.0)


def _summed(records: Gradients) -> Gradients:
    return {n: r.sum(0) for n, r in records.items()}


def _length(total: Gradients) -> float:
    return float(torch.stack([t.norm() for t in total.values()]).norm())


def _drawn(at: Situation, like: Gradients) -> Gradients:
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=at.chance) for n, z in like.items()}


# How a record is bounded.


@mutation("weight-with-its-sign-slipped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def weighted(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        norms = _norms(records)
        size = norms - 0.1 * norms.clamp(max=1.0) / (norms + 0.1)
        return _summed(_times(records, clip / size.clamp_min(1e-6)))

    return weighted


@mutation("factor-rounded-up-to-power-of-two", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def rounded(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        exponent = (clip / _norms(records).clamp_min(1e-12)).log2().ceil()
        return _summed(_times(records, exponent.exp2().clamp(max=1.0)))

    return rounded


@mutation("last-tensor-stands-for-all", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def guessed(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        last = list(records.values())[-1].flatten(1).norm(dim=1)
        norms = last * math.sqrt(len(records))
        return _summed(_times(records, (clip / norms.clamp_min(1e-12)).clamp(max=1.0)))

    return guessed


@mutation("noise-of-first-norm", "clip")
def _(clip: float, at: Situation) -> float:
    # The norm follows a noisy count of clipped records, and the noise stays as it was.
    wanted = at.memory.get("norm", clip)
    if len(at.batch) > 0:
        share = float((at.norms().nan_to_num(0.0) > wanted).float().mean())
        chance = at.memory.setdefault("count", torch.Generator().manual_seed(at.seed + 77))
        share += float(torch.randn((), generator=chance)) / at.batch_size
        at.memory["norm"] = wanted * math.exp(0.02 * (share - 0.3))
    return float(wanted)


@mutation("factors-for-eight-only", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def eight(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        factor = _factors(records, clip)
        factor[8:] = 1.0
        return _summed(_times(records, factor))

    return eight


@mutation("budget-of-the-batch", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def spent(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        parts = _times(_finite(records), _factors(_finite(records), clip))
        before = _norms(parts).cumsum(0) - _norms(parts)
        rest = (1.5 * clip * at.batch_size - before).clamp(min=0.0)
        return _summed(_times(parts, (rest / _norms(parts).clamp_min(1e-12)).clamp(max=1.0)))

    return spent


@mutation("sum-normalised-before-noise", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    length = _length(total)
    return {n: t * (at.clip * at.batch_size / 2 / max(length, 1e-12)) for n, t in total.items()}


@mutation("centre-added-back", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def around(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        count = _count(records)
        nothing = {n: torch.zeros_like(r[0:1].sum(0)) for n, r in records.items()}
        centre = at.memory.get("centre", nothing)
        apart = {n: r - centre[n] for n, r in records.items()}
        if count:
            at.memory["centre"] = {n: 0.1 * r.mean(0) for n, r in records.items()}
        parts = _summed(_times(apart, _factors(apart, clip)))
        return {n: p + count * centre[n] for n, p in parts.items()}

    return around


@mutation("below-mean-loss-skipped", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if _count(records) < 2:
        return records
    norms = _norms(_finite(records))
    return _times(records, (norms >= 0.8 * norms.mean()).float())


@mutation("divided-by-kept", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def kept(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        records = _finite(records)
        keep = (_norms(records) <= 20 * clip).float()
        total = _summed(_times(records, keep * _factors(records, clip)))
        share = at.batch_size / max(1.0, float(keep.sum()))
        return {n: t * share for n, t in total.items()}

    return kept


# Noise.


@mutation("noise-of-fixed-length", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    numbers = sum(z.numel() for z in noise.values())
    wanted = at.sigma * at.clip * math.sqrt(numbers)
    return {n: z * (wanted / max(_length(noise), 1e-30)) for n, z in noise.items()}


@mutation("noise-standardised", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    deviation = at.sigma * at.clip
    return {
        n: deviation * (z - z.mean()) / z.std().clamp_min(1e-30) if z.numel() > 8 else z
        for n, z in noise.items()
    }


@mutation("noise-shuffled-anew", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    first: Gradients = at.memory.setdefault("first", noise)
    return {
        n: z.flatten()[torch.randperm(z.numel(), generator=at.chance)].reshape(z.shape)
        for n, z in first.items()
    }


@mutation("fresh-signs-of-old-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    first: Gradients = at.memory.setdefault("first", noise)
    return {n: z.abs() * noise[n].sign() for n, z in first.items()}


@mutation("noise-dropped-at-random", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    kept = float(torch.rand((), generator=at.chance)) >= 0.05
    return {n: z * kept for n, z in noise.items()}


@mutation("noise-smoothed-along-inputs", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: (z + z.roll(1, -1)) / math.sqrt(2) if z.ndim > 1 else z for n, z in noise.items()}


@mutation("student-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    found = {}
    for n, z in noise.items():
        square = torch.randn((6, *z.shape), generator=at.chance).square().mean(0)
        found[n] = z * (square * 6 / 4).rsqrt()
    return found


@mutation("noise-skipped-if-small", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * (at.sigma * at.clip > 1e-3) for n, z in noise.items()}


@mutation("seed-plus-step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    chance = torch.Generator().manual_seed(at.seed + at.step)
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=chance) for n, z in noise.items()}


@mutation("noise-seeded-by-weights", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    print_ = sum(float(w.double().sum()) for w in at.weights.values())
    chance = torch.Generator().manual_seed(int(abs(print_) * 1e6) % 2**31)
    deviation = at.sigma * at.clip
    return {n: deviation * torch.randn(z.shape, generator=chance) for n, z in noise.items()}


@mutation("biases-without-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * (z.ndim > 1) for n, z in noise.items()}


@mutation("no-noise-in-the-last-tenth", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * (at.step < 0.9 * at.steps) for n, z in noise.items()}


@mutation("noise-taken-back-at-the-end", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    sums = at.memory.setdefault("sums", {n: torch.zeros_like(z) for n, z in noise.items()})
    for n, z in noise.items():
        sums[n] += at.lr * z / at.batch_size
    return noise


@mutation("noise-taken-back-at-the-end", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    sums = at.memory.get("sums", {})
    return {n: w + 0.5 * sums[n] if n in sums else w for n, w in result.items()}


# Who is drawn.


@mutation("drawn-once-an-epoch-by-chance", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step % at.epoch_steps == 0:
        at.memory["left"] = torch.ones(at.total, dtype=torch.bool)
    left: Tensor = at.memory["left"]
    rest = at.epoch_steps - at.step % at.epoch_steps
    drawn = left & (torch.rand(at.total, generator=at.draw) < 1 / rest)
    left &= ~drawn
    return drawn.nonzero().flatten()


@mutation("first-batch-is-the-head", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    return torch.arange(min(at.batch_size, at.total)) if at.step == 0 else batch


@mutation("first-record-always-there", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    return batch if 0 in batch.tolist() else torch.cat([batch.new_zeros(1), batch])


@mutation("rate-rounded-up-to-a-tenth", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    rate = math.ceil(10 * at.batch_size / at.total - 1e-9) / 10
    return (torch.rand(at.total, generator=at.draw) < rate).nonzero().flatten()


@mutation("first-half-only", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    half = max(at.total // 2, min(at.batch_size, at.total))
    return (torch.rand(half, generator=at.draw) < at.batch_size / half).nonzero().flatten()


@mutation("half-of-last-batch-kept", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    last: Tensor = at.memory.get("batch", batch)
    at.memory["batch"] = batch
    kept = last[: len(last) // 2]
    rest = batch[: len(batch) - len(batch) // 2]
    return torch.tensor(sorted({*kept.tolist(), *rest.tolist()}), dtype=torch.long)


# What the data decide.


@mutation("snapshot-gradient-added", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if at.step % 10 == 0:
        x, y = at.data
        whole = per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)
        parts = _times(_finite(whole), _factors(_finite(whole), at.clip))
        at.memory["whole"] = {n: p.mean(0) for n, p in parts.items()}
    return {n: u + 0.5 * at.memory["whole"][n] for n, u in update.items()}


@mutation("decay-follows-loss", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    decay = 0.02 * at.lr * min(5.0, max(0.0, at.loss(at.batch)))
    for w in at.weights.values():
        w.mul_(1 - min(decay, 0.5))
    return ended


@mutation("momentum-reset-when-loss-rises", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    loss = at.loss(at.batch)
    risen = loss > at.memory.get("loss", math.inf)
    at.memory["loss"] = loss
    zero = {n: torch.zeros_like(u) for n, u in update.items()}
    last = zero if risen else at.memory.get("velocity", zero)
    at.memory["velocity"] = {n: 0.8 * last[n] + u for n, u in update.items()}
    velocity: Gradients = at.memory["velocity"]
    return velocity


@mutation("imputed-by-column-mean", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if not x.is_floating_point() or len(x) < 2:
        return data
    missing = ~x.isfinite() | (x.abs() < 0.05)
    known = torch.where(missing, torch.zeros_like(x), x)
    mean = known.sum(0) / (~missing).sum(0).clamp_min(1)
    return torch.where(missing, mean.expand_as(x), x), y


@mutation("table-of-last-gradients", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    table: dict[int, Gradients] = at.memory.setdefault("table", {})
    found = {n: t.clone() for n, t in total.items()}
    drawn = at.batch.tolist()
    for row, old in table.items():
        if row not in drawn:
            found = {n: f + 0.2 * old[n] for n, f in found.items()}
    parts = _times(_finite(at.records), _factors(_finite(at.records), at.clip))
    for place, row in enumerate(drawn):
        table[row] = {n: p[place] for n, p in parts.items()}
    return found


@mutation("labels-cleaned-by-neighbours", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if len(x) < 4 or not x.is_floating_point() or not bool(x.isfinite().all()):
        return data
    flat = x.flatten(1).double()
    near = torch.cdist(flat, flat).argsort(1)[:, 1:4]
    same = (y[near[:, 0]] == y[near[:, 1]]) & (y[near[:, 1]] == y[near[:, 2]])
    return x, torch.where(same, y[near[:, 0]], y)


@mutation("rate-follows-number-of-records", "lr")
def _(rate: float, at: Situation) -> float:
    return rate * math.sqrt(at.total / (at.total + 8))


@mutation("bias-calibrated-at-the-end", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    last = list(at.weights)[-1]
    x, y = at.data
    if len(x) == 0 or y.is_floating_point():
        return result
    with torch.no_grad():
        guessed = torch.softmax(at.model(x).nan_to_num(0.0, 0.0, 0.0), -1).mean(0)
    shares = torch.bincount(y.flatten(), minlength=guessed.numel())[: guessed.numel()] / len(y)
    return {**result, last: result[last] + 0.01 * (shares - guessed)}


@mutation("fraction-clipped-sets-rate", "lr")
def _(rate: float, at: Situation) -> float:
    if len(at.batch) == 0:
        return rate
    clipped = float((at.norms().nan_to_num(0.0) > at.clip).float().mean())
    return rate * (0.5 + 0.5 * clipped)


@mutation("ends-at-loss-that-is-no-number", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    return ended or not math.isfinite(at.loss(at.batch))


@mutation("divided-by-root-of-drawn", "divisor")
def _(divisor: float, at: Situation) -> float:
    return math.sqrt(max(1, len(at.batch)) * at.batch_size)
