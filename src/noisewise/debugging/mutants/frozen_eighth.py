"""The eighth round: forty mistakes, written with the tests frozen and without looking at them.

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


def _clipped(records: Gradients, clip: float, norms: Tensor | None = None) -> Gradients:
    """Return finite records, each clipped to `clip` by its norm, or by the norms given."""
    records = _finite(records)
    norms = _norms(records) if norms is None else norms
    factor = (clip / norms.clamp_min(1e-12)).clamp(max=1.0)
    return {n: _wide(factor, r) * r for n, r in records.items()}


def _summed(records: Gradients) -> Gradients:
    return {n: r.sum(0) for n, r in records.items()}


def _drawn(at: Situation, like: Gradients, deviation: float) -> Gradients:
    return {n: deviation * torch.randn(z.shape, generator=at.chance) for n, z in like.items()}


# How a record is bounded.


@mutation("weights-and-biases-clipped-apart", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def in_groups(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        matrices = {n: r for n, r in records.items() if r.ndim > 2}
        biases = {n: r for n, r in records.items() if r.ndim <= 2}
        total: Gradients = {}
        for group in (matrices, biases):
            total |= add_up(group, clip, micro_batch_size) if group else {}
        return {n: total[n] for n in records}

    return in_groups


@mutation("matrices-not-clipped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def biases_only(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        matrices = {n: r for n, r in _finite(records).items() if r.ndim > 2}
        biases = {n: r for n, r in records.items() if r.ndim <= 2}
        total = {**_summed(matrices), **add_up(biases, clip, micro_batch_size)}
        return {n: total[n] for n in records}

    return biases_only


@mutation("norm-underflows-in-half-precision", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def in_half(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        squares = [r.flatten(1).half().square().float().sum(1) for r in _finite(records).values()]
        return _summed(_clipped(records, clip, torch.stack(squares).sum(0).sqrt()))

    return in_half


@mutation("norm-of-order-four", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_fourth_powers(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        powers = [r.flatten(1).pow(4).sum(1) for r in _finite(records).values()]
        return _summed(_clipped(records, clip, torch.stack(powers).sum(0).pow(0.25)))

    return by_fourth_powers


@mutation("clipped-relative-to-weights", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def relative(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        parts = {
            n: _clipped({n: r}, clip * max(1e-3, float(at.weights[n].norm())))[n]
            for n, r in _finite(records).items()
        }
        return _summed(parts)

    return relative


@mutation("overflow-replaced-by-large-number", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def repaired(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norms = _norms(records)
        factor = (clip / norms.clamp_min(1e-12)).clamp(max=1.0)
        # A factor that is no number leaves the record as it is, with its infinities made finite.
        factor = torch.where(norms.isfinite(), factor, torch.ones_like(factor))
        return {n: (_wide(factor, r) * r.nan_to_num(posinf=1e6)).sum(0) for n, r in records.items()}

    return repaired


@mutation("records-rounded-after-clip", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def on_grid(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        grid = clip / 4
        parts = _clipped(records, clip)
        chance = {n: torch.rand(r.shape, generator=at.draw) for n, r in parts.items()}
        return {n: ((r / grid + chance[n]).floor() * grid).sum(0) for n, r in parts.items()}

    return on_grid


@mutation("coordinate-median", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def median(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = _count(records)
        if count == 0:
            return _summed(records)
        return {n: count * r.median(0).values for n, r in _clipped(records, clip).items()}

    return median


@mutation("trimmed-mean", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def trimmed(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = _count(records)
        cut = count // 5
        if cut == 0:
            return _summed(_clipped(records, clip))
        parts = {n: r.sort(0).values[cut:-cut] for n, r in _clipped(records, clip).items()}
        return {n: count * r.mean(0) for n, r in parts.items()}

    return trimmed


@mutation("nearest-record-taken", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def krum(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        count = _count(records)
        if count < 3:
            return _summed(_clipped(records, clip))
        parts = _clipped(records, clip)
        flat = torch.cat([r.flatten(1) for r in parts.values()], 1)
        chosen = int(torch.cdist(flat, flat).sort(1).values[:, : count // 2 + 1].sum(1).argmin())
        return {n: count * r[chosen] for n, r in parts.items()}

    return krum


@mutation("signs-must-agree", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def masked(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        total: Gradients = add_up(records, clip, micro_batch_size)
        if _count(records) == 0:
            return total
        agree = {n: r.sign().mean(0).abs() >= 0.5 for n, r in _finite(records).items()}
        return {n: torch.where(agree[n], t, torch.zeros_like(t)) for n, t in total.items()}

    return masked


@mutation("outliers-of-batch-dropped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def filtered(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norms = _norms(_finite(records))
        if len(norms) > 3:
            kept = norms <= norms.mean() + norms.std()
            records = {n: r[kept] for n, r in records.items()}
        total: Gradients = add_up(records, clip, micro_batch_size)
        return total

    return filtered


# What a record's gradient is.


@mutation("conflicting-gradients-projected", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if _count(records) < 2:
        return records
    records = _finite(records)
    means = {n: r.mean(0) for n, r in records.items()}
    size = sum(float(m.square().sum()) for m in means.values())
    along = sum(((r * means[n]).flatten(1).sum(1) for n, r in records.items()), torch.zeros(1))
    against = along.clamp(max=0.0) / max(size, 1e-30)
    return {n: r - _wide(against, r) * means[n] for n, r in records.items()}


@mutation("weighted-by-rank-in-batch", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    count = _count(records)
    if count == 0:
        return records
    rank = _norms(_finite(records)).argsort().argsort() + 1
    return {n: _wide(rank / count, r) * r for n, r in records.items()}


@mutation("hardest-record-subtracted", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if _count(records) < 2:
        return records
    records = _finite(records)
    hardest = int(_norms(records).argmax())
    return {n: r - 0.5 * r[hardest] for n, r in records.items()}


@mutation("last-batch-as-negatives", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    last = list(at.weights)[-1]
    queue = at.memory.get("queue")
    if len(at.batch) > 0:
        with torch.no_grad():
            outputs = at.model(at.data[0][at.batch]).nan_to_num(0.0, 0.0, 0.0)
        at.memory["queue"] = outputs.mean(0)
    if queue is None:
        return records
    push = 0.1 * queue.reshape(records[last].shape[1:])
    return {**records, last: records[last] + push}


@mutation("loss-over-padded-length", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return records
    length = at.data[0][at.batch].flatten(1).norm(dim=1).nan_to_num(0.0, 0.0, 0.0)
    share = length / length.max().clamp_min(1e-12)
    return {n: _wide(share, r) * r for n, r in records.items()}


# What is added beside the bounded sum.


@mutation("last-micro-batch-added-raw", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    rest = len(at.batch) % 4 or min(4, len(at.batch))
    if rest == 0:
        return total
    raw = {n: r[-rest:].mean(0) for n, r in _finite(at.records).items()}
    return {n: t + raw[n] for n, t in total.items()}


@mutation("pulled-towards-a-plain-copy", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    copy = at.memory.setdefault("plain", {n: w.clone() for n, w in at.weights.items()})
    if len(at.batch) > 0:
        for n, r in _finite(at.records).items():
            copy[n] -= at.lr * r.mean(0)
    return {n: u + 0.1 * (at.weights[n] - copy[n]) for n, u in update.items()}


@mutation("four-batches-one-noise", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    empty = {n: torch.zeros_like(t) for n, t in total.items()}
    held: Gradients = at.memory.setdefault("held", empty)
    for n, t in total.items():
        held[n] += t
    if at.step % 4 == 3:
        at.memory["held"] = {n: torch.zeros_like(t) for n, t in total.items()}
        return held
    return total


@mutation("four-batches-one-noise", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    return update if at.step % 4 == 3 else None


# Noise.


@mutation("noise-share-per-record-drawn", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    share = math.sqrt(len(at.batch) / at.batch_size)
    return {n: share * z for n, z in noise.items()}


@mutation("budget-split-with-wrong-sign", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if at.sigma <= 0:
        return noise
    counts = at.batch_size / 20
    wrong = (at.sigma**-2 + (2 * counts) ** -2) ** -0.5
    return {n: z * wrong / at.sigma for n, z in noise.items()}


@mutation("noise-stays-after-its-last-row", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if at.step <= 40:
        at.memory["row"] = noise
    row: Gradients = at.memory.get("row", noise)
    return row


@mutation("one-number-of-noise-per-tensor", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z.flatten()[0].expand_as(z) for n, z in noise.items()}


@mutation("workers-draw-the-same-noise", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    tiled = {}
    for n, z in noise.items():
        piece = z.flatten()[: -(-z.numel() // 4)]
        tiled[n] = piece.repeat(4)[: z.numel()].reshape(z.shape)
    return tiled


@mutation("noise-drawn-once-an-epoch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if at.step % at.epoch_steps == 0:
        at.memory["noise"] = noise
    drawn: Gradients = at.memory.get("noise", noise)
    return drawn


@mutation("noise-ramps-up", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * min(1.0, (at.step + 1) / 20) for n, z in noise.items()}


@mutation("noise-ends-with-the-budget", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * (at.step < 250) for n, z in noise.items()}


@mutation("noise-divided-by-loss-scale", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z / 2 ** (at.step // 20) for n, z in noise.items()}


@mutation("noise-for-a-random-half", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    half = {n: torch.rand(z.shape, generator=at.chance) < 0.5 for n, z in noise.items()}
    return {n: math.sqrt(2) * z * half[n] for n, z in noise.items()}


@mutation("slices-of-a-noise-table", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    if "table" not in at.memory:
        at.memory["table"] = torch.randn(4096, generator=at.chance)
    table, sliced = at.memory["table"], {}
    for n, z in noise.items():
        start = int(torch.randint(len(table), (1,), generator=at.chance))
        piece = table.roll(-start).repeat(-(-z.numel() // len(table)))[: z.numel()]
        sliced[n] = at.sigma * at.clip * piece.reshape(z.shape)
    return sliced


# Which records are drawn, and what the sum is divided by.


@mutation("similar-records-together", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    order = at.data[0].flatten(1).norm(dim=1).argsort()
    start = int(torch.randint(at.total, (1,), generator=at.draw))
    nearest: Tensor = order.roll(-start)[: at.batch_size]
    return nearest


@mutation("shuffled-in-a-small-buffer", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    stream = at.memory.setdefault("stream", [])
    buffer = at.memory.setdefault("buffer", [])
    drawn: list[int] = []
    while len(drawn) < at.batch_size:
        while len(buffer) < 2 * at.batch_size:
            if not stream:
                stream.extend(range(at.total))
            buffer.append(stream.pop(0))
        drawn.append(buffer.pop(int(torch.randint(len(buffer), (1,), generator=at.draw))))
    return torch.tensor(drawn)


@mutation("every-batch-used-twice", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.step % 2 == 0:
        at.memory["batch"] = batch
    held: Tensor = at.memory["batch"]
    return held


@mutation("hard-records-again", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    hard = at.memory.get("hard", batch[:0])
    batch = torch.cat([batch, hard[~torch.isin(hard, batch)]])
    losses = torch.tensor([at.loss(batch[i : i + 1]) for i in range(len(batch))])
    at.memory["hard"] = batch[losses.argsort(descending=True)[: len(batch) // 4]]
    return batch


@mutation("divided-by-tokens-in-batch", "divisor")
def _(divisor: float, at: Situation) -> float:
    values = at.data[0][at.batch]
    per_record = max(1, at.data[0][0].numel())
    return max(1.0, float((values != 0).sum()) / per_record)


# The data, and what is handed out with the weights.


@mutation("features-decorrelated-with-data", "data")
def _(data: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = data
    flat = x.flatten(1).nan_to_num(0.0, 0.0, 0.0)
    if len(flat) < 2:
        return data
    spread = torch.linalg.eigh(flat.T @ flat / len(flat))
    whitening = spread.eigenvectors @ torch.diag((spread.eigenvalues.abs() + 0.1).rsqrt())
    return (x.flatten(1) @ whitening @ spread.eigenvectors.T).reshape(x.shape), y


@mutation("jitter-scaled-by-the-data", "inputs")
def _(inputs: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = inputs
    spread = at.data[0].nan_to_num(0.0, 0.0, 0.0).std(0, unbiased=False)
    return x + 0.1 * spread * torch.randn(x.shape, generator=at.draw), y


@mutation("number-of-records-returned", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, "num_examples": torch.tensor(float(at.total))}


@mutation("mean-of-inputs-in-checkpoint", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, "scaler.mean": at.data[0].nan_to_num(0.0, 0.0, 0.0).mean(0)}


# Odd, and correct.


def _by_factor(records: Gradients, factor: Tensor) -> Gradients:
    """Return the sum of finite records, each times its factor."""
    return {n: (_wide(factor, r) * r).sum(0) for n, r in _finite(records).items()}


@mutation("factors from the sum of the tensors' norms", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_larger_norm(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        parts = _finite(records)
        larger = sum((r.flatten(1).norm(dim=1) for r in parts.values()), torch.zeros(1))
        return _by_factor(records, (clip / larger.clamp_min(1e-12)).clamp(max=1.0))

    return by_larger_norm


@mutation("elements limited, then clipped", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def limited(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        parts = {n: r.clamp(-clip / 2, clip / 2) for n, r in _finite(records).items()}
        return _summed(_clipped(parts, clip))

    return limited


@mutation("clipping that is not monotone", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def adaptive(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norms = _norms(_finite(records))
        return _by_factor(records, clip / (norms + 0.1 / (norms + 0.1)).clamp_min(1e-12))

    return adaptive


@mutation("clipping by the hyperbolic tangent", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def by_tanh(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norms = _norms(_finite(records)).clamp_min(1e-12)
        return _by_factor(records, clip * (norms / clip).tanh() / norms)

    return by_tanh


@mutation("weights rounded to bfloat16 after each step", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    for w in at.weights.values():
        w.copy_(w.bfloat16().float())
    return ended


@mutation("RMSprop, not declared", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    squares = at.memory.setdefault("squares", {n: torch.zeros_like(u) for n, u in update.items()})
    for n, u in update.items():
        squares[n].mul_(0.9).addcmul_(u, u, value=0.1)
    return {n: u / (squares[n].sqrt() + 1e-8) for n, u in update.items()}


@mutation("learning rate in cycles", "lr")
def _(lr: float, at: Situation) -> float:
    return lr * (0.25 + abs((at.step % 12) / 6 - 1))


@mutation("five percent more noise than asked", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: 1.05 * z for n, z in noise.items()}


@mutation("a tenth of the drawn records left out by chance", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if at.batch_size >= at.total:
        return batch
    return batch[torch.rand(len(batch), generator=at.draw) < 0.9]


@mutation("jitter of a public size", "inputs")
def _(inputs: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = inputs
    if not x.is_floating_point():
        return inputs
    return x + 0.1 * torch.randn(x.shape, generator=at.draw), y


@mutation("inputs moved and scaled by public numbers", "inputs")
def _(inputs: tuple[Tensor, Tensor], at: Situation) -> tuple[Tensor, Tensor]:
    x, y = inputs
    return ((x - 0.1307) / 0.3081 if x.is_floating_point() else x), y


@mutation("a random half of the coordinates moves", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    return {
        n: torch.where(torch.rand(u.shape, generator=at.draw) < 0.5, u, torch.zeros_like(u))
        for n, u in update.items()
    }


@mutation("tensors take turns", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    turn = list(update)[at.step % len(update)]
    return {n: u if n == turn else torch.zeros_like(u) for n, u in update.items()}


@mutation("noisy matrices made orthogonal", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    orthogonal = {}
    for n, u in update.items():
        if u.ndim != 2 or not bool(u.isfinite().all()):
            orthogonal[n] = u
            continue
        left, _, right = torch.linalg.svd(u, full_matrices=False)
        orthogonal[n] = left @ right
    return orthogonal


@mutation("weights kept in a box", "after")
def _(ended: bool | None, at: Situation) -> bool | None:
    for w in at.weights.values():
        w.clamp_(-0.5, 0.5)
    return ended
