"""The eleventh round: twenty mistakes at one stage, written after the tests had been frozen again.

The other twenty are whole programs (`whole_eleventh`). All were written without knowing how the
tests work, from issues that were searched for first. What they are and where they were seen is
said in ``catalogue.csv``; what was missed when they were first run is told in the documentation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.debugging.mutants.bounding import Gradients, per_record
from noisewise.debugging.mutants.hooks import PHYSICAL, Situation, mutation
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


def _times(records: Gradients, factor: Tensor) -> Gradients:
    return {n: _wide(factor, r) * r for n, r in records.items()}


def _of_all(at: Situation) -> Gradients:
    """Gradients of all records at the weights of now; broken ones count as zero."""
    x, y = at.data
    return _finite(per_record(None, at.model, at.loss_fn, list(at.weights), x, y, 1))


def _losses(at: Situation) -> Tensor:
    """Loss of each record of this batch by itself."""
    x, y = at.data[0][at.batch], at.data[1][at.batch]
    with torch.no_grad():
        out = at.model(x)
        each = [at.loss_fn(out[i : i + 1], y[i : i + 1]).mean() for i in range(len(x))]
    return torch.stack(each).nan_to_num(0.0, 0.0, 0.0).clamp(max=1e6)


# How a record is bounded.


def _scheduled(step: int) -> float:
    return max(0.1, 0.9**step)


@mutation("noise-of-the-next-norm", "clip")
def _(clip: float, at: Situation) -> float:
    return clip * _scheduled(at.step)


@mutation("noise-of-the-next-norm", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # The scheduler of the norm steps after the clipping and before the noise.
    return {n: z * _scheduled(at.step + 1) for n, z in noise.items()}


@mutation("expert-capacity-of-batch", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) == 0:
        return records
    with torch.no_grad():
        routed = at.model(at.data[0][at.batch]).flatten(1).nan_to_num(0.0, 0.0, 0.0)
    experts = routed.shape[1]
    room = math.ceil(1.25 * len(at.batch) / experts)
    chosen = functional.one_hot(routed.argmax(1), experts)
    place = (chosen.cumsum(0) * chosen).sum(1)
    return _times(_finite(records), (place <= room).float())


@mutation("global-scale-without-cut", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def scaled(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        # No gradient was ever longer than 5, in the runs that were looked at.
        return {n: clip / 5.0 * r.sum(0) for n, r in _finite(records).items()}

    return scaled


def _shares(names: list[str]) -> dict[str, float]:
    """What each tensor may have of the bound: more, the later it comes; squares add up to one."""
    whole = math.sqrt(sum((k + 1) ** 2 for k in range(len(names))))
    return {n: (k + 1) / whole for k, n in enumerate(names)}


@mutation("layer-bounds-and-noise-out-of-order", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def apart(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        total: Gradients = {}
        for n, share in _shares(list(records)).items():
            total |= add_up({n: records[n]}, share * clip, micro_batch_size)
        return total

    return apart


@mutation("layer-bounds-and-noise-out-of-order", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    # Noise in proportion to each bound keeps sigma, if it is the bound of the same tensor.
    bounds = reversed(_shares(list(noise)).values())
    width = math.sqrt(len(noise))
    return {n: width * share * z for (n, z), share in zip(noise.items(), bounds, strict=True)}


@mutation("decay-per-record-drawn", "total")
def _(total: Gradients, at: Situation) -> Gradients:
    # The penalty is in the loss of each record, and its gradient is left out of the clipping.
    return {n: t + 0.05 * len(at.batch) * at.weights[n] for n, t in total.items()}


@mutation("padding-records-have-gradients", "inputs")
def _(inputs: Data, at: Situation) -> Data:
    x, y = inputs
    missing = -len(x) % PHYSICAL
    empty_x, empty_y = x.new_zeros((missing, *x.shape[1:])), y.new_zeros((missing, *y.shape[1:]))
    return torch.cat([x, empty_x]), torch.cat([y, empty_y])


@mutation("advantages-normalised-in-batch", "records")
def _(records: Gradients, at: Situation) -> Gradients:
    if len(at.batch) < 2:
        return records
    losses = _losses(at)
    return _times(_finite(records), (losses - losses.mean()) / (losses.std() + 1e-6))


@mutation("noise-after-rescaling-coordinates", "bounded")
def _(add_up: Any, at: Situation) -> Any:
    def scaled(records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        # Public scales; clipping is done where gradients are round, noise where they are not.
        scale = {n: 3.0 if r.ndim > 2 else 1.0 for n, r in records.items()}
        round_ = {n: r / scale[n] for n, r in records.items()}
        return {n: scale[n] * t for n, t in add_up(round_, clip, micro_batch_size).items()}

    return scaled


@mutation("inputs-quantised-by-batch-range", "inputs")
def _(inputs: Data, at: Situation) -> Data:
    x, y = inputs
    known = x[x.isfinite()] if x.is_floating_point() else x.new_zeros(0)
    if known.numel() == 0 or known.max() == known.min():
        return inputs
    step = (known.max() - known.min()) / 255
    return (x - known.min()).div(step).round() * step + known.min(), y


# Noise.


@mutation("noise-on-inputs", "inputs")
def _(inputs: Data, at: Situation) -> Data:
    x, y = inputs
    if not x.is_floating_point():
        return inputs
    return x + at.sigma * at.clip * torch.randn(x.shape, generator=at.chance), y


@mutation("noise-on-inputs", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: torch.zeros_like(z) for n, z in noise.items()}


@mutation("noise-shared-out-among-tensors", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: z / math.sqrt(len(noise)) for n, z in noise.items()}


@mutation("generator-state-in-checkpoint", "result")
def _(result: Gradients, at: Situation) -> Gradients:
    return {**result, "rng_state": at.chance.get_state()}


# Who is drawn.


@mutation("replay-buffer", "batch")
def _(batch: Tensor, at: Situation) -> Tensor:
    kept: list[int] = at.memory.setdefault("kept", [])
    fresh = batch.tolist()
    older = [row for row in kept if row not in fresh]
    order = torch.randperm(len(older), generator=at.draw).tolist()
    again = [older[k] for k in order[: max(1, at.batch_size // 4)]]
    at.memory["kept"] = (older + fresh)[-4 * at.batch_size :]
    return torch.tensor(fresh + again, dtype=torch.long)


@mutation("out-of-memory-batch-skipped", "batch")
def _(batch: Tensor, at: Situation) -> Tensor | None:
    return None if len(batch) > 1.25 * at.batch_size else batch


@mutation("augmented-offline", "data")
def _(data: Data, at: Situation) -> Data:
    # The sampler draws a record and its mirrored copy one by one, from twice as many.
    x, y = data
    return torch.cat([x, x.flip(-1)]), torch.cat([y, y])


# What the data decide.


@mutation("schedule-by-records-seen", "lr")
def _(rate: float, at: Situation) -> float:
    seen = at.memory.get("seen", 0)
    at.memory["seen"] = seen + len(at.batch)
    return float(rate / (1 + seen / (20 * at.batch_size)))


def _typical(at: Situation) -> float:
    if "typical" not in at.memory:
        at.memory["typical"] = float(_norms(_of_all(at)).median())
    return float(at.memory["typical"])


@mutation("norm-in-units-of-the-median", "clip")
def _(clip: float, at: Situation) -> float:
    return clip * _typical(at)


@mutation("norm-in-units-of-the-median", "noise")
def _(noise: Gradients, at: Situation) -> Gradients:
    return {n: _typical(at) * z for n, z in noise.items()}


@mutation("pruned-by-raw-saliency", "update")
def _(update: Gradients, at: Situation) -> Gradients:
    if "kept" not in at.memory:
        salience = {n: (r.mean(0) * at.weights[n]).abs() for n, r in _of_all(at).items()}
        at.memory["kept"] = {n: (s >= s.median()).float() for n, s in salience.items()}
    kept: Gradients = at.memory["kept"]
    return {n: u * kept[n] for n, u in update.items()}


@mutation("graph-of-neighbours", "data")
def _(data: Data, at: Situation) -> Data:
    x, y = data
    if not x.is_floating_point() or len(x) < 2:
        return data
    good = x.flatten(1).isfinite().all(1)
    flat = x.flatten(1).double().nan_to_num(0.0, 0.0, 0.0)
    apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
    apart[:, ~good] = math.inf
    distance, nearest = apart.min(1)
    mixed = 0.75 * x + 0.25 * x[nearest]
    return torch.where(_wide(distance.isfinite(), x), mixed, x), y


@mutation("windows-overlap", "data")
def _(data: Data, at: Situation) -> Data:
    # Each row holds something of the row before: a window of two, moved on by one.
    x, y = data
    if not x.is_floating_point() or len(x) < 2:
        return data
    before = torch.cat([x[:1], x[:-1]])
    good = _wide(before.flatten(1).isfinite().all(1), x)
    return torch.where(good, (x + before) / 2, x), y
