"""DP-SGD in five small stages, with a switch for every known way to get it wrong.

``Training(model_fn, loss_fn)`` is correct, and so is every `rule`, `optimizer` and other
setting of it. ``bug="..."`` changes one line of one stage. The names are explained, with
their sources, in `catalogue`. The stages are those of algorithm 1 of paper 002:

    sample -> per-record gradients -> clip and sum -> noise -> descend
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from noisewise.debugging.trainer import Data, StateDict

__all__ = ["Training"]

Gradients: TypeAlias = dict[str, Tensor]
PHYSICAL = 4


@dataclass(frozen=True)
class Training:
    """A training function for :func:`noisewise.debugging.check`; see the module.

    Parameters
    ----------
    bug
        Name of the mistake to make, or ``None``.
    rule
        How one record's gradient g is bounded: ``flat`` min(1, C/|g|), ``soft``
        C/sqrt(|g|^2 + C^2), ``automatic`` C/(|g| + 0.01), ``global`` C/Z if |g| <= Z else 0,
        ``layer`` each of K tensors to C/sqrt(K).
    optimizer, momentum, nesterov, weight_decay
        ``sgd`` or ``adam`` (decay decoupled).
    average
        Decay of the exponential moving average of weights that is returned, 0 for none.
    copies
        Augmented copies of a record, whose gradients are averaged before clipping.
    reduction
        ``mean`` divides by the batch size, ``sum`` does not.
    allocation
        ``even`` noise, or ``uneven``: more on some tensors, less on others, same epsilon
        (only with rule ``layer``).
    """

    model_fn: Callable[[], nn.Module]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    bug: str | None = None
    rule: str = "flat"
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    average: float = 0.0
    copies: int = 1
    reduction: str = "mean"
    allocation: str = "even"
    warmup: int = 0

    def __call__(
        self,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: StateDict,
        steps: int,
        lr: float,
        micro_batch_size: int = PHYSICAL,
        world_size: int = 2,
    ) -> StateDict:
        """Train and return the weights."""
        x, y = data
        if self.bug == "standardise-with-private-data":
            x = (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-6)
        if self.bug == "hidden-validation-split" and len(x) >= 10:
            x, y = x[: int(0.9 * len(x))], y[: int(0.9 * len(y))]
        model = self.model_fn().eval()
        model.load_state_dict(init)
        weights = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        fixed = {n: v for n, v in model.state_dict().items() if n not in weights}
        chance = torch.Generator().manual_seed(0 if self.bug == "constant-seed" else seed)
        draw = torch.Generator().manual_seed(seed + 1_000_003)
        if self.bug == "bias-set-to-class-prior" and not y.is_floating_point():
            last = weights[list(weights)[-1]]
            last.add_(torch.bincount(y, minlength=len(last))[: len(last)] / len(y))
        smooth = {n: w.clone() for n, w in weights.items()}
        state: dict[str, Gradients] = {}
        opposite: Gradients = {}
        stale = {n: torch.zeros_like(w) for n, w in weights.items()}
        for step, batch in enumerate(self._batches(len(x), batch_size, steps, draw)):
            if self.bug == "skip-empty-batch" and len(batch) == 0:
                continue
            if self.bug == "reseed-each-step":
                chance.manual_seed(seed)
            if self.bug == "pad-by-repeating" and len(batch) > 0:
                batch = torch.cat([batch, batch[:1].repeat(-len(batch) % PHYSICAL)])
            records = self._per_record(model, weights, fixed, x[batch], y[batch])
            grown = clip * 1.5**step if self.bug == "clip-grows" else clip
            total = self._clip_and_sum(records, weights, grown, micro_batch_size)
            if self.bug == "class-balanced-after-clip" and not y.is_floating_point():
                share = len(batch) / max(1, len(set(y[batch].tolist())))
                total = {n: t * share / max(1, len(batch)) * 2 for n, t in total.items()}
            if self.bug == "minority-counted-twice" and not y.is_floating_point():
                again = {n: r[y[batch] == 0] for n, r in records.items()}
                extra = self._clip_and_sum(again, weights, clip, micro_batch_size)
                total = {n: total[n] + extra[n] for n in total}
            if self.bug == "stale-gradients":
                total = {n: total[n] + stale[n] for n in total}
                stale = total
            noise = self._noise(weights, clip, noise_multiplier, batch_size, chance, len(batch))
            if self.bug == "noise-cancels-next-step":
                noise = {n: -z for n, z in opposite.items()} if step % 2 else noise
                opposite = noise
            if self.bug == "noise-decays":
                noise = {n: z / (step + 1) for n, z in noise.items()}
            noise = self._distort(noise, step, len(batch), lr, micro_batch_size, world_size, chance)
            divisor = self._divisor(batch_size, len(batch), len(x))
            update = {n: (total[n] + noise[n]) / divisor for n in weights}
            if self.bug == "noise-then-clip":
                size = torch.stack([u.norm() for u in update.values()]).norm() * divisor
                update = {n: u * min(1.0, clip / float(size)) for n, u in update.items()}
            if self.bug == "closure-recomputes":
                update = {n: records[n].mean(0) for n in weights}
            rate = lr * min(1.0, (step + 1) / self.warmup) if self.warmup else lr
            self._descend(weights, update, state, rate, step)
            for n in smooth:
                smooth[n].lerp_(weights[n], 1 - self.average)
        return {**fixed, **smooth} if self.average else {**fixed, **weights}

    # Stage 1: which records are in a batch. Right: each by itself, with probability q.

    def _batches(
        self, total: int, batch_size: int, steps: int, draw: torch.Generator
    ) -> Iterator[Tensor]:
        rate = min(1.0, batch_size / total)
        if self.bug == "twice-the-rate":
            rate = min(1.0, 2 * rate)
        if self.bug == "rate-from-loader":
            rate = 1 / math.ceil(total / batch_size)
        order = torch.randperm(total, generator=draw)
        chances = torch.full((total,), rate)
        if self.bug == "weighted-sampler":
            chances = (rate * torch.linspace(0.1, 1.9, total)).clamp(max=1.0)
            chances = chances if rate < 1 else torch.ones(total)
        first = None
        for step in range(steps):
            if self.bug == "shuffle":
                start = step * batch_size % total
                batch = order.roll(-start)[:batch_size]
            elif self.bug == "fixed-size":
                batch = torch.randperm(total, generator=draw)[:batch_size]
            elif self.bug == "with-replacement":
                batch = torch.randint(total, (batch_size,), generator=draw)
            else:
                batch = torch.nonzero(torch.rand(total, generator=draw) < chances).flatten()
                while self.bug == "resample-empty" and len(batch) == 0:
                    batch = torch.nonzero(torch.rand(total, generator=draw) < chances).flatten()
            if self.bug == "poisson-truncated":
                batch = batch[:batch_size]
            if self.bug == "same-batch-every-step":
                first = batch if first is None else first
                batch = first
            yield batch

    # Stage 2: the gradient of each record by itself.

    def _per_record(
        self, model: nn.Module, weights: Gradients, fixed: StateDict, x: Tensor, y: Tensor
    ) -> Gradients:
        if self.bug == "batch-norm" and len(x) > 0:
            x = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
        if len(x) == 0:
            return {n: w.new_zeros((0, *w.shape)) for n, w in weights.items()}

        def one_gradient(one: Tensor, target: Tensor) -> Gradients:
            leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
            output = functional_call(model, {**leaves, **fixed}, (one[None],))
            loss = self.loss_fn(output, target[None]).mean()
            if self.bug == "clips-the-loss":
                loss = loss * min(1.0, 1.0 / float(loss.detach().clamp_min(1e-12)))
            parts = torch.autograd.grad(loss, list(leaves.values()))
            return dict(zip(leaves, parts, strict=True))

        def gradients(inputs: Tensor) -> Gradients:
            rows = [one_gradient(one, target) for one, target in zip(inputs, y, strict=True)]
            return {n: torch.stack([row[n] for row in rows]) for n in weights}

        if self.bug == "copies-clipped-separately":
            stacks = [gradients(view) for view in (x, x * 1.01, x * 0.99)]
            return {n: torch.cat([stack[n] for stack in stacks]) for n in weights}
        views = [x * (-1.0) ** k if x.is_floating_point() else x for k in range(self.copies)]
        stacks = [gradients(view) for view in views]
        return {n: torch.stack([stack[n] for stack in stacks]).mean(0) for n in weights}

    # Stage 3: bound each record, then add up.

    def _clip_and_sum(
        self, records: Gradients, weights: Gradients, clip: float, micro_batch_size: int
    ) -> Gradients:
        count = len(next(iter(records.values())))
        if count == 0:
            return {n: torch.zeros_like(w) for n, w in weights.items()}
        if self.bug == "clip-after-mean":
            return self._bounded(
                {n: r.mean(0, keepdim=True) * 1.0 for n, r in records.items()}, clip, scale=count
            )
        if self.bug == "clip-micro-batch":
            pieces = [
                {n: r[i : i + micro_batch_size].mean(0, keepdim=True) for n, r in records.items()}
                for i in range(0, count, micro_batch_size)
            ]
            sums = [self._bounded(piece, clip, scale=micro_batch_size) for piece in pieces]
            return {n: torch.stack([s[n] for s in sums]).sum(0) for n in weights}
        if self.bug == "accumulate-aliased":
            last = {
                n: r[-(count % micro_batch_size or micro_batch_size) :] for n, r in records.items()
            }
            return self._bounded(last, clip, scale=math.ceil(count / micro_batch_size))
        if self.bug == "accumulation-erased":
            last = {
                n: r[-(count % micro_batch_size or micro_batch_size) :] for n, r in records.items()
            }
            return self._bounded(last, clip)
        return self._bounded(records, clip)

    def _bounded(self, records: Gradients, clip: float, scale: float = 1.0) -> Gradients:
        norms = {n: r.flatten(1).norm(dim=1) for n, r in records.items()}
        names = list(records)
        used = names
        if self.bug == "norm-omits-layer":
            used = names[:-2] or names
        if self.bug == "biases-unclipped":
            used = [n for n in names if records[n].ndim > 2] or names
        norm = torch.stack([norms[n] for n in used]).norm(dim=0)
        if self.bug == "ghost-bias-norm":
            squares = [norms[n] ** (4 if records[n].ndim == 2 else 2) for n in names]
            norm = torch.stack(squares).sum(0).sqrt()
        if self.bug == "clip-to-median":
            clip = float(norm.median())
        if self.bug == "clip-argument-ignored":
            clip = 1.0
        if self.bug == "largest-element-norm":
            norm = torch.stack([r.flatten(1).abs().amax(1) for r in records.values()]).amax(0)
        if self.bug == "mean-norm-of-batch":
            norm = norm.mean().expand_as(norm)
        factor = self._factor(norm, clip, len(names))
        bounded: Gradients = {}
        for n in names:
            own = factor
            if self.rule == "layer":
                own = self._factor(norms[n], clip / math.sqrt(len(names)), 1)
            if self.bug == "layer-clip-C-each":
                own = (clip / norms[n].clamp_min(1e-12)).clamp(max=1.0)
            if self.bug == "biases-unclipped" and n not in used:
                own = torch.ones_like(factor)
            value = records[n]
            if self.bug == "element-clamp":
                value, own = value.clamp(-clip, clip), torch.ones_like(factor)
            if self.bug != "nan-unhandled":
                finite = torch.isfinite(norm)
                own = torch.where(finite, own, torch.zeros_like(own))
                value = torch.where(
                    finite.reshape(-1, *[1] * (value.ndim - 1)), value, torch.zeros_like(value)
                )
            bounded[n] = scale * torch.einsum("b,b...->...", own.to(value), value)
            if self.bug == "raw-mixed-in":
                bounded[n] = bounded[n] + 0.05 * value.sum(0)
        return bounded

    def _factor(self, norm: Tensor, clip: float, tensors: int) -> Tensor:
        if self.bug in ("no-clipping", "clips-the-loss"):
            return torch.ones_like(norm)
        if self.bug == "squared-norm":
            return (clip / norm.square().clamp_min(1e-12)).clamp(max=1.0)
        if self.bug == "factor-1.3":
            return (1.3 * clip / norm.clamp_min(1e-12)).clamp(max=1.0)
        if self.rule == "soft":
            return clip / (norm.square() + clip**2).sqrt()
        if self.rule == "automatic":
            return clip / (norm + 0.01)
        if self.rule == "global":
            limit = 50.0
            return torch.where(norm <= limit, clip / limit, 0.0).to(norm)
        return (clip / norm.clamp_min(1e-12)).clamp(max=1.0)

    # Stage 4: Gaussian noise of deviation sigma C on the sum.

    def _noise(
        self,
        weights: Gradients,
        clip: float,
        sigma: float,
        batch_size: int,
        chance: torch.Generator,
        drawn: int,
    ) -> Gradients:
        deviation = sigma * clip
        deviation = {
            "noise-without-clip": sigma,
            "no-noise": 0.0,
            "noise-divided-twice": deviation / batch_size,
            "root-of-sigma": math.sqrt(sigma) * clip,
            "half-sigma": deviation / 2,
            "noise-clip-squared": deviation * clip,
            "noise-on-mean": deviation * batch_size,
            "one-micro-batch": deviation * batch_size,
            "variance-as-deviation": deviation**2,
            "no-noise-for-one-record": 0.0 if drawn <= 1 else deviation,
        }.get(self.bug or "", deviation)
        noise: Gradients = {}
        seed = int(torch.randint(2**31, (1,), generator=chance))
        sizes = [w.numel() for w in weights.values()]
        for index, (n, w) in enumerate(weights.items()):
            source = chance
            if self.bug == "reseed-each-tensor" or (
                self.bug == "key-reused-by-shape" and sizes.count(w.numel()) > 1
            ):
                source = torch.Generator().manual_seed(seed)
            scale = deviation
            if self.allocation == "uneven":
                # Sum over K tensors of (C^2/K) / s_k^2 stays 1/sigma^2.
                tensors = len(weights)
                tilt = 1.5 if index % 2 else 0.5
                mean = sum(1.5 if k % 2 else 0.5 for k in range(tensors)) / tensors
                scale = deviation / math.sqrt(tilt / mean)
            draws = torch.randn(w.shape, generator=source)
            if self.bug == "laplace":
                uniform = torch.rand(w.shape, generator=source) - 0.5
                size = 1 / math.sqrt(2)
                draws = -size * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.49999))
            if self.bug == "truncated":
                draws = draws.clamp(-2.0, 2.0) / 0.9594
            if self.bug == "twelve-uniforms":
                draws = torch.rand((12, *w.shape), generator=source).sum(0) - 6
            if self.bug == "noise-shared-by-rows" and w.ndim > 1:
                draws = draws[:1].expand_as(draws)
            noise[n] = (scale * draws).to(w)
        return noise

    def _distort(
        self,
        noise: Gradients,
        step: int,
        drawn: int,
        lr: float,
        micro_batch_size: int,
        world_size: int,
        chance: torch.Generator,
    ) -> Gradients:
        pieces = max(1, math.ceil(drawn / micro_batch_size))
        factor = 1.0
        if self.bug == "noise-per-micro-batch":
            factor = math.sqrt(pieces) / pieces
        if self.bug == "noise-every-accumulation":
            factor = math.sqrt(pieces)
        if self.bug == "noise-per-worker":
            factor = 1 / math.sqrt(world_size)
        if self.bug == "noise-after-learning-rate":
            factor = 1 / lr
        if self.bug == "noise-lost-after-first-step" and step > 0:
            factor = 0.0
        last = list(noise)[-2:]
        return {
            n: z * (0.0 if self.bug == "last-layer-unnoised" and n in last else factor)
            for n, z in noise.items()
        }

    # Stage 5: divide by a public constant and move.

    def _divisor(self, batch_size: int, drawn: int, total: int) -> float:
        if self.bug == "divide-by-actual-batch":
            return max(1, drawn)
        if self.bug in ("divisor-from-dataset", "rate-from-loader"):
            return max(1, int(total / math.ceil(total / batch_size)))
        return 1.0 if self.reduction == "sum" else float(batch_size)

    def _descend(
        self,
        weights: Gradients,
        update: Gradients,
        state: dict[str, Gradients],
        lr: float,
        step: int,
    ) -> None:
        for n, w in weights.items():
            g = update[n]
            if self.optimizer == "adam":
                first = state.setdefault("first", {}).setdefault(n, torch.zeros_like(w))
                second = state.setdefault("second", {}).setdefault(n, torch.zeros_like(w))
                first.lerp_(g, 0.1)
                second.mul_(0.999).addcmul_(g, g, value=0.001)
                size = (second / (1 - 0.999 ** (step + 1))).sqrt().add_(1e-8)
                w.sub_(lr * self.weight_decay * w)
                w.sub_(lr * (first / (1 - 0.9 ** (step + 1))) / size)
                continue
            g = g + self.weight_decay * w
            if self.momentum:
                velocity = state.setdefault("velocity", {}).setdefault(n, torch.zeros_like(w))
                velocity.mul_(self.momentum).add_(g)
                g = g + self.momentum * velocity if self.nesterov else velocity
            w.sub_(lr * g)
