"""Ninth round: forty broken DP-SGD trainings and twenty unusual ones that are private.

Written from the page on debugging and from issues of public libraries alone, before any of it
was run. Each function has the documented signature of ``train``. The claim that each makes is
the documented one: every record is in a step's batch with probability batch_size / n, on its
own; it moves the sum by at most `clip`; Gaussian noise of deviation noise_multiplier * clip on
that sum; division by batch_size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812

Weights = dict[str, Tensor]

# --- models -----------------------------------------------------------------------------------


def linear() -> nn.Module:
    return nn.Linear(8, 3)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def twin() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


class Tied(nn.Module):
    """Autoencoder whose decoder is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T @ self.weight


class TokenTagger(nn.Module):
    """One linear layer applied to every token, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(-2)


class Bag(nn.Module):
    """Mean of embedded tokens, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(-2))


# --- pieces that are right ----------------------------------------------------------------------


def draw(n: int, batch_size: int) -> Tensor:
    return (torch.rand(n) < batch_size / n).nonzero().flatten()


def start(model: nn.Module, init: Weights) -> Weights:
    return {name: init[name].detach().clone() for name, _ in model.named_parameters()}


def per_record(
    model: nn.Module,
    w: Weights,
    x: Tensor,
    y: Tensor,
    loss: Callable[..., Tensor] = F.cross_entropy,
) -> Weights:
    """One gradient per record, along a first dimension of its own."""
    if len(x) == 0:
        return {k: v.new_zeros(0, *v.shape) for k, v in w.items()}

    def one(weights: Weights, a: Tensor, b: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (a[None],)), b[None])

    grads: Weights = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(w, x, y)
    return grads


def lengths(grads: Weights) -> Tensor:
    return torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)


def factors(norm: Tensor, clip: float) -> Tensor:
    f = (clip / norm.clamp_min(1e-12)).clamp_max(1.0)
    return torch.where(torch.isfinite(norm), f, torch.zeros_like(f))


def weighted_sum(grads: Weights, f: Tensor) -> Weights:
    out = {}
    for k, g in grads.items():
        g = torch.where(f.view(-1, *[1] * (g.dim() - 1)) > 0, g, torch.zeros_like(g))
        out[k] = torch.einsum("n,n...->...", f, g)
    return out


def clipped_sum(
    model: nn.Module,
    w: Weights,
    x: Tensor,
    y: Tensor,
    clip: float,
    loss: Callable[..., Tensor] = F.cross_entropy,
) -> Weights:
    grads = per_record(model, w, x, y, loss)
    return weighted_sum(grads, factors(lengths(grads), clip))


def add_noise(total: Weights, std: float) -> Weights:
    return {k: g + std * torch.randn_like(g) for k, g in total.items()}


def descend(w: Weights, total: Weights, rate: float) -> Weights:
    return {k: v - rate * total[k] for k, v in w.items()}


# --- forty that are broken ----------------------------------------------------------------------


def clip_skips_biases(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Norm over matrices only (the group with weight decay); biases are scaled along."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        norm = lengths({k: g for k, g in grads.items() if w[k].dim() > 1})
        total = weighted_sum(grads, factors(norm, clip))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def tied_weights_two_norms(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A shared weight has two gradients; the norm is that of both side by side, not of their sum.

    After https://github.com/meta-pytorch/opacus/issues/413 (gradients of tied weights stacked).
    """
    torch.manual_seed(seed)
    x, y = data
    w = init["weight"].clone()

    def loss(encoder, decoder, a, b):
        return F.mse_loss(a @ encoder.T @ decoder, b)

    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = torch.zeros_like(w)
        for i in rows.tolist():
            first, second = grad(loss, argnums=(0, 1))(w, w, x[i], y[i])
            norm = torch.sqrt(first.square().sum() + second.square().sum())
            if torch.isfinite(norm):
                total += (first + second) * min(1.0, clip / (norm.item() + 1e-12))
        total += noise_multiplier * clip * torch.randn_like(w)
        w = w - lr * total / batch_size
    return {"weight": w}


class _Engine:
    def __init__(self, noise_multiplier: float, max_grad_norm: float) -> None:
        self.clipper = _FastClipper()  # the bound given is never handed on
        self.std = noise_multiplier * max_grad_norm


@dataclass
class _FastClipper:
    max_grad_norm: float = 1.0


def engine_forgets_the_norm(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Records are clipped to the default 1.0; the noise is scaled to the norm that was asked for.

    After https://github.com/meta-pytorch/opacus/pull/664 (fast clipping ignored max_grad_norm).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    engine = _Engine(noise_multiplier, clip)
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], engine.clipper.max_grad_norm)
        w = descend(w, add_noise(total, engine.std), lr / batch_size)
    return w


def batch_gradient_left_in_grad(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The backward pass of the logged loss leaves its gradient where the clipped ones are added.

    After https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/7.
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        optimizer.zero_grad()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        if len(rows):
            (F.cross_entropy(model(x[rows]), y[rows], reduction="sum") / batch_size).backward()
        for k, p in model.named_parameters():
            private = (total[k] + noise_multiplier * clip * torch.randn_like(p)) / batch_size
            p.grad = private if p.grad is None else p.grad + private
        optimizer.step()
    return model.state_dict()


def overflowing_norms_are_not_clipped(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Norms in half precision; those that overflow are taken for nonsense and set to zero."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = {k: torch.nan_to_num(g) for k, g in per_record(model, w, x[rows], y[rows]).items()}
        squares = sum(g.half().square().flatten(1).sum(1) for g in grads.values())
        norm = torch.nan_to_num(squares.sqrt().float(), nan=0.0, posinf=0.0)
        f = (clip / (norm + 1e-6)).clamp_max(1.0)
        total = weighted_sum(grads, f)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def ghost_norm_without_cross_terms(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Norm of a layer used at every token as if the tokens' gradients were orthogonal."""
    torch.manual_seed(seed)
    x, y = data
    weight, bias = init["layer.weight"].clone(), init["layer.bias"].clone()
    tokens = x.shape[1]
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        a = x[rows]
        z = (a @ weight.T + bias).mean(1)
        delta = (z.softmax(1) - F.one_hot(y[rows], 3)) / tokens  # the same for every token
        back = delta[:, None, :].expand(-1, tokens, -1)
        norm2 = (a.square().sum(2) * back.square().sum(2)).sum(1) + back.square().sum((1, 2))
        f = factors(norm2.sqrt(), clip)
        back = back * f[:, None, None]
        gw = torch.einsum("nto,nti->oi", back, a)
        gb = back.sum((0, 1))
        gw = gw + noise_multiplier * clip * torch.randn_like(gw)
        gb = gb + noise_multiplier * clip * torch.randn_like(gb)
        weight = weight - lr * gw / batch_size
        bias = bias - lr * gb / batch_size
    return {"layer.weight": weight, "layer.bias": bias}


def embedding_norm_forgets_repeats(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Norm of an embedding's gradient from the tokens' cotangents; a token seen twice adds up."""
    torch.manual_seed(seed)
    model, (x, y) = Bag(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        tokens = x.shape[1]
        out = F.embedding(x[rows], w["embedding.weight"]).mean(1) @ w["head.weight"].T
        delta = (out + w["head.bias"]).softmax(1) - F.one_hot(y[rows], 3)
        cotangent = delta @ w["head.weight"] / tokens
        embedding2 = tokens * cotangent.square().sum(1)
        head2 = lengths({k: g for k, g in grads.items() if k.startswith("head")}).square()
        total = weighted_sum(grads, factors((embedding2 + head2).sqrt(), clip))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def loss_scaler_skips_the_step(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Dynamic loss scaling: an overflow in any record's half-precision gradient skips the step."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    scale, good = 1024.0, 0
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        half = {k: (g * scale).half() for k, g in per_record(model, w, x[rows], y[rows]).items()}
        if not all(torch.isfinite(g).all() for g in half.values()):
            scale, good = scale / 2, 0
            continue
        good += 1
        grads = {k: g.float() / scale for k, g in half.items()}
        if good == 200:
            scale, good = scale * 2, 0
        total = weighted_sum(grads, factors(lengths(grads), clip))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def noise_pool_cycles(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Sixteen noise tensors are drawn before training and used in turn, to save time."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    pool = [{k: torch.randn_like(v) for k, v in w.items()} for _ in range(16)]
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        z = pool[step % len(pool)]
        total = {k: g + noise_multiplier * clip * z[k] for k, g in total.items()}
        w = descend(w, total, lr / batch_size)
    return w


def antithetic_noise(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Every second step takes the negative of the last noise, to reduce the variance."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    z: Weights = {}
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        if step % 2 == 0:
            z = {k: torch.randn_like(v) for k, v in w.items()}
        else:
            z = {k: -v for k, v in z.items()}
        total = {k: g + noise_multiplier * clip * z[k] for k, g in total.items()}
        w = descend(w, total, lr / batch_size)
    return w


def uniform_noise(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """``rand_like`` for ``randn_like``, with the right variance.

    After https://github.com/fedbiomed/fedbiomed/issues/1443 (``torch.rand_like`` as noise).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        std = noise_multiplier * clip
        total = {
            k: g + std * math.sqrt(12) * (torch.rand_like(g) - 0.5) for k, g in total.items()
        }
        w = descend(w, total, lr / batch_size)
    return w


def truncated_noise_with_default_bounds(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """``trunc_normal_``, whose bounds are -2 and 2 whatever the deviation."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        if noise_multiplier > 0:
            for g in total.values():
                g += nn.init.trunc_normal_(torch.empty_like(g), std=noise_multiplier * clip)
        w = descend(w, total, lr / batch_size)
    return w


def noise_split_over_planned_micro_batches(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Each micro-batch brings a share of the noise; a small batch has fewer of them."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    physical = max(1, batch_size // 4)
    planned = math.ceil(batch_size / physical)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        for chunk in rows.split(physical) if len(rows) else []:
            part = clipped_sum(model, w, x[chunk], y[chunk], clip)
            part = add_noise(part, noise_multiplier * clip / math.sqrt(planned))
            total = {k: total[k] + part[k] for k in w}
        w = descend(w, total, lr / batch_size)
    return w


def noise_on_touched_rows_only(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Sparse embeddings: noise only on the rows whose tokens are in the batch."""
    torch.manual_seed(seed)
    model, (x, y) = Bag(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        noisy = add_noise(total, noise_multiplier * clip)
        touched = torch.zeros(12, 1)
        touched[x[rows].flatten().unique()] = 1.0
        noisy["embedding.weight"] = noisy["embedding.weight"] * touched
        w = descend(w, noisy, lr / batch_size)
    return w


def deviation_given_as_covariance(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """``multivariate_normal`` takes a covariance; it is given the deviation."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        for k, g in total.items():
            d = g.numel()
            z = rng.multivariate_normal(
                np.zeros(d), noise_multiplier * clip * np.eye(d), method="cholesky"
            ) if noise_multiplier > 0 else np.zeros(d)
            total[k] = g + torch.from_numpy(z).to(g).view_as(g)
        w = descend(w, total, lr / batch_size)
    return w


def head_learns_faster_than_its_noise(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Noise is added to the weights at the base rate; the head's group has ten times that rate."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters()},
            {"params": model[2].parameters(), "lr": 10 * lr},
        ],
        lr=lr,
    )
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / batch_size
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p += lr * noise_multiplier * clip / batch_size * torch.randn_like(p)
    return model.state_dict()


def noise_scheduler_per_epoch(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A noise scheduler multiplies sigma by 0.9 after each epoch; nobody tells the accountant."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    epoch = math.ceil(len(x) / batch_size)
    sigma = noise_multiplier
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, sigma * clip), lr / batch_size)
        if (step + 1) % epoch == 0:
            sigma *= 0.9
    return w


def epoch_end_flushed_without_noise(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The last step of an epoch goes through a branch for leftovers, which adds no noise."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    epoch = math.ceil(len(x) / batch_size)
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        if (step + 1) % epoch != 0:
            total = add_noise(total, noise_multiplier * clip)
        w = descend(w, total, lr / batch_size)
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


def noise_not_switched_on_again(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Every ten steps noise is switched off for another pass; the old value is kept too late.

    After https://github.com/tensorflow/privacy/issues/128 (noise set to 0 for some passes).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    optimizer = _NoisyOptimizer(noise_multiplier)
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, optimizer.sigma * clip), lr / batch_size)
        if (step + 1) % 10 == 0:
            with optimizer.silent():
                public = torch.randn(4, 8)
                clipped_sum(model, w, public, torch.zeros(4, dtype=torch.long), clip)
    return w


def generator_seeded_by_shape(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """One key per step and shape: tensors of the same shape receive the same noise.

    After https://github.com/jax-ml/jax/pull/3646 (key reused for every parameter).
    """
    torch.manual_seed(seed)
    model, (x, y) = twin(), data
    w = start(model, init)
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        for k, g in total.items():
            key = torch.Generator().manual_seed(1000003 * seed + step)
            total[k] = g + noise_multiplier * clip * torch.randn(g.shape, generator=key)
        w = descend(w, total, lr / batch_size)
    return w


def sampler_and_noise_share_a_seed(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Two generators with one seed: who is sampled is written into the noise."""
    model, (x, y) = mlp(), data
    sampler = torch.Generator().manual_seed(seed)
    noise = torch.Generator().manual_seed(seed)
    w = start(model, init)
    for _ in range(steps):
        mask = torch.rand(len(x), generator=sampler) < batch_size / len(x)
        total = clipped_sum(model, w, x[mask], y[mask], clip)
        total = {
            k: g + noise_multiplier * clip * torch.randn(g.shape, generator=noise)
            for k, g in total.items()
        }
        w = descend(w, total, lr / batch_size)
    return w


def rate_from_the_floor_of_the_loader(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Rate 1 / len(loader), where the loader drops its last batch."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    loader_length = max(1, len(x) // batch_size)
    for _ in range(steps):
        rows = (torch.rand(len(x)) < 1 / loader_length).nonzero().flatten()
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def class_balanced_sampling(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Each class is expected equally often, so a record of a rare class is sampled more."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    counts = torch.bincount(y, minlength=3).clamp_min(1)
    present = int((torch.bincount(y, minlength=3) > 0).sum())
    rate = (batch_size / (present * counts[y])).clamp_max(1.0)
    for _ in range(steps):
        rows = (torch.rand(len(x)) < rate).nonzero().flatten()
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def augmentations_clipped_each(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Each record enters with a mirrored copy; both are clipped, both are added."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        a = torch.cat([x[rows], x[rows].flip(1)])
        b = torch.cat([y[rows], y[rows]])
        total = clipped_sum(model, w, a, b, clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def batch_kept_for_three_steps(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Local steps: a batch is drawn for three updates, each accounted as a batch of its own."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    rows = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if step % 3 == 0:
            rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def truncates_to_a_static_shape(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A compiled step has room for a quarter more records than expected; the rest is cut off."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    room = batch_size + math.ceil(batch_size / 4)
    for _ in range(steps):
        rows = draw(len(x), batch_size)[:room]
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def tail_padded_with_copies(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Batches are filled up to a multiple of four with records from their start.

    After https://github.com/google-deepmind/jax_privacy/pull/223 (skipped tail not zero-filled).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        if len(rows):
            rows = rows[torch.arange(4 * math.ceil(len(rows) / 4)) % len(rows)]
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def divides_by_the_batch_weights(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Weighted cross entropy: division by the class weights of those who were drawn."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    weight = torch.tensor([1.0, 0.8, 0.6])
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        share = weight[y[rows]]
        total = weighted_sum(grads, share * factors(lengths(grads), clip))
        noisy = add_noise(total, noise_multiplier * clip)
        w = descend(w, noisy, lr / max(float(share.sum()), 1.0))
    return w


def divides_by_the_larger_of_two(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Division by the expected batch size, or by the real one where that is larger."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        noisy = add_noise(total, noise_multiplier * clip)
        w = descend(w, noisy, lr / max(len(rows), batch_size))
    return w


def accumulator_is_the_gradient(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The running sum is the very tensor that each micro-batch overwrites.

    After https://github.com/meta-pytorch/opacus/pull/707 (``p.summed_grad += p.grad``).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    grads = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        summed: Weights | None = None
        for chunk in rows.split(max(1, batch_size // 2)):
            part = clipped_sum(model, w, x[chunk], y[chunk], clip)
            for k, g in grads.items():
                g.copy_(part[k])
            if summed is None:
                summed = dict(grads)
            else:
                for k in summed:
                    summed[k] += grads[k]
        total = {k: v.clone() for k, v in (summed or {}).items()}
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def momentum_of_clean_gradients(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Momentum gathers the clipped sums; fresh noise is added to what it gives out."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    velocity = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        velocity = {k: 0.9 * velocity[k] + total[k] for k in w}
        w = descend(w, add_noise(velocity, noise_multiplier * clip), lr / batch_size)
    return w


def adam_variance_from_clean_gradients(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Adam's second moment is that of the gradient before the noise, "which is less biased"."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    m = {k: torch.zeros_like(v) for k, v in w.items()}
    v2 = {k: torch.zeros_like(v) for k, v in w.items()}
    for step in range(1, steps + 1):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        noisy = add_noise(total, noise_multiplier * clip)
        for k in w:
            m[k] = 0.9 * m[k] + 0.1 * noisy[k] / batch_size
            v2[k] = 0.999 * v2[k] + 0.001 * (total[k] / batch_size).square()
            w[k] = w[k] - lr * (m[k] / (1 - 0.9**step)) / (
                (v2[k] / (1 - 0.999**step)).sqrt() + 1e-8
            )
    return w


def average_without_noise(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The averaged weights that are returned follow the clipped sums, not the noisy ones."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    shadow = {k: v.clone() for k, v in w.items()}
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        target = descend(w, total, lr / batch_size)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
        shadow = {k: 0.5 * shadow[k] + 0.5 * target[k] for k in w}
    return shadow


def trust_ratio_of_clean_gradients(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Layer-wise rates (LARS): the ratio divides by the gradient before the noise."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        noisy = add_noise(total, noise_multiplier * clip)
        new = {}
        for k, v in w.items():
            clean = total[k].norm() / batch_size
            ratio = v.norm() / clean if clean > 0 and v.norm() > 0 else torch.tensor(1.0)
            new[k] = v - lr * ratio.clamp_max(10.0) * noisy[k] / batch_size
        w = new
    return w


def mixup(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Each record is blended with another of the batch: it is in two of the clipped gradients."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        partner = rows[torch.randperm(len(rows))]
        share = float(np.random.default_rng(seed).beta(2.0, 2.0))
        soft = share * F.one_hot(y[rows], 3) + (1 - share) * F.one_hot(y[partner], 3)
        blend = share * x[rows] + (1 - share) * x[partner]
        total = clipped_sum(model, w, blend, soft.float(), clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def bias_from_class_frequencies(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The last bias starts at the log of the class frequencies of the private data."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    counts = torch.bincount(y, minlength=3).float() + 1.0
    w["2.bias"] = w["2.bias"] + (counts / counts.sum()).log()
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def layer_norm_in_the_clear(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Scale and shift of LayerNorm are trained as ever: few numbers, "nothing to protect"."""
    torch.manual_seed(seed)
    model, (x, y) = normed(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        private = {k: g for k, g in grads.items() if not k.startswith("1.")}
        total = weighted_sum(private, factors(lengths(private), clip))
        total = add_noise(total, noise_multiplier * clip)
        total |= {k: g.nan_to_num().sum(0) for k, g in grads.items() if k.startswith("1.")}
        w = descend(w, total, lr / batch_size)
    return w


def unfrozen_layer_is_not_private(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The first layer is unfrozen after eight steps; the private optimizer was made before.

    After https://github.com/meta-pytorch/opacus/pull/729 (unfreezing after make_private).
    """
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    private_names = [k for k in w if k.startswith("2.")]
    for step in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        known = {k: grads[k] for k in private_names}
        total = weighted_sum(known, factors(lengths(known), clip))
        total = add_noise(total, noise_multiplier * clip)
        for k in w:
            if k not in total:
                late = grads[k].nan_to_num().sum(0)
                total[k] = late if step >= 8 else torch.zeros_like(late)
        w = descend(w, total, lr / batch_size)
    return w


def mean_undone_after_clipping(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Gradients of a mean loss are clipped, then multiplied by the batch size that was drawn."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        size = max(len(rows), 1)
        grads = {k: g / size for k, g in per_record(model, w, x[rows], y[rows]).items()}
        total = weighted_sum(grads, factors(lengths(grads), clip))
        total = {k: g * size for k, g in total.items()}
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def stops_at_small_gradients(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Training is taken for converged once the summed gradient is short."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        if torch.stack([g.norm() for g in total.values()]).norm() < 0.01 * clip:
            break
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


# --- twenty that are private -------------------------------------------------------------------


def noise_on_the_weights(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A clean step, then noise of deviation lr * sigma * C / B on the weights: the same sum."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = descend(w, clipped_sum(model, w, x[rows], y[rows], clip), lr / batch_size)
        w = add_noise(w, lr * noise_multiplier * clip / batch_size)
    return w


def layers_share_the_bound(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Each of four tensors is clipped to C / 2, so that together they are at most C long."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        total: Weights = {}
        for k, g in grads.items():
            total |= weighted_sum({k: g}, factors(lengths({k: g}), clip / math.sqrt(len(w))))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def normalised_gradients(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """C g / (|g| + r): no threshold, and never longer than C (Yang et al., 2022)."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows])
        norm = lengths(grads)
        f = torch.where(torch.isfinite(norm), clip / (norm + 0.01), torch.zeros_like(norm))
        total = weighted_sum(grads, f)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def augmentations_averaged(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Gradients of a record and its mirrored copy are averaged, then clipped (De et al., 2022)."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        one = per_record(model, w, x[rows], y[rows])
        two = per_record(model, w, x[rows].flip(1), y[rows])
        grads = {k: (one[k] + two[k]) / 2 for k in w}
        total = weighted_sum(grads, factors(lengths(grads), clip))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def by_hand_in_numpy(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Softmax regression by hand, with numpy's generator and split keys."""
    x, y = data[0].double().numpy(), data[1].numpy()
    weight, bias = init["weight"].double().numpy(), init["bias"].double().numpy()
    sample_key, noise_key = np.random.SeedSequence(seed).spawn(2)
    sampler, noise = np.random.default_rng(sample_key), np.random.default_rng(noise_key)
    for _ in range(steps):
        mask = sampler.random(len(x)) < batch_size / len(x)
        with np.errstate(all="ignore"):
            z = x[mask] @ weight.T + bias
            z = np.exp(z - z.max(1, keepdims=True))
            delta = z / z.sum(1, keepdims=True) - np.eye(3)[y[mask]]
            norm = np.sqrt((delta**2).sum(1) * ((x[mask] ** 2).sum(1) + 1))
            good = np.isfinite(norm)
        f = np.minimum(1.0, clip / np.maximum(norm[good], 1e-12))[:, None]
        gw = (f * delta[good]).T @ x[mask][good]
        gb = (f * delta[good]).sum(0)
        std = noise_multiplier * clip
        weight = weight - lr * (gw + noise.normal(0, 1, gw.shape) * std) / batch_size
        bias = bias - lr * (gb + noise.normal(0, 1, gb.shape) * std) / batch_size
    return {"weight": torch.tensor(weight).float(), "bias": torch.tensor(bias).float()}


def two_passes(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Norms first, then one backward pass of the reweighted loss (ghost clipping)."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = {k: p.detach() for k, p in model.named_parameters()}
        norm = lengths(per_record(model, w, x[rows], y[rows]))
        f = factors(norm, clip)
        model.zero_grad()
        if (f > 0).any():
            keep = f > 0
            losses = F.cross_entropy(model(x[rows][keep]), y[rows][keep], reduction="none")
            (losses * f[keep]).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad
                p -= lr * (g + noise_multiplier * clip * torch.randn_like(p)) / batch_size
    return model.state_dict()


def micro_batches_padded_with_nothing(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Fixed micro-batches of four; the padding has weight zero; noise once a step."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        length = 4 * math.ceil(len(rows) / 4)
        real = torch.arange(length) < len(rows)
        padded = torch.cat([rows, rows.new_zeros(length - len(rows))])
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        for i in range(0, length, 4):
            part = padded[i : i + 4]
            grads = per_record(model, w, x[part], y[part])
            f = factors(lengths(grads), clip) * real[i : i + 4]
            more = weighted_sum(grads, f)
            total = {k: total[k] + more[k] for k in w}
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def geometric_gaps(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Poisson sampling by the gaps between those who are drawn."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 77])
    model, (x, y) = mlp(), data
    w = start(model, init)
    rate = min(1.0, batch_size / len(x))
    for _ in range(steps):
        chosen, i = [], int(rng.geometric(rate)) - 1
        while i < len(x):
            chosen.append(i)
            i += int(rng.geometric(rate))
        rows = torch.tensor(chosen, dtype=torch.long)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def heavy_ball(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Momentum of the noisy gradients."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(clipped_sum(model, w, x[rows], y[rows], clip), noise_multiplier * clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / batch_size
        optimizer.step()
    return model.state_dict()


def adam_with_decay(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """AdamW on the noisy gradients."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(clipped_sum(model, w, x[rows], y[rows], clip), noise_multiplier * clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / batch_size
        optimizer.step()
    return model.state_dict()


def batches_of_fixed_size(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A fresh subset of batch_size records at each step, and an accountant who knows."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for _ in range(steps):
        rows = torch.randperm(len(x))[:batch_size]
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def declared_noise_schedule(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Sigma falls by a percent a step, as the accountant is told."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        std = noise_multiplier * 0.99**step * clip
        w = descend(w, add_noise(total, std), lr / batch_size)
    return w


def public_clip_schedule(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The norm falls by half a percent a step, and the noise with it: sigma is what it was."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for step in range(steps):
        bound = clip * 0.995**step
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], bound)
        w = descend(w, add_noise(total, noise_multiplier * bound), lr / batch_size)
    return w


def head_learns_faster(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Two groups of rates; the noise is in the gradient, so it is scaled along."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters()},
            {"params": model[2].parameters(), "lr": 10 * lr},
        ],
        lr=lr,
    )
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(clipped_sum(model, w, x[rows], y[rows], clip), noise_multiplier * clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / batch_size
        optimizer.step()
    return model.state_dict()


def moving_average_returned(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A moving average of the private weights is returned: post-processing."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    average = {k: v.clone() for k, v in w.items()}
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
        average = {k: 0.8 * average[k] + 0.2 * w[k] for k in w}
    return average


def lookahead(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Every fifth step the weights go back half the way: post-processing (Zhang et al., 2019)."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    slow = {k: v.clone() for k, v in w.items()}
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
        if (step + 1) % 5 == 0:
            slow = {k: (slow[k] + w[k]) / 2 for k in w}
            w = {k: v.clone() for k, v in slow.items()}
    return w


def warm_up_and_cosine(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A public schedule of the rate, planned for 200 steps whatever `steps` is."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)
    for step in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        warm = min(1.0, (step + 1) / 5)
        rate = lr * warm * (0.05 + 0.95 * (1 + math.cos(math.pi * min(step, 200) / 200)) / 2)
        w = descend(w, add_noise(total, noise_multiplier * clip), rate / batch_size)
    return w


def tied_weights_one_norm(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """A shared weight whose gradients are added up before they are measured."""
    torch.manual_seed(seed)
    model, (x, y) = Tied(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip, F.mse_loss)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def dropout_per_record(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """Dropout, with a mask of its own for every record and step."""
    torch.manual_seed(seed)
    model, (x, y) = dropping().train(), data
    w = start(model, init)
    for _ in range(steps):
        rows = draw(len(x), batch_size)
        total = clipped_sum(model, w, x[rows], y[rows], clip)
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


def constant_loss_scale(
    *, clip, noise_multiplier, batch_size, seed, data, init, steps, lr
):
    """The loss is scaled by 1024 and the gradients are scaled back before they are clipped."""
    torch.manual_seed(seed)
    model, (x, y) = mlp(), data
    w = start(model, init)

    def scaled(out, target):
        return 1024 * F.cross_entropy(out, target)

    for _ in range(steps):
        rows = draw(len(x), batch_size)
        grads = per_record(model, w, x[rows], y[rows], scaled)
        grads = {k: g / 1024 for k, g in grads.items()}
        total = weighted_sum(grads, factors(lengths(grads), clip))
        w = descend(w, add_noise(total, noise_multiplier * clip), lr / batch_size)
    return w


# --- what is checked, and with which arguments ------------------------------------------------


@dataclass(frozen=True)
class Case:
    train: Callable[..., Any]
    model: Callable[[], nn.Module] = mlp
    task: str = "classes"
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def example(self) -> tuple[Tensor, Tensor]:
        if self.task == "vectors":
            return torch.zeros(2, 8), torch.zeros(2, 8)
        if self.task == "sequences":
            return torch.zeros(2, 5, 6), torch.tensor([0, 2])
        if self.task == "tokens":
            return torch.tensor([[0, 1, 2, 3], [11, 5, 5, 2]]), torch.tensor([0, 2])
        return torch.zeros(2, 8), torch.tensor([0, 2])

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return F.mse_loss if self.task == "vectors" else F.cross_entropy


BROKEN = [
    Case(clip_skips_biases),
    Case(tied_weights_two_norms, Tied, "vectors"),
    Case(engine_forgets_the_norm),
    Case(batch_gradient_left_in_grad),
    Case(overflowing_norms_are_not_clipped),
    Case(ghost_norm_without_cross_terms, TokenTagger, "sequences"),
    Case(embedding_norm_forgets_repeats, Bag, "tokens"),
    Case(loss_scaler_skips_the_step),
    Case(noise_pool_cycles),
    Case(antithetic_noise),
    Case(uniform_noise),
    Case(truncated_noise_with_default_bounds),
    Case(noise_split_over_planned_micro_batches),
    Case(noise_on_touched_rows_only, Bag, "tokens"),
    Case(deviation_given_as_covariance),
    Case(head_learns_faster_than_its_noise),
    Case(noise_scheduler_per_epoch),
    Case(epoch_end_flushed_without_noise),
    Case(noise_not_switched_on_again),
    Case(generator_seeded_by_shape, twin),
    Case(sampler_and_noise_share_a_seed),
    Case(rate_from_the_floor_of_the_loader),
    Case(class_balanced_sampling),
    Case(augmentations_clipped_each),
    Case(batch_kept_for_three_steps),
    Case(truncates_to_a_static_shape),
    Case(tail_padded_with_copies),
    Case(divides_by_the_batch_weights),
    Case(divides_by_the_larger_of_two),
    Case(accumulator_is_the_gradient),
    Case(momentum_of_clean_gradients, arguments={"momentum": 0.9}),
    Case(adam_variance_from_clean_gradients, arguments={"optimizer": "adam"}),
    Case(average_without_noise),
    Case(trust_ratio_of_clean_gradients),
    Case(mixup),
    Case(bias_from_class_frequencies),
    Case(layer_norm_in_the_clear, normed),
    Case(unfrozen_layer_is_not_private),
    Case(mean_undone_after_clipping),
    Case(stops_at_small_gradients),
]

PRIVATE = [
    Case(noise_on_the_weights),
    Case(layers_share_the_bound),
    Case(normalised_gradients),
    Case(augmentations_averaged),
    Case(by_hand_in_numpy, linear),
    Case(two_passes),
    Case(micro_batches_padded_with_nothing),
    Case(geometric_gaps),
    Case(heavy_ball, arguments={"momentum": 0.9}),
    Case(adam_with_decay, arguments={"optimizer": "adam", "weight_decay": 0.01}),
    Case(batches_of_fixed_size, arguments={"sampling": "fixed"}),
    Case(declared_noise_schedule, arguments={"noise_schedule": lambda step: 0.99**step}),
    Case(public_clip_schedule),
    Case(head_learns_faster),
    Case(moving_average_returned),
    Case(lookahead),
    Case(warm_up_and_cosine),
    Case(tied_weights_one_norm, Tied, "vectors"),
    Case(dropout_per_record, dropping),
    Case(constant_loss_scale),
]
