"""Twenty unusual programs of the ninth round that keep what they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from noisewise.debugging.mutants.programs import (
    Run,
    Tied,
    add_noise,
    clipped_sum,
    descend,
    dropping,
    factors,
    lengths,
    mlp,
    per_record,
    program,
    weighted_sum,
)
from noisewise.debugging.trainer import StateDict

__all__: list[str] = []


@program("noise on the weights")
def _noise_on_the_weights(run: Run) -> StateDict:
    """A clean step, then noise of deviation lr * sigma * C / B on the weights: the same sum."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.clipped_sum(model, w, rows))
        w = add_noise(w, run.lr * run.sigma * run.clip / run.batch_size)
    return w


@program("layers share the bound")
def _layers_share_the_bound(run: Run) -> StateDict:
    """Each of four tensors is clipped to C / 2, so that together they are at most C long."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        total: StateDict = {}
        for k, g in grads.items():
            total |= weighted_sum({k: g}, factors(lengths({k: g}), run.clip / math.sqrt(len(w))))
        w = run.descend(w, run.noisy(total))
    return w


@program("normalised gradients")
def _normalised_gradients(run: Run) -> StateDict:
    """C g / (|g| + r): no threshold, and never longer than C (Yang et al., 2022)."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows])
        norm = lengths(grads)
        f = torch.where(torch.isfinite(norm), run.clip / (norm + 0.01), torch.zeros_like(norm))
        total = weighted_sum(grads, f)
        w = run.descend(w, run.noisy(total))
    return w


@program("augmentations averaged")
def _augmentations_averaged(run: Run) -> StateDict:
    """Gradients of a record and its mirrored copy are averaged, then clipped (De et al., 2022)."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        one = per_record(model, w, x[rows], y[rows])
        two = per_record(model, w, x[rows].flip(1), y[rows])
        grads = {k: (one[k] + two[k]) / 2 for k in w}
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("by hand in numpy", "linear")
def _by_hand_in_numpy(run: Run) -> StateDict:
    """Softmax regression by hand, with numpy's generator and split keys."""
    x, y = run.data[0].double().numpy(), run.data[1].numpy()
    weight, bias = run.init["weight"].double().numpy(), run.init["bias"].double().numpy()
    sample_key, noise_key = np.random.SeedSequence(run.seed).spawn(2)
    sampler, noise = np.random.default_rng(sample_key), np.random.default_rng(noise_key)
    for _ in range(run.steps):
        mask = sampler.random(len(x)) < run.batch_size / len(x)
        with np.errstate(all="ignore"):
            z = x[mask] @ weight.T + bias
            z = np.exp(z - z.max(1, keepdims=True))
            delta = z / z.sum(1, keepdims=True) - np.eye(3)[y[mask]]
            norm = np.sqrt((delta**2).sum(1) * ((x[mask] ** 2).sum(1) + 1))
            good = np.isfinite(norm)
        f = np.minimum(1.0, run.clip / np.maximum(norm[good], 1e-12))[:, None]
        gw = (f * delta[good]).T @ x[mask][good]
        gb = (f * delta[good]).sum(0)
        std = run.sigma * run.clip
        weight = weight - run.lr * (gw + noise.normal(0, 1, gw.shape) * std) / run.batch_size
        bias = bias - run.lr * (gb + noise.normal(0, 1, gb.shape) * std) / run.batch_size
    return {"weight": torch.tensor(weight).float(), "bias": torch.tensor(bias).float()}


@program("two passes")
def _two_passes(run: Run) -> StateDict:
    """Norms first, then one backward pass of the reweighted loss (ghost clipping)."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        norm = lengths(per_record(model, w, x[rows], y[rows]))
        f = factors(norm, run.clip)
        model.zero_grad()
        if (f > 0).any():
            keep = f > 0
            losses = functional.cross_entropy(model(x[rows][keep]), y[rows][keep], reduction="none")
            (losses * f[keep]).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p in model.parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad
                p -= run.lr * (g + run.sigma * run.clip * torch.randn_like(p)) / run.batch_size  # type: ignore[misc]
    return model.state_dict()


@program("micro batches padded with nothing")
def _micro_batches_padded_with_nothing(run: Run) -> StateDict:
    """Fixed micro-batches of four; the padding has weight zero; noise once a step."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        length = 4 * math.ceil(len(rows) / 4)
        real = torch.arange(length) < len(rows)
        padded = torch.cat([rows, rows.new_zeros(length - len(rows))])
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        for i in range(0, length, 4):
            part = padded[i : i + 4]
            grads = per_record(model, w, x[part], y[part])
            f = factors(lengths(grads), run.clip) * real[i : i + 4]
            more = weighted_sum(grads, f)
            total = {k: total[k] + more[k] for k in w}
        w = run.descend(w, run.noisy(total))
    return w


@program("geometric gaps")
def _geometric_gaps(run: Run) -> StateDict:
    """Poisson sampling by the gaps between those who are drawn."""
    rng = np.random.default_rng([run.seed, 77])
    model, w = run.begin(mlp)
    x, _ = run.data
    rate = min(1.0, run.batch_size / len(x))
    for _ in range(run.steps):
        chosen, i = [], int(rng.geometric(rate)) - 1
        while i < len(x):
            chosen.append(i)
            i += int(rng.geometric(rate))
        rows = torch.tensor(chosen, dtype=torch.long)
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("heavy ball", momentum=0.9)
def _heavy_ball(run: Run) -> StateDict:
    """Momentum of the noisy gradients."""
    model, w = run.begin(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr, momentum=0.9)
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(run.clipped_sum(model, w, rows), run.sigma * run.clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / run.batch_size
        optimizer.step()
    return model.state_dict()


@program("adam with decay", optimizer="adam", weight_decay=0.01)
def _adam_with_decay(run: Run) -> StateDict:
    """AdamW on the noisy gradients."""
    model, w = run.begin(mlp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.lr, weight_decay=0.01)
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(run.clipped_sum(model, w, rows), run.sigma * run.clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / run.batch_size
        optimizer.step()
    return model.state_dict()


@program("batches of fixed size", sampling="fixed")
def _batches_of_fixed_size(run: Run) -> StateDict:
    """A fresh subset of batch_size records at each step, and an accountant who knows."""
    model, w = run.begin(mlp)
    x, _ = run.data
    for _ in range(run.steps):
        rows = torch.randperm(len(x))[: run.batch_size]
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("declared noise schedule", noise_schedule=lambda step: 0.99**step)
def _declared_noise_schedule(run: Run) -> StateDict:
    """Sigma falls by a percent a step, as the accountant is told."""
    model, w = run.begin(mlp)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        std = run.sigma * 0.99**step * run.clip
        w = run.descend(w, add_noise(total, std))
    return w


@program("public clip schedule")
def _public_clip_schedule(run: Run) -> StateDict:
    """The norm falls by half a percent a step, and the noise with it: sigma is what it was."""
    model, w = run.begin(mlp)
    x, y = run.data
    for step in range(run.steps):
        bound = run.clip * 0.995**step
        rows = run.draw()
        total = clipped_sum(model, w, x[rows], y[rows], bound)
        w = run.descend(w, add_noise(total, run.sigma * bound))
    return w


@program("head learns faster")
def _head_learns_faster(run: Run) -> StateDict:
    """Two groups of rates; the noise is in the gradient, so it is scaled along."""
    model, w = run.begin(mlp)
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters()},
        {"params": model[2].parameters(), "lr": 10 * run.lr},
    ]
    optimizer = torch.optim.SGD(groups, lr=run.lr)
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        total = add_noise(run.clipped_sum(model, w, rows), run.sigma * run.clip)
        for k, p in model.named_parameters():
            p.grad = total[k] / run.batch_size
        optimizer.step()
    return model.state_dict()


@program("moving average returned")
def _moving_average_returned(run: Run) -> StateDict:
    """A moving average of the private weights is returned: post-processing."""
    model, w = run.begin(mlp)
    average = {k: v.clone() for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
        average = {k: 0.8 * average[k] + 0.2 * w[k] for k in w}
    return average


@program("lookahead of five steps")
def _lookahead(run: Run) -> StateDict:
    """Every fifth step the weights go back half the way: post-processing (Zhang et al., 2019)."""
    model, w = run.begin(mlp)
    slow = {k: v.clone() for k, v in w.items()}
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
        if (step + 1) % 5 == 0:
            slow = {k: (slow[k] + w[k]) / 2 for k in w}
            w = {k: v.clone() for k, v in slow.items()}
    return w


@program("warm up and cosine")
def _warm_up_and_cosine(run: Run) -> StateDict:
    """A public schedule of the rate, planned for 200 steps whatever `steps` is."""
    model, w = run.begin(mlp)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        warm = min(1.0, (step + 1) / 5)
        rate = run.lr * warm * (0.05 + 0.95 * (1 + math.cos(math.pi * min(step, 200) / 200)) / 2)
        w = descend(w, run.noisy(total), rate / run.batch_size)
    return w


@program("tied weights one norm", "autoencoder")
def _tied_weights_one_norm(run: Run) -> StateDict:
    """A shared weight whose gradients are added up before they are measured."""
    model, w = run.begin(Tied)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        total = clipped_sum(model, w, x[rows], y[rows], run.clip, functional.mse_loss)
        w = run.descend(w, run.noisy(total))
    return w


@program("dropout per record", "dropout")
def _dropout_per_record(run: Run) -> StateDict:
    """Dropout, with a mask of its own for every record and step."""
    model, w = run.begin(dropping)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
    return w


@program("constant loss scale")
def _constant_loss_scale(run: Run) -> StateDict:
    """The loss is scaled by 1024 and the gradients are scaled back before they are clipped."""
    model, w = run.begin(mlp)
    x, y = run.data

    def scaled(out: Tensor, target: Tensor) -> Tensor:
        return 1024 * functional.cross_entropy(out, target)

    for _ in range(run.steps):
        rows = run.draw()
        grads = per_record(model, w, x[rows], y[rows], scaled)
        grads = {k: g / 1024 for k, g in grads.items()}
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w
