"""Unusual correct trainings of the eleventh round: ten habits and five whole programs.

Each says in a sentence why it is private at the parameters that it is given.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation
from noisewise.debugging.mutants.programs import (
    Run,
    descend,
    dropping,
    factors,
    lengths,
    linear,
    mlp,
    program,
    weighted_sum,
)
from noisewise.debugging.trainer import StateDict

__all__: list[str] = []


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


def _length(total: Gradients) -> float:
    return float(torch.stack([t.norm() for t in total.values()]).norm())


# --- habits


@mutation("each worker draws from its shard", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # Shards are apart and each record is drawn by itself with the same rate.
    rate = min(1.0, at.batch_size / at.total)
    shards = [torch.arange(at.total)[k::4] for k in range(4)]
    return torch.cat([s[torch.rand(len(s), generator=at.draw) < rate] for s in shards])


def _basis(n: str, like: Tensor, at: Situation) -> Tensor:
    """Return an orthonormal basis of half as many directions, drawn with a public seed."""
    kept: Gradients = at.memory.setdefault("basis", {})
    if n not in kept:
        size = like.numel()
        public = torch.Generator().manual_seed(7 + len(kept))
        drawn = torch.randn(size, max(1, size // 2), generator=public)
        kept[n] = torch.linalg.qr(drawn)[0]
    return kept[n]


@mutation("trained in a public subspace", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # Contributions and noise are projected alike: a Gaussian mechanism in fewer dimensions.
    found = {}
    for n, r in records.items():
        q = _basis(n, at.weights[n], at).to(r)
        found[n] = (r.flatten(1) @ q @ q.T).reshape(r.shape)
    return found


@mutation("trained in a public subspace", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    found = {}
    for n, z in noise.items():
        q = _basis(n, at.weights[n], at).to(z)
        found[n] = (z.flatten() @ q @ q.T).reshape(z.shape)
    return found


@mutation("second moments less the noise", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    # Adam on what is released already; the variance of the noise is public.
    first = at.memory.setdefault("first", {n: torch.zeros_like(u) for n, u in update.items()})
    second = at.memory.setdefault("second", {n: torch.zeros_like(u) for n, u in update.items()})
    variance = (at.sigma * at.clip / at.batch_size) ** 2
    found = {}
    for n, u in update.items():
        first[n].lerp_(u, 0.1)
        second[n].lerp_(u * u, 0.01)
        mean = first[n] / (1 - 0.9 ** (at.step + 1))
        square = second[n] / (1 - 0.99 ** (at.step + 1))
        found[n] = mean / (square - variance).clamp_min(variance / 4 + 1e-8).sqrt()
    return found


@mutation("gradients uphill of the last release", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # Where gradients are taken follows from the last noisy gradient, which is public.
    last: Gradients | None = at.memory.get("released")
    if last is None or len(at.batch) == 0:
        return records
    kept = {n: w.clone() for n, w in at.weights.items()}
    for n, w in at.weights.items():
        w.add_(last[n], alpha=0.05 / max(_length(last), 1e-12))
    x, y = at.data[0][at.batch], at.data[1][at.batch]
    found = per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)
    for n, w in at.weights.items():
        w.copy_(kept[n])
    return found


@mutation("gradients uphill of the last release", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    at.memory["released"] = update
    return update


@mutation("focal weights before clipping", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # A weight from the record's own loss, and the bound comes after it.
    x, y = at.data[0][at.batch], at.data[1][at.batch]
    if len(x) == 0:
        return records
    with torch.no_grad():
        out = at.model(x)
        each = [at.loss_fn(out[i : i + 1], y[i : i + 1]).mean() for i in range(len(x))]
    weight = (1 - torch.exp(-torch.stack(each))).square()
    return {n: _wide(weight, r) * r for n, r in records.items()}


@mutation("records with momentum of their own", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # What a record gives when it is drawn holds its own past only, and is clipped as a whole.
    table: dict[int, Gradients] = at.memory.setdefault("table", {})
    found = {n: r.clone() for n, r in records.items()}
    for place, row in enumerate(at.batch.tolist()):
        own = {n: f[place] for n, f in found.items()}
        if not all(bool(g.isfinite().all()) for g in own.values()):
            continue
        if row in table:
            for n, g in own.items():
                g.lerp_(table[row][n], 0.3)
        table[row] = {n: g.clone() for n, g in own.items()}
    return found


@mutation("tensors clipped, then all of them", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    # The last bound is the one that counts: C for all tensors together.
    def twice(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        short = {}
        for n, r in records.items():
            norm = r.flatten(1).norm(dim=1)
            short[n] = _wide((0.7 * clip / norm.clamp_min(1e-12)).clamp(max=1.0), r) * r
        return dict(add_up(short, clip, micro_batch_size))

    return twice


@mutation("factor rounded down to power of two", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    # Never more than the right factor, so never longer than C.
    def rounded(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        norms = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
        right = (clip / norms.clamp_min(1e-12)).clamp(max=1.0)
        factor = torch.where(norms.isfinite(), right.log2().floor().exp2(), torch.zeros_like(right))
        return {n: (_wide(factor, r) * r.nan_to_num(0, 0, 0)).sum(0) for n, r in records.items()}

    return rounded


@mutation("norm that follows what was released", "clip")
def _(clip: float, at: Situation) -> float:
    return clip * float(at.memory.get("share", 1.0))


@mutation("norm that follows what was released", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # Noise follows the norm, so sigma is what it was, and the norm follows what is public.
    share = at.memory.get("share", 1.0)
    return {n: share * z for n, z in noise.items()}


@mutation("norm that follows what was released", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    share = at.memory.get("share", 1.0)
    longer = _length(update) > 2 * share * at.clip
    at.memory["share"] = min(1.0, max(0.5, share * (1.01 if longer else 0.99)))
    return update


@mutation("steps left out by a public coin", "update")
def _(update: Gradients, at: Situation) -> Gradients | None:
    # A release that is not used costs as much as one that is.
    coin = at.memory.setdefault("coin", torch.Generator().manual_seed(at.seed + 5))
    return None if float(torch.rand((), generator=coin)) < 0.1 else update


# --- whole programs


@program("along one public direction a step")
def _along_one_public_direction(run: Run) -> StateDict:
    """A slope per record along a random direction, clipped to C as a quotient; one number of noise.

    After Zhang et al. (2024) and Tang et al. (2024). The direction tells nothing of the records,
    and a number that a record moves by at most C gets noise of sigma C.
    """
    model, w = run.begin(mlp)
    x, y = run.data
    mu = 0.05

    def losses(weights: StateDict, rows: Tensor) -> Tensor:
        with torch.no_grad():
            out = functional_call(model, weights, (x[rows],))
            each: Tensor = functional.cross_entropy(out, y[rows], reduction="none")
        return each

    for _ in range(run.steps):
        rows = run.draw()
        way = {k: torch.randn_like(v) for k, v in w.items()}
        length = torch.stack([v.norm() for v in way.values()]).norm()
        way = {k: v / length for k, v in way.items()}
        ahead = losses({k: w[k] + mu * way[k] for k in w}, rows)
        behind = losses({k: w[k] - mu * way[k] for k in w}, rows)
        slopes = ((ahead - behind) / (2 * mu)).nan_to_num(0.0, 0.0, 0.0)
        slope = slopes.clamp(-run.clip, run.clip).sum() + run.sigma * run.clip * torch.randn(())
        w = run.descend(w, {k: slope * v for k, v in way.items()})
    return w


@program("two passes with one mask", "dropout")
def _two_passes_with_one_mask(run: Run) -> StateDict:
    """Norms first, then the reweighted gradient, both under the mask that the record drew.

    The factors are those of the very gradients that are added, so none is longer than C.
    """
    _, w = run.begin(dropping)
    x, y = run.data

    def one(weights: StateDict, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        hidden = functional.linear(a, weights["0.weight"], weights["0.bias"]).relu() * mask
        out = functional.linear(hidden, weights["3.weight"], weights["3.bias"])
        return functional.cross_entropy(out[None], b[None])

    def weighted(weights: StateDict, f: Tensor, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (f * vmap(one, in_dims=(None, 0, 0, 0))(weights, mask, a, b)).sum()

    for _ in range(run.steps):
        rows = run.draw()
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        if len(rows):
            mask = (torch.rand(len(rows), 16) >= 0.3).float() / 0.7
            grads = vmap(grad(one), in_dims=(None, 0, 0, 0))(w, mask, x[rows], y[rows])
            f = factors(lengths(grads), run.clip)
            kept = f > 0
            if kept.any():
                total = grad(weighted)(w, f[kept], mask[kept], x[rows][kept], y[rows][kept])
        w = run.descend(w, run.noisy(total))
    return w


@program("schedule-free")
def _schedule_free(run: Run) -> StateDict:
    """Gradients between the last weights and their mean, which is returned.

    After Defazio et al. (2024); all of it is made of noisy gradients.
    """
    model, w = run.begin(mlp)
    mean = {k: v.clone() for k, v in w.items()}
    for step in range(run.steps):
        rows = run.draw()
        between = {k: 0.1 * w[k] + 0.9 * mean[k] for k in w}
        w = run.descend(w, run.noisy(run.clipped_sum(model, between, rows)))
        mean = {k: v + (w[k] - v) / (step + 1) for k, v in mean.items()}
    return mean


@program("held to the mean of its own weights")
def _held_to_the_mean(run: Run) -> StateDict:
    """Each record's loss also asks for the outputs of averaged weights (a mean teacher).

    The teacher is made of released weights, and the gradient of one record is clipped as a whole.
    """
    model, w = run.begin(mlp)
    x, y = run.data
    teacher = {k: v.clone() for k, v in w.items()}

    def one(weights: StateDict, guide: StateDict, a: Tensor, b: Tensor) -> Tensor:
        out = functional_call(model, weights, (a[None],))
        wanted = functional_call(model, guide, (a[None],)).softmax(1)
        plain = functional.cross_entropy(out, b[None])
        told: Tensor = plain + (out.softmax(1) - wanted).square().sum()
        return told

    for _ in range(run.steps):
        rows = run.draw()
        grads = {k: v.new_zeros(0, *v.shape) for k, v in w.items()}
        if len(rows):
            grads = vmap(grad(one), in_dims=(None, None, 0, 0))(w, teacher, x[rows], y[rows])
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
        teacher = {k: 0.9 * v + 0.1 * w[k] for k, v in teacher.items()}
    return w


@program("adapters merged at the end", "linear")
def _adapters_merged_at_the_end(run: Run) -> StateDict:
    """Two thin matrices are trained and returned as their product beside the first weights.

    What is merged is a function of private weights (Hu et al., 2022, with noise).
    """
    model, frozen = run.begin(linear)
    x, y = run.data
    w = {"a": torch.randn(2, 8) / math.sqrt(8), "b": torch.zeros(3, 2)}

    def merged(weights: StateDict) -> StateDict:
        return {**frozen, "weight": frozen["weight"] + weights["b"] @ weights["a"]}

    def one(weights: StateDict, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(
            functional_call(model, merged(weights), (a[None],)), b[None]
        )

    for _ in range(run.steps):
        rows = run.draw()
        grads = {k: v.new_zeros(0, *v.shape) for k, v in w.items()}
        if len(rows):
            grads = vmap(grad(one), in_dims=(None, 0, 0))(w, x[rows], y[rows])
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = descend(w, run.noisy(total), run.lr / run.batch_size)
    return merged(w)
