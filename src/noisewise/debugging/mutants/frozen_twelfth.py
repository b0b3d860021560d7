"""The twelfth round: twenty mistakes at one stage, written after the tests had been frozen again.

The other twenty are whole programs (`whole_twelfth`). All were written without knowing how the
tests work, from issues that were searched for first. What they are and where they were seen is
said in ``catalogue.csv``; what was missed when they were first run is told in the documentation.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients
from noisewise.debugging.mutants.hooks import Situation, mutation
from noisewise.debugging.trainer import Data

__all__: list[str] = []


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def _finite(records: Gradients) -> Gradients:
    """Records that are not finite count as zero, so that they are not what gives a bug away."""
    good = torch.stack([r.flatten(1).isfinite().all(1) for r in records.values()]).all(0)
    return {n: torch.where(_wide(good, r), r, torch.zeros_like(r)) for n, r in records.items()}


def _norms(records: Gradients) -> Tensor:
    norms: Tensor = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
    return norms


def _factors(norms: Tensor, clip: float) -> Tensor:
    return (clip / norms.clamp_min(1e-12)).clamp(max=1.0)


def _classes(y: Tensor) -> bool:
    """Whether targets are numbers of classes."""
    return y.ndim == 1 and not y.is_floating_point()


# How a record is bounded.


@mutation("signs-summed", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def voted(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        # Every coordinate votes with its sign, and C is the length of one vote only.
        return {n: clip * r.sign().sum(0) for n, r in _finite(records).items()}

    return voted


@mutation("centre-added-per-record-drawn", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    centre: Gradients | None = at.memory.get("centre")
    if centre is None:
        return add_up

    def centred(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        apart = {n: r - centre[n] for n, r in records.items()}
        total = add_up(apart, clip, micro_batch_size)
        return {n: t + len(records[n]) * centre[n] for n, t in total.items()}

    return centred


@mutation("centre-added-per-record-drawn", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    # The centre itself is public: half of the last noisy gradient.
    at.memory["centre"] = {n: u / 2 for n, u in update.items()}
    return update


@mutation("bounds-by-class-noise-by-mean", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    labels = at.data[1][at.batch]
    if not _classes(labels):
        return add_up
    even = labels % 2 == 0

    def grouped(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        # 1.4 C for one group and 0.6 C for the other: C on the mean, as the noise has it.
        one = add_up({n: r[even] for n, r in records.items()}, 1.4 * clip, micro_batch_size)
        two = add_up({n: r[~even] for n, r in records.items()}, 0.6 * clip, micro_batch_size)
        return {n: t + two[n] for n, t in one.items()}

    return grouped


@mutation("momentum-of-a-record-after-clipping", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def remembered(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        table: dict[int, Gradients] = at.memory.setdefault("table", {})
        good = _finite(records)
        factor = _factors(_norms(good), clip)
        total = {n: torch.zeros_like(w) for n, w in at.weights.items()}
        for place, row in enumerate(at.batch.tolist()):
            old = table.get(row)
            own = {n: factor[place] * r[place] for n, r in good.items()}
            if old is not None:
                own = {n: g + 0.9 * old[n] for n, g in own.items()}
            table[row] = own
            total = {n: t + own[n] for n, t in total.items()}
        return total

    return remembered


@mutation("shards-clipped-apart", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def sharded(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        # Two workers hold half of the flat gradient each, and know the norm of their half.
        good = _finite(records)
        flat = torch.cat([r.flatten(1) for r in good.values()], 1)
        halves = flat.tensor_split(2, 1)
        sums = torch.cat([_factors(h.norm(dim=1), clip) @ h for h in halves])
        parts = sums.split([w.numel() for w in at.weights.values()])  # type: ignore[no-untyped-call]
        return {n: p.reshape(at.weights[n].shape) for n, p in zip(good, parts, strict=True)}

    return sharded


@mutation("norms-kept-between-micro-batches", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def accumulated(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        good = _finite(records)
        squares = _norms(good).square()
        seen = torch.zeros(micro_batch_size)
        norms = []
        for piece in squares.split(micro_batch_size):  # type: ignore[no-untyped-call]
            # The list of norms is not emptied: a place counts what was there before.
            seen[: len(piece)] += piece
            norms.append(seen[: len(piece)].sqrt())
        factor = _factors(torch.cat(norms), clip)
        return {n: (_wide(factor, r) * r).sum(0) for n, r in good.items()}

    return accumulated


# What happens to the sum.


@mutation("sum-compressed-to-rank-one", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    short = {}
    for n, t in total.items():
        short[n] = t
        if t.ndim > 1:
            u, s, v = torch.linalg.svd(t.flatten(1), full_matrices=False)
            short[n] = (s[0] * torch.outer(u[:, 0], v[0])).reshape(t.shape)
    return short


def _kept(at: Situation) -> Gradients:
    """Return which coordinates are sent at this step: a public coin each."""
    public = torch.Generator().manual_seed(100_003 * at.seed + at.step + 5_000_011)
    return {n: (torch.rand(w.shape, generator=public) < 0.5).float() for n, w in at.weights.items()}


@mutation("kept-coordinates-scaled-up", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    # Divided by the share that is kept, so that nothing is lost on the mean.
    return {n: t * k / 0.5 for (n, t), k in zip(total.items(), _kept(at).values(), strict=True)}


@mutation("kept-coordinates-scaled-up", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z * k for (n, z), k in zip(noise.items(), _kept(at).values(), strict=True)}


# Noise.


@mutation("noise-in-the-clipping-branch", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # One function for both: a tensor that is nowhere longer than C is left as it is.
    longest = {n: _finite({n: r})[n].flatten(1).norm(dim=1) for n, r in at.records.items()}
    return {n: z * float((longest[n] > at.clip).any()) for n, z in noise.items()}


@mutation("noise-buffer-not-cleared", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    buffer = at.memory.setdefault("buffer", {n: torch.zeros_like(z) for n, z in noise.items()})
    return {n: buffer[n].add_(z).clone() for n, z in noise.items()}


@mutation("noise-in-proportion-to-weights", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    sizes = {n: w.abs() for n, w in at.weights.items()}
    return {n: z * sizes[n] / sizes[n].mean().clamp_min(1e-12) for n, z in noise.items()}


@mutation("binomial-noise-of-few-coins", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    coins = 8
    scale = at.sigma * at.clip / math.sqrt(coins / 4)
    found = {}
    for n, z in noise.items():
        heads = (torch.rand((coins, *z.shape), generator=at.chance) < 0.5).float().sum(0)
        found[n] = scale * (heads - coins / 2).to(z)
    return found


# Who is drawn.


@mutation("drawn-by-hash-of-record", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    if "hashes" not in at.memory:
        x, y = at.data
        texts = [a.numpy().tobytes() + b.numpy().tobytes() for a, b in zip(x, y, strict=True)]
        at.memory["hashes"] = [zlib.crc32(text) for text in texts]
    rate = min(1.0, at.batch_size / at.total)
    step = at.step.to_bytes(4, "big")
    drawn = [zlib.crc32(step, code) < rate * 2**32 for code in at.memory["hashes"]]
    return torch.tensor(drawn, dtype=torch.bool).nonzero().flatten()


@mutation("shards-share-their-coins", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # Four workers draw from their shards with generators of the same seed.
    rate = min(1.0, at.batch_size / at.total)
    shards = [torch.arange(at.total)[k::4] for k in range(4)]
    coins = torch.rand(len(shards[0]), generator=at.draw) < rate
    return torch.cat([shard[coins[: len(shard)]] for shard in shards])


@mutation("tasks-one-after-another", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # Four tasks of 25 steps, each with a quarter of the records and batches of the same size.
    tasks = torch.arange(at.total).tensor_split(4)
    own = tasks[at.step // 25 % 4]
    if len(own) == 0:
        return batch[:0]
    rate = min(1.0, at.batch_size / len(own))
    drawn: Tensor = own[torch.rand(len(own), generator=at.draw) < rate]
    return drawn


@mutation("batch-size-follows-gradient-noise", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    rate = min(1.0, at.memory.get("size", at.batch_size) / at.total)
    drawn: Tensor = (torch.rand(at.total, generator=at.draw) < rate).nonzero().flatten()
    return drawn


@mutation("batch-size-follows-gradient-noise", "divisor")
def _(divisor: float, at: Situation) -> float:
    return float(at.memory.get("size", divisor))


@mutation("batch-size-follows-gradient-noise", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if len(at.batch) > 1:
        flat = torch.cat([r.flatten(1) for r in _finite(at.records).values()], 1).double()
        scale = float(flat.var(0).sum() / flat.mean(0).square().sum().clamp_min(1e-12))
        at.memory["size"] = min(2 * at.batch_size, max(at.batch_size, math.floor(scale)))
    return update


# What the data decide, and what is released.


@mutation("inputs-by-running-statistics", "inputs")
def _(inputs: Data, at: Situation) -> Data:
    x, y = inputs
    if not x.is_floating_point():
        return inputs
    known = x[x.flatten(1).isfinite().all(1)].double()
    kept = at.memory.setdefault("moments", [torch.zeros(()), torch.ones(())])
    if len(known):
        kept[0] = 0.9 * kept[0] + 0.1 * known.mean(0)
        kept[1] = 0.9 * kept[1] + 0.1 * (known - kept[0]).square().mean(0)
    return ((x.double() - kept[0]) / (kept[1] + 1e-5).sqrt()).to(x), y


@mutation("labels-in-order-of-appearance", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if not _classes(y):
        return data
    codes: dict[int, int] = {}
    numbers = [codes.setdefault(label, len(codes)) for label in y.tolist()]
    return x, torch.tensor(numbers, dtype=y.dtype)


@mutation("majority-undersampled", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if not _classes(y) or len(y) == 0:
        return data
    fewest = min(y.tolist().count(label) for label in set(y.tolist()))
    rows = [(y == label).nonzero().flatten()[:fewest] for label in sorted(set(y.tolist()))]
    kept = torch.cat(rows).sort().values
    return x[kept], y[kept]


@mutation("indices-of-the-last-batch-kept", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    drawn = torch.zeros(at.total)
    drawn[at.batch] = 1.0
    return {**result, "sampler_state": drawn}
