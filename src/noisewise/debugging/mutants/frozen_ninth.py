"""The ninth round: forty whole programs with a mistake, written with the tests frozen.

They were written from the first page about the bug finder and from issues of public libraries,
without looking at the tests, their code or any list of earlier bugs; so many of them are bugs
that earlier rounds have too. What was missed at the first run is told in the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional

from noisewise.debugging.mutants.programs import (
    Bag,
    Run,
    add_noise,
    clipped_sum,
    descend,
    factors,
    lengths,
    mlp,
    normed,
    per_record,
    program,
    twin,
    weighted_sum,
)
from noisewise.debugging.trainer import StateDict

__all__: list[str] = []


@program("norm-of-matrices-only")
def _clip_skips_biases(run: Run) -> StateDict:
    """Norm over matrices only (the group with weight decay); biases are scaled along."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        norm = lengths({k: g for k, g in grads.items() if w[k].dim() > 1})
        total = weighted_sum(grads, factors(norm, run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("tied-uses-side-by-side", "autoencoder")
def _tied_weights_two_norms(run: Run) -> StateDict:
    """A shared weight has two gradients; the norm is that of both side by side, not of their sum.

    After https://github.com/meta-pytorch/opacus/issues/413 (gradients of tied weights stacked).
    """
    torch.manual_seed(run.seed)
    x, y = run.data
    w = run.init["weight"].clone()

    def loss(encoder: Tensor, decoder: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.mse_loss(a @ encoder.T @ decoder, b)

    for _ in range(run.steps):
        rows = run.draw()
        total = torch.zeros_like(w)
        for i in rows.tolist():
            first, second = grad(loss, argnums=(0, 1))(w, w, x[i], y[i])
            norm = torch.sqrt(first.square().sum() + second.square().sum())
            if torch.isfinite(norm):
                total += (first + second) * min(1.0, run.clip / (norm.item() + 1e-12))
        total += run.sigma * run.clip * torch.randn_like(w)
        w = w - run.lr * total / run.batch_size
    return {"weight": w}


class _Engine:
    def __init__(self, noise_multiplier: float, max_grad_norm: float) -> None:
        self.clipper = _FastClipper()  # the bound given is never handed on
        self.std = noise_multiplier * max_grad_norm


@dataclass
class _FastClipper:
    max_grad_norm: float = 1.0


@program("engine-forgets-the-norm")
def _engine_forgets_the_norm(run: Run) -> StateDict:
    """Records are clipped to the default 1.0; the noise is scaled to the norm that was asked for.

    After https://github.com/meta-pytorch/opacus/pull/664 (fast clipping ignored max_grad_norm).
    """
    model, w = run.begin(mlp)
    x, y = run.data
    engine = _Engine(run.sigma, run.clip)
    for _ in range(run.steps):
        rows = run.draw()
        total = clipped_sum(model, w, x[rows], y[rows], engine.clipper.max_grad_norm)
        w = run.descend(w, add_noise(total, engine.std))
    return w


@program("batch-gradient-left-in-grad")
def _batch_gradient_left_in_grad(run: Run) -> StateDict:
    """The backward pass of the logged loss leaves its gradient where the clipped ones are added.

    After https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/7.
    """
    model, w = run.begin(mlp)
    x, y = run.data
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr)
    for _ in range(run.steps):
        rows = run.draw()
        optimizer.zero_grad()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = run.clipped_sum(model, w, rows)
        if len(rows):
            (  # type: ignore[no-untyped-call]
                functional.cross_entropy(model(x[rows]), y[rows], reduction="sum") / run.batch_size
            ).backward()
        for k, p in model.named_parameters():
            private = (total[k] + run.sigma * run.clip * torch.randn_like(p)) / run.batch_size
            p.grad = private if p.grad is None else p.grad + private
        optimizer.step()
    return model.state_dict()


@program("overflowing-norms-not-clipped")
def _overflowing_norms_are_not_clipped(run: Run) -> StateDict:
    """Norms in half precision; those that overflow are taken for nonsense and set to zero."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = {k: torch.nan_to_num(g) for k, g in per_record(model, w, x[rows], y[rows]).items()}
        squares = torch.stack([g.half().square().flatten(1).sum(1) for g in grads.values()]).sum(0)
        norm = torch.nan_to_num(squares.sqrt().float(), nan=0.0, posinf=0.0)
        f = (run.clip / (norm + 1e-6)).clamp_max(1.0)
        total = weighted_sum(grads, f)
        w = run.descend(w, run.noisy(total))
    return w


@program("ghost-norm-without-cross-terms", "tagger")
def _ghost_norm_without_cross_terms(run: Run) -> StateDict:
    """Norm of a layer used at every token as if the tokens' gradients were orthogonal."""
    torch.manual_seed(run.seed)
    x, y = run.data
    weight, bias = run.init["layer.weight"].clone(), run.init["layer.bias"].clone()
    tokens = x.shape[1]
    for _ in range(run.steps):
        rows = run.draw()
        a = x[rows]
        z = (a @ weight.T + bias).mean(1)
        delta = (z.softmax(1) - functional.one_hot(y[rows], 3)) / tokens  # the same for every token
        back = delta[:, None, :].expand(-1, tokens, -1)
        norm2 = (a.square().sum(2) * back.square().sum(2)).sum(1) + back.square().sum((1, 2))
        f = factors(norm2.sqrt(), run.clip)
        back = back * f[:, None, None]
        gw = torch.einsum("nto,nti->oi", back, a)
        gb = back.sum((0, 1))
        gw = gw + run.sigma * run.clip * torch.randn_like(gw)
        gb = gb + run.sigma * run.clip * torch.randn_like(gb)
        weight = weight - run.lr * gw / run.batch_size
        bias = bias - run.lr * gb / run.batch_size
    return {"layer.weight": weight, "layer.bias": bias}


@program("embedding-norm-forgets-repeats", "bag of words")
def _embedding_norm_forgets_repeats(run: Run) -> StateDict:
    """Norm of an embedding's gradient from the tokens' cotangents; a token seen twice adds up."""
    model, w = run.begin(Bag)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        tokens = x.shape[1]
        out = functional.embedding(x[rows], w["embedding.weight"]).mean(1) @ w["head.weight"].T
        delta = (out + w["head.bias"]).softmax(1) - functional.one_hot(y[rows], 3)
        cotangent = delta @ w["head.weight"] / tokens
        embedding2 = tokens * cotangent.square().sum(1)
        head2 = lengths({k: g for k, g in grads.items() if k.startswith("head")}).square()
        total = weighted_sum(grads, factors((embedding2 + head2).sqrt(), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("loss-scaler-skips-step")
def _loss_scaler_skips_the_step(run: Run) -> StateDict:
    """Dynamic loss scaling: an overflow in any record's half-precision gradient skips the step."""
    model, w = run.begin(mlp)
    x, y = run.data
    scale, good = 1024.0, 0
    for _ in range(run.steps):
        rows = run.draw()
        half = {k: (g * scale).half() for k, g in per_record(model, w, x[rows], y[rows]).items()}
        if not all(torch.isfinite(g).all() for g in half.values()):
            scale, good = scale / 2, 0
            continue
        good += 1
        grads = {k: g.float() / scale for k, g in half.items()}
        if good == 200:
            scale, good = scale * 2, 0
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("noise-pool-of-sixteen")
def _noise_pool_cycles(run: Run) -> StateDict:
    """Sixteen noise tensors are drawn before training and used in turn, to save time."""
    model, w = run.begin(mlp)
    pool = [{k: torch.randn_like(v) for k, v in w.items()} for _ in range(16)]
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        z = pool[step % len(pool)]
        total = {k: g + run.sigma * run.clip * z[k] for k, g in total.items()}
        w = run.descend(w, total)
    return w


@program("noise-negated-at-odd-steps")
def _antithetic_noise(run: Run) -> StateDict:
    """Every second step takes the negative of the last noise, to reduce the variance."""
    model, w = run.begin(mlp)
    z: StateDict = {}
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        if step % 2 == 0:
            z = {k: torch.randn_like(v) for k, v in w.items()}
        else:
            z = {k: -v for k, v in z.items()}
        total = {k: g + run.sigma * run.clip * z[k] for k, g in total.items()}
        w = run.descend(w, total)
    return w


@program("rand-like-of-same-variance")
def _uniform_noise(run: Run) -> StateDict:
    """``rand_like`` for ``randn_like``, with the right variance.

    After https://github.com/fedbiomed/fedbiomed/issues/1443 (``torch.rand_like`` as noise).
    """
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        std = run.sigma * run.clip
        total = {k: g + std * math.sqrt(12) * (torch.rand_like(g) - 0.5) for k, g in total.items()}
        w = run.descend(w, total)
    return w


@program("trunc-normal-default-bounds")
def _truncated_noise_with_default_bounds(run: Run) -> StateDict:
    """``trunc_normal_``, whose bounds are -2 and 2 whatever the deviation."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        if run.sigma > 0:
            for g in total.values():
                g += nn.init.trunc_normal_(torch.empty_like(g), std=run.sigma * run.clip)
        w = run.descend(w, total)
    return w


@program("noise-split-over-planned-micro-batches")
def _noise_split_over_planned_micro_batches(run: Run) -> StateDict:
    """Each micro-batch brings a share of the noise; a small batch has fewer of them."""
    model, w = run.begin(mlp)
    x, y = run.data
    physical = max(1, run.batch_size // 4)
    planned = math.ceil(run.batch_size / physical)
    for _ in range(run.steps):
        rows = run.draw()
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        for chunk in rows.split(physical) if len(rows) else []:  # type: ignore[no-untyped-call]
            part = clipped_sum(model, w, x[chunk], y[chunk], run.clip)
            part = add_noise(part, run.sigma * run.clip / math.sqrt(planned))
            total = {k: total[k] + part[k] for k in w}
        w = run.descend(w, total)
    return w


@program("noise-on-touched-rows-only", "bag of words")
def _noise_on_touched_rows_only(run: Run) -> StateDict:
    """Sparse embeddings: noise only on the rows whose tokens are in the batch."""
    model, w = run.begin(Bag)
    x, _ = run.data
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        noisy = run.noisy(total)
        touched = torch.zeros(12, 1)
        touched[x[rows].flatten().unique()] = 1.0  # type: ignore[no-untyped-call]
        noisy["embedding.weight"] = noisy["embedding.weight"] * touched
        w = run.descend(w, noisy)
    return w


@program("deviation-given-as-covariance")
def _deviation_given_as_covariance(run: Run) -> StateDict:
    """``multivariate_normal`` takes a covariance; it is given the deviation."""
    rng = np.random.default_rng(run.seed)
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        for k, g in total.items():
            d = g.numel()
            z = (
                rng.multivariate_normal(
                    np.zeros(d), run.sigma * run.clip * np.eye(d), method="cholesky"
                )
                if run.sigma > 0
                else np.zeros(d)
            )
            total[k] = g + torch.from_numpy(z).to(g).view_as(g)
        w = run.descend(w, total)
    return w


@program("head-faster-than-its-noise")
def _head_learns_faster_than_its_noise(run: Run) -> StateDict:
    """Noise is added to the weights at the base rate; the head's group has ten times that rate."""
    model, w = run.begin(mlp)
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters()},
        {"params": model[2].parameters(), "lr": 10 * run.lr},
    ]
    optimizer = torch.optim.SGD(groups, lr=run.lr)
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = run.clipped_sum(model, w, rows)
        for k, p in model.named_parameters():
            p.grad = total[k] / run.batch_size
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p += run.lr * run.sigma * run.clip / run.batch_size * torch.randn_like(p)  # type: ignore[misc]
    return model.state_dict()


@program("noise-scheduler-per-epoch")
def _noise_scheduler_per_epoch(run: Run) -> StateDict:
    """A noise scheduler multiplies sigma by 0.9 after each epoch; nobody tells the accountant."""
    model, w = run.begin(mlp)
    x, _ = run.data
    epoch = math.ceil(len(x) / run.batch_size)
    sigma = run.sigma
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, add_noise(total, sigma * run.clip))
        if (step + 1) % epoch == 0:
            sigma *= 0.9
    return w


@program("epoch-end-flushed-without-noise")
def _epoch_end_flushed_without_noise(run: Run) -> StateDict:
    """The last step of an epoch goes through a branch for leftovers, which adds no noise."""
    model, w = run.begin(mlp)
    x, _ = run.data
    epoch = math.ceil(len(x) / run.batch_size)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        if (step + 1) % epoch != 0:
            total = run.noisy(total)
        w = run.descend(w, total)
    return w


class _NoisyOptimizer:
    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.sigma = 0.0
        before = self.sigma  # one line too late
        yield
        self.sigma = before


@program("noise-not-switched-on-again")
def _noise_not_switched_on_again(run: Run) -> StateDict:
    """Every ten steps noise is switched off for another pass; the old value is kept too late.

    After https://github.com/tensorflow/privacy/issues/128 (noise set to 0 for some passes).
    """
    model, w = run.begin(mlp)
    optimizer = _NoisyOptimizer(run.sigma)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, add_noise(total, optimizer.sigma * run.clip))
        if (step + 1) % 10 == 0:
            with optimizer.silent():
                public = torch.randn(4, 8)
                clipped_sum(model, w, public, torch.zeros(4, dtype=torch.long), run.clip)
    return w


@program("one-key-for-all-tensors", "twin")
def _generator_seeded_by_shape(run: Run) -> StateDict:
    """One key per step and shape: tensors of the same shape receive the same noise.

    After https://github.com/jax-ml/jax/pull/3646 (key reused for every parameter).
    """
    model, w = run.begin(twin)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        for k, g in total.items():
            key = torch.Generator().manual_seed(1000003 * run.seed + step)
            total[k] = g + run.sigma * run.clip * torch.randn(g.shape, generator=key)
        w = run.descend(w, total)
    return w


@program("sampler-and-noise-share-a-seed")
def _sampler_and_noise_share_a_seed(run: Run) -> StateDict:
    """Two generators with one seed: who is sampled is written into the noise."""
    model, w = run.begin(mlp)
    x, y = run.data
    sampler = torch.Generator().manual_seed(run.seed)
    noise = torch.Generator().manual_seed(run.seed)
    for _ in range(run.steps):
        mask = torch.rand(len(x), generator=sampler) < run.batch_size / len(x)
        total = clipped_sum(model, w, x[mask], y[mask], run.clip)
        total = {
            k: g + run.sigma * run.clip * torch.randn(g.shape, generator=noise)
            for k, g in total.items()
        }
        w = run.descend(w, total)
    return w


@program("rate-from-floor-of-loader")
def _rate_from_the_floor_of_the_loader(run: Run) -> StateDict:
    """Rate 1 / len(loader), where the loader drops its last batch."""
    model, w = run.begin(mlp)
    x, _ = run.data
    loader_length = max(1, len(x) // run.batch_size)
    for _ in range(run.steps):
        rows = (torch.rand(len(x)) < 1 / loader_length).nonzero().flatten()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("class-balanced-sampling")
def _class_balanced_sampling(run: Run) -> StateDict:
    """Each class is expected equally often, so a record of a rare class is sampled more."""
    model, w = run.begin(mlp)
    x, y = run.data
    counts = torch.bincount(y, minlength=3).clamp_min(1)
    present = int((torch.bincount(y, minlength=3) > 0).sum())
    rate = (run.batch_size / (present * counts[y])).clamp_max(1.0)
    for _ in range(run.steps):
        rows = (torch.rand(len(x)) < rate).nonzero().flatten()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("mirrored-copies-clipped-each")
def _augmentations_clipped_each(run: Run) -> StateDict:
    """Each record enters with a mirrored copy; both are clipped, both are added."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        a = torch.cat([x[rows], x[rows].flip(1)])
        b = torch.cat([y[rows], y[rows]])
        total = clipped_sum(model, w, a, b, run.clip)
        w = run.descend(w, run.noisy(total))
    return w


@program("batch-kept-for-three-steps")
def _batch_kept_for_three_steps(run: Run) -> StateDict:
    """Local steps: a batch is drawn for three updates, each accounted as a batch of its own."""
    model, w = run.begin(mlp)
    rows = torch.empty(0, dtype=torch.long)
    for step in range(run.steps):
        if step % 3 == 0:
            rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("static-shape-cuts-batches")
def _truncates_to_a_static_shape(run: Run) -> StateDict:
    """A compiled step has room for a quarter more records than expected; the rest is cut off."""
    model, w = run.begin(mlp)
    room = run.batch_size + math.ceil(run.batch_size / 4)
    for _ in range(run.steps):
        rows = run.draw()[:room]
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("tail-padded-with-copies")
def _tail_padded_with_copies(run: Run) -> StateDict:
    """Batches are filled up to a multiple of four with records from their start.

    After https://github.com/google-deepmind/jax_privacy/pull/223 (skipped tail not zero-filled).
    """
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        if len(rows):
            rows = rows[torch.arange(4 * math.ceil(len(rows) / 4)) % len(rows)]
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("divided-by-batch-weights")
def _divides_by_the_batch_weights(run: Run) -> StateDict:
    """Weighted cross entropy: division by the class weights of those who were drawn."""
    model, w = run.begin(mlp)
    x, y = run.data
    weight = torch.tensor([1.0, 0.8, 0.6])
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        share = weight[y[rows]]
        total = weighted_sum(grads, share * factors(lengths(grads), run.clip))
        noisy = run.noisy(total)
        w = descend(w, noisy, run.lr / max(float(share.sum()), 1.0))
    return w


@program("divided-by-larger-of-two")
def _divides_by_the_larger_of_two(run: Run) -> StateDict:
    """Division by the expected batch size, or by the real one where that is larger."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        noisy = run.noisy(total)
        w = descend(w, noisy, run.lr / max(len(rows), run.batch_size))
    return w


@program("accumulator-is-the-gradient")
def _accumulator_is_the_gradient(run: Run) -> StateDict:
    """The running sum is the very tensor that each micro-batch overwrites.

    After https://github.com/meta-pytorch/opacus/pull/707 (``p.summed_grad += p.grad``).
    """
    model, w = run.begin(mlp)
    x, y = run.data
    grads = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        summed: StateDict | None = None
        for chunk in rows.split(max(1, run.batch_size // 2)):  # type: ignore[no-untyped-call]
            part = clipped_sum(model, w, x[chunk], y[chunk], run.clip)
            for k, g in grads.items():
                g.copy_(part[k])
            if summed is None:
                summed = dict(grads)
            else:
                for k in summed:
                    summed[k] += grads[k]
        total = {k: v.clone() for k, v in (summed or {}).items()}
        w = run.descend(w, run.noisy(total))
    return w


@program("momentum-of-clean-gradients", momentum=0.9)
def _momentum_of_clean_gradients(run: Run) -> StateDict:
    """Momentum gathers the clipped sums; fresh noise is added to what it gives out."""
    model, w = run.begin(mlp)
    velocity = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        velocity = {k: 0.9 * velocity[k] + total[k] for k in w}
        w = run.descend(w, add_noise(velocity, run.sigma * run.clip))
    return w


@program("adam-variance-from-clean-gradients", optimizer="adam")
def _adam_variance_from_clean_gradients(run: Run) -> StateDict:
    """Adam's second moment is that of the gradient before the noise, "which is less biased"."""
    model, w = run.begin(mlp)
    m = {k: torch.zeros_like(v) for k, v in w.items()}
    v2 = {k: torch.zeros_like(v) for k, v in w.items()}
    for step in range(1, run.steps + 1):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        noisy = run.noisy(total)
        for k in w:
            m[k] = 0.9 * m[k] + 0.1 * noisy[k] / run.batch_size
            v2[k] = 0.999 * v2[k] + 0.001 * (total[k] / run.batch_size).square()
            w[k] = w[k] - run.lr * (m[k] / (1 - 0.9**step)) / (
                (v2[k] / (1 - 0.999**step)).sqrt() + 1e-8
            )
    return w


@program("average-without-noise")
def _average_without_noise(run: Run) -> StateDict:
    """The averaged weights that are returned follow the clipped sums, not the noisy ones."""
    model, w = run.begin(mlp)
    shadow = {k: v.clone() for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        target = run.descend(w, total)
        w = run.descend(w, run.noisy(total))
        shadow = {k: 0.5 * shadow[k] + 0.5 * target[k] for k in w}
    return shadow


@program("trust-ratio-of-clean-gradients")
def _trust_ratio_of_clean_gradients(run: Run) -> StateDict:
    """Layer-wise rates (LARS): the ratio divides by the gradient before the noise."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        noisy = run.noisy(total)
        new = {}
        for k, v in w.items():
            clean = total[k].norm() / run.batch_size
            ratio = v.norm() / clean if clean > 0 and v.norm() > 0 else torch.tensor(1.0)
            new[k] = v - run.lr * ratio.clamp_max(10.0) * noisy[k] / run.batch_size
        w = new
    return w


@program("mixup-of-whole-batch")
def _mixup(run: Run) -> StateDict:
    """Each record is blended with another of the batch: it is in two of the clipped gradients."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        partner = rows[torch.randperm(len(rows))]
        share = float(np.random.default_rng(run.seed).beta(2.0, 2.0))
        classes = functional.one_hot(y, 3)
        soft = share * classes[rows] + (1 - share) * classes[partner]
        blend = share * x[rows] + (1 - share) * x[partner]
        total = clipped_sum(model, w, blend, soft.float(), run.clip)
        w = run.descend(w, run.noisy(total))
    return w


@program("bias-from-class-frequencies")
def _bias_from_class_frequencies(run: Run) -> StateDict:
    """The last bias starts at the log of the class frequencies of the private data."""
    model, w = run.begin(mlp)
    _, y = run.data
    counts = torch.bincount(y, minlength=3).float() + 1.0
    w["2.bias"] = w["2.bias"] + (counts / counts.sum()).log()
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("layer-norm-in-the-clear", "layer norm")
def _layer_norm_in_the_clear(run: Run) -> StateDict:
    """Scale and shift of LayerNorm are trained as ever: few numbers, "nothing to protect"."""
    model, w = run.begin(normed)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        private = {k: g for k, g in grads.items() if not k.startswith("1.")}
        total = weighted_sum(private, factors(lengths(private), run.clip))
        total = run.noisy(total)
        total |= {k: g.nan_to_num().sum(0) for k, g in grads.items() if k.startswith("1.")}
        w = run.descend(w, total)
    return w


@program("unfrozen-layer-not-private")
def _unfrozen_layer_is_not_private(run: Run) -> StateDict:
    """The first layer is unfrozen after eight steps; the private optimizer was made before.

    After https://github.com/meta-pytorch/opacus/pull/729 (unfreezing after make_private).
    """
    model, w = run.begin(mlp)
    x, y = run.data
    private_names = [k for k in w if k.startswith("2.")]
    for step in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        known = {k: grads[k] for k in private_names}
        total = weighted_sum(known, factors(lengths(known), run.clip))
        total = run.noisy(total)
        for k in w:
            if k not in total:
                late = grads[k].nan_to_num().sum(0)
                total[k] = late if step >= 8 else torch.zeros_like(late)
        w = run.descend(w, total)
    return w


@program("mean-undone-after-clipping")
def _mean_undone_after_clipping(run: Run) -> StateDict:
    """Gradients of a mean loss are clipped, then multiplied by the batch size that was drawn."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        size = max(len(rows), 1)
        grads = {k: g / size for k, g in per_record(model, w, x[rows], y[rows]).items()}
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        total = {k: g * size for k, g in total.items()}
        w = run.descend(w, run.noisy(total))
    return w


@program("converged-at-short-sum")
def _stops_at_small_gradients(run: Run) -> StateDict:
    """Training is taken for converged once the summed gradient is short."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        if torch.stack([g.norm() for g in total.values()]).norm() < 0.01 * run.clip:
            break
        w = run.descend(w, run.noisy(total))
    return w
