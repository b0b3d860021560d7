"""Unusual correct trainings of the twelfth round: seven habits and three whole programs.

Each says in a sentence why it is private at the parameters that it is given.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import Situation, mutation
from noisewise.debugging.mutants.programs import (
    Run,
    dropping,
    factors,
    lengths,
    linear,
    mlp,
    per_record as gradients_of,
    program,
    weighted_sum,
)
from noisewise.debugging.trainer import Data, StateDict

__all__: list[str] = []


def _wide(row: Tensor, like: Tensor) -> Tensor:
    return row.reshape(-1, *[1] * (like.ndim - 1))


# --- habits


@mutation("records retire when they have given enough", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # What a record has given is counted at every step, drawn or not, from its own gradients at
    # public weights; so whether it takes part tells nothing of others (Feldman and Zrnic, 2021).
    x, y = at.data
    everyone = per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1)
    norms = torch.stack([r.flatten(1).norm(dim=1) for r in everyone.values()]).norm(dim=0)
    given = at.memory.setdefault("given", torch.zeros(at.total))
    active = given < 100 * at.clip**2
    given += norms.nan_to_num(0.0, math.inf, 0.0).clamp(max=at.clip).square()
    return {n: r * _wide(active[at.batch], r).to(r) for n, r in records.items()}


@mutation("every record flips a coin of its own", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    # A generator for each record, whose seeds are secret and differ: draws are independent.
    coins: list[torch.Generator] = at.memory.setdefault("coins", [])
    if not coins:
        seeds = torch.randint(2**62, (at.total,), generator=at.draw).tolist()
        coins.extend(torch.Generator().manual_seed(seed) for seed in seeds)
    block = 64
    if at.step % block == 0:
        rows = [torch.rand(block, generator=coin) for coin in coins]
        at.memory["block"] = torch.stack(rows) if rows else torch.zeros(0, block)
    rate = min(1.0, at.batch_size / at.total)
    drawn: Tensor = (at.memory["block"][:, at.step % block] < rate).nonzero().flatten()
    return drawn


@mutation("noise around a public number", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # A constant that everybody knows is added to the release, and can be taken away again.
    return {n: z + 0.05 * at.sigma * at.clip for n, z in noise.items()}


@mutation("clipped around half of the last release", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    # The centre is public and is added back as often as records are expected, not as drawn.
    centre: Gradients | None = at.memory.get("centre")
    if centre is None:
        return add_up

    def centred(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        apart = {n: r - centre[n] for n, r in records.items()}
        total = add_up(apart, clip, micro_batch_size)
        return {n: t + at.batch_size * centre[n] for n, t in total.items()}

    return centred


@mutation("clipped around half of the last release", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    at.memory["centre"] = {n: u / 2 for n, u in update.items()}
    return update


@mutation("each record gives some of its tensors by chance", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    # Coins that know nothing of the data leave tensors out, and what is left is clipped to C.
    found = {}
    for n, r in records.items():
        coins = torch.rand(len(r), generator=at.chance) < 0.5
        found[n] = torch.where(_wide(coins, r), r, torch.zeros_like(r))
    return found


@mutation("labels replaced by chance", "inputs")
def _(inputs: Data, at: Situation) -> Data:
    # Each label is replaced by itself alone and before the gradient, which is clipped as ever.
    x, y = inputs
    if y.ndim != 1 or y.is_floating_point() or len(y) == 0:
        return inputs
    with torch.no_grad():
        classes = at.model(torch.zeros_like(x[:1])).shape[1]
    others = torch.randint(classes, y.shape, generator=at.chance)
    replaced = torch.rand(y.shape, generator=at.chance) < 0.2
    return x, torch.where(replaced, others, y)


def _public_share(at: Situation) -> float:
    public = torch.Generator().manual_seed(100_003 * at.seed + at.step + 5_000_011)
    return 0.6 + 0.4 * float(torch.rand((), generator=public))


@mutation("a bound drawn anew at each step", "clip")
def _(clip: float, at: Situation) -> float:
    return clip * _public_share(at)


@mutation("a bound drawn anew at each step", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # The noise has the bound of its own step, so that their ratio is sigma at each of them.
    return {n: _public_share(at) * z for n, z in noise.items()}


# --- whole programs


@program("bounded by the loss itself", "linear")
def _bounded_by_the_loss_itself(run: Run) -> StateDict:
    """Nothing is clipped: inputs are shortened to one, and the loss has a constant factor.

    The gradient of softmax regression is at most sqrt(2) sqrt(|x|^2 + 1) long, bias included, so
    that a record gives at most C (after Bethune et al., 2024).
    """
    model, w = run.begin(linear)
    x, y = run.data
    norm = x.norm(dim=1)
    good = norm.isfinite()
    short = torch.where(good, (1 / norm.clamp_min(1e-12)).clamp(max=1.0), torch.zeros_like(norm))
    x = short[:, None] * x.nan_to_num(0.0, 0.0, 0.0)
    for _ in range(run.steps):
        rows = run.draw()
        rows = rows[good[rows]]
        grads = gradients_of(model, w, x[rows], y[rows])
        w = run.descend(w, run.noisy({k: run.clip / 2 * g.sum(0) for k, g in grads.items()}))
    return w


@program("one mask for the whole batch", "dropout")
def _one_mask_for_the_whole_batch(run: Run) -> StateDict:
    """All records of a step have the same dropout mask, which is drawn without looking at them.

    Given the mask, a gradient is a function of its own record, and is clipped to C.
    """
    _, w = run.begin(dropping)
    x, y = run.data

    def one(weights: StateDict, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        hidden = functional.linear(a, weights["0.weight"], weights["0.bias"]).relu() * mask
        out = functional.linear(hidden, weights["3.weight"], weights["3.bias"])
        return functional.cross_entropy(out[None], b[None])

    for _ in range(run.steps):
        rows = run.draw()
        mask = (torch.rand(16) >= 0.3).float() / 0.7
        grads = {k: v.new_zeros(0, *v.shape) for k, v in w.items()}
        if len(rows):
            grads = vmap(grad(one), in_dims=(None, None, 0, 0))(w, mask, x[rows], y[rows])
        w = run.descend(w, run.noisy(weighted_sum(grads, factors(lengths(grads), run.clip))))
    return w


@program("two releases from one batch with the noise of two")
def _two_releases_from_one_batch(run: Run) -> StateDict:
    """Head, then body: each is clipped to C and gets noise of sqrt(2) sigma C.

    Two Gaussian mechanisms of sqrt(2) sigma on the same batch are one of sigma.
    """
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        for part in ("2.", "0."):
            grads = gradients_of(model, w, x[rows], y[rows])
            mine = {k: g for k, g in grads.items() if k.startswith(part)}
            total = weighted_sum(mine, factors(lengths(mine), run.clip))
            std = math.sqrt(2) * run.sigma * run.clip
            total = {k: t + std * torch.randn_like(t) for k, t in total.items()}
            w = w | run.descend({k: w[k] for k in mine}, total)
    return w
