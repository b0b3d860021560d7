"""DP training in the styles in which people write it, each right and each with a mistake.

Nothing here shares code with `noisewise.debugging.mutants`: loops over records, `torch.func`,
ghost clipping by two passes, torch's own optimizers and schedulers, numpy. A style takes
``wrong`` and makes one mistake if it is true.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

STYLES = {}


def style(**declared):
    """Register a training function; `declared` goes to `check`, `judged=False` means hidden."""

    def register(function):
        STYLES[function.__name__] = (function, declared)
        return function

    return register


def build():
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)
    )


EXAMPLE = (torch.zeros(4, 8), torch.arange(4))


def start(init):
    model = build()
    model.load_state_dict(init)
    return model


def coins(seed):
    """Generators of the batches and of the noise."""
    return (torch.Generator().manual_seed(2 * seed), torch.Generator().manual_seed(2 * seed + 1))


def poisson(total, batch_size, generator):
    return torch.nonzero(torch.rand(total, generator=generator) < batch_size / total).flatten()


def stacked(model, x, y):
    """Gradients of all records by vmap, cleaned of those that are not finite."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    if len(x) == 0:
        return {n: p.new_zeros((0, *p.shape)) for n, p in parameters.items()}

    def loss(weights, one, label):
        return cross_entropy(functional_call(model, weights, (one[None],)), label[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    good = torch.stack([r.flatten(1).isfinite().all(1) for r in rows.values()]).all(0)
    return {
        n: torch.where(good.reshape(-1, *[1] * (r.ndim - 1)), r, torch.zeros_like(r))
        for n, r in rows.items()
    }


def lengths(rows):
    return torch.stack([r.flatten(1).norm(dim=1) for r in rows.values()]).norm(dim=0)


def clipped_sum(rows, clip, norm=None):
    norm = lengths(rows) if norm is None else norm
    factor = (clip / norm.clamp_min(1e-12)).clamp(max=1.0)
    return {n: torch.tensordot(factor, r, 1) for n, r in rows.items()}


def step_by(optimizer, model, gradients):
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    optimizer.step()


def loop(settings, *, gradients, optimizer=torch.optim.SGD, schedule=None, after=None):
    """The usual loop around a function (model, x, y, step, noise generator) -> gradients."""
    model = start(settings["init"])
    chosen = optimizer(model.parameters(), lr=settings["lr"])
    scheduler = schedule(chosen) if schedule else None
    draw, noise = coins(settings["seed"])
    x, y = settings["data"]
    for step in range(settings["steps"]):
        batch = poisson(len(x), settings["batch_size"], draw)
        step_by(chosen, model, gradients(model, x[batch], y[batch], step, noise))
        if scheduler:
            scheduler.step()
        if after:
            after(model, step)
    return model.state_dict()


def noisy_mean(settings, total, noise, sigma=None, clip=None):
    deviation = (settings["noise_multiplier"] if sigma is None else sigma) * (
        clip or settings["clip"]
    )
    return {
        n: (t + deviation * torch.randn(t.shape, generator=noise)) / settings["batch_size"]
        for n, t in total.items()
    }


# --- ways to compute the sum


@style()
def record_by_record(wrong=False, **s):
    """Backward for one record at a time. Wrong: `zero_grad` after the loop, not inside it."""

    def gradients(model, x, y, step, noise):
        total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        model.zero_grad()
        for one, label in zip(x, y, strict=True):
            if not wrong:
                model.zero_grad()
            cross_entropy(model(one[None]), label[None]).backward()
            own = {n: p.grad for n, p in model.named_parameters()}
            if all(g.isfinite().all() for g in own.values()):
                size = torch.stack([g.norm() for g in own.values()]).norm()
                for n, g in own.items():
                    total[n] += g * min(1.0, s["clip"] / max(float(size), 1e-12))
        return noisy_mean(s, total, noise)

    return loop(s, gradients=gradients)


@style()
def ghost_clipping(wrong=False, **s):
    """Norms first, then one backward of the weighted loss. Wrong: norms without the biases."""

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        counted = {n: r for n, r in rows.items() if not (wrong and "bias" in n)}
        norm = lengths(counted)
        weight = (s["clip"] / norm.clamp_min(1e-12)).clamp(max=1.0)
        finite = (
            torch.stack(
                [
                    cross_entropy(model(o[None]), t[None]).isfinite()
                    for o, t in zip(x, y, strict=True)
                ]
            )
            if len(x)
            else torch.zeros(0, dtype=torch.bool)
        )
        model.zero_grad()
        if bool(finite.any()):
            losses = cross_entropy(model(x[finite]), y[finite], reduction="none")
            (weight[finite].detach() * losses).sum().backward()
        total = {
            n: p.grad if p.grad is not None else torch.zeros_like(p)
            for n, p in model.named_parameters()
        }
        return noisy_mean(s, total, noise)

    return loop(s, gradients=gradients)


@style()
def micro_batches(wrong=False, **s):
    """Sums of pieces of three. Wrong: each piece gets a third of the noise's deviation."""

    def gradients(model, x, y, step, noise):
        total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        pieces = max(1, -(-len(x) // 3))
        for k in range(pieces):
            part = clipped_sum(
                stacked(model, x[3 * k : 3 * k + 3], y[3 * k : 3 * k + 3]), s["clip"]
            )
            for n in total:
                total[n] += part[n]
                if wrong:
                    extra = torch.randn(part[n].shape, generator=noise)
                    total[n] += s["noise_multiplier"] * s["clip"] / pieces * extra
        return noisy_mean(s, total, noise, sigma=0.0 if wrong else None)

    return loop(s, gradients=gradients)


@style()
def own_limit_for_each_layer(wrong=False, **s):
    """Limits with the squares of C in sum. Wrong: noise of the mean limit."""

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        share = torch.linspace(1.0, 3.0, len(rows))
        share = share / share.norm()
        total = {
            n: clipped_sum({n: r}, s["clip"] * float(part))[n]
            for (n, r), part in zip(rows.items(), share, strict=True)
        }
        return noisy_mean(s, total, noise, clip=s["clip"] * float(share.mean()) if wrong else None)

    return loop(s, gradients=gradients)


@style()
def padded_batches(wrong=False, **s):
    """Batches filled up to multiples of eight with rows of weight 0. Wrong: of weight 1."""

    def gradients(model, x, y, step, noise):
        count = -len(x) % 8
        filled = torch.cat([x, x[:1].repeat(count, 1) if len(x) else torch.zeros(count, 8)])
        labels = torch.cat(
            [y, y[:1].repeat(count) if len(y) else torch.zeros(count, dtype=y.dtype)]
        )
        rows = stacked(model, filled, labels)
        if not wrong:
            rows = {n: r[: len(x)] for n, r in rows.items()}
        return noisy_mean(s, clipped_sum(rows, s["clip"]), noise)

    return loop(s, gradients=gradients)


@style()
def scaled_losses(wrong=False, **s):
    """Losses times 1024, undone before clipping. Wrong: undone for the norm only."""

    def gradients(model, x, y, step, noise):
        rows = {n: 1024 * r for n, r in stacked(model, x, y).items()}
        plain = {n: r / 1024 for n, r in rows.items()}
        return noisy_mean(
            s, clipped_sum(rows if wrong else plain, s["clip"], lengths(plain)), noise
        )

    return loop(s, gradients=gradients)


@style()
def global_clipping(wrong=False, **s):
    """Records up to Z = 4 C count C/Z, longer ones nothing. Wrong: longer ones count fully."""

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        short = lengths(rows) <= 4 * s["clip"]
        factor = torch.where(short, torch.tensor(0.25), torch.tensor(1.0 if wrong else 0.0))
        return noisy_mean(s, {n: torch.tensordot(factor, r, 1) for n, r in rows.items()}, noise)

    return loop(s, gradients=gradients)


# --- noise


@style()
def noise_of_two_sources(wrong=False, **s):
    """Two noises of half the variance each. Wrong: of half the deviation each."""

    def gradients(model, x, y, step, noise):
        half = 0.5 if wrong else math.sqrt(0.5)
        once = noisy_mean(
            s, clipped_sum(stacked(model, x, y), s["clip"]), noise, half * s["noise_multiplier"]
        )
        zero = {n: torch.zeros_like(g) for n, g in once.items()}
        again = noisy_mean(s, zero, noise, half * s["noise_multiplier"])
        return {n: once[n] + again[n] for n in once}

    return loop(s, gradients=gradients)


@style()
def numpy_noise(wrong=False, **s):
    """numpy's generator in double precision. Wrong: made anew from seed and step modulo 5."""
    source = np.random.default_rng(s["seed"])

    def gradients(model, x, y, step, noise):
        rng = np.random.default_rng((s["seed"], step % 5)) if wrong else source
        total = clipped_sum(stacked(model, x, y), s["clip"])
        deviation = s["noise_multiplier"] * s["clip"]
        return {
            n: (
                (t.double() + deviation * torch.from_numpy(rng.standard_normal(tuple(t.shape))))
                / s["batch_size"]
            ).float()
            for n, t in total.items()
        }

    return loop(s, gradients=gradients)


@style()
def one_flat_vector(wrong=False, **s):
    """Noise for the whole vector at once. Wrong: one element in eight keeps no noise."""

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        flat = torch.cat([t.flatten() for t in total.values()])
        drawn = torch.randn(flat.shape, generator=noise)
        if wrong:
            drawn[::8] = 0.0
        flat = (flat + s["noise_multiplier"] * s["clip"] * drawn) / s["batch_size"]
        parts = flat.split([t.numel() for t in total.values()])
        return {n: p.reshape(t.shape) for (n, t), p in zip(total.items(), parts, strict=True)}

    return loop(s, gradients=gradients)


# --- optimizers and schedules


def plain(s):
    def gradients(model, x, y, step, noise):
        return noisy_mean(s, clipped_sum(stacked(model, x, y), s["clip"]), noise)

    return gradients


@style(momentum=0.9)
def momentum_of_torch(wrong=False, **s):
    """torch's momentum on noisy gradients. Wrong: on raw ones, noise is added to the velocity."""
    velocity = {}

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        for n, t in total.items():
            velocity[n] = 0.9 * velocity.get(n, torch.zeros_like(t)) + t
        return noisy_mean(s, velocity, noise)

    if wrong:
        return loop(s, gradients=gradients)
    return loop(
        s, gradients=plain(s), optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)
    )


@style()
def momentum_with_dampening(wrong=False, **s):
    """v = 0.8 v + 0.2 g, not declared. Wrong: noise falls with the fourth root of the step."""

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        return noisy_mean(
            s, total, noise, s["noise_multiplier"] / ((1 + step) ** 0.25 if wrong else 1)
        )

    return loop(
        s,
        gradients=gradients,
        optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.8, dampening=0.2),
    )


@style()
def cosine_schedule(wrong=False, **s):
    """The learning rate falls as a cosine. Wrong: it falls when the loss of the batch is small."""

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.55 + 0.45 * math.cos(math.pi * min(step, 300) / 300)
        )

    if not wrong:
        return loop(s, gradients=plain(s), schedule=schedule)

    def gradients(model, x, y, step, noise):
        loss = float(cross_entropy(model(x), y).detach()) if len(x) else 9.0
        found = plain(s)(model, x, y, step, noise)
        return {n: g * (0.1 if loss < 0.5 else 1.0) for n, g in found.items()}

    return loop(s, gradients=gradients)


@style(optimizer="adam")
def adam_of_torch(wrong=False, **s):
    """torch's Adam. Wrong: noise of half the size."""

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        return noisy_mean(s, total, noise, s["noise_multiplier"] * (0.5 if wrong else 1))

    return loop(s, gradients=gradients, optimizer=torch.optim.Adam)


@style(judged=False)
def rmsprop_not_declared(wrong=False, **s):
    """A step that hides lengths. Wrong: clipping of the batch."""

    def gradients(model, x, y, step, noise):
        if not wrong:
            return plain(s)(model, x, y, step, noise)
        rows = stacked(model, x, y)
        whole = {n: r.sum(0)[None] for n, r in rows.items()}
        return noisy_mean(s, clipped_sum(whole, s["clip"]), noise)

    return loop(s, gradients=gradients, optimizer=torch.optim.RMSprop)


@style()
def rates_of_their_own_for_layers(wrong=False, **s):
    """Layers with rates 1, 0.5, 0.25. Wrong: the rate is applied to gradients, before noise."""
    rates = {"0": 1.0, "2": 0.5, "4": 0.25}

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        if wrong:
            total = {n: t * (2.0 if n[0] == "4" else 1.0) for n, t in total.items()}
            return noisy_mean(s, total, noise)
        return {n: g * rates[n[0]] for n, g in noisy_mean(s, total, noise).items()}

    return loop(s, gradients=gradients)


# --- what is returned, and what is done to it


@style(judged=False)
def averaged_with_correction(wrong=False, **s):
    """An average of weights corrected for its start. Wrong: of raw gradients' weights."""
    average, shadow = {}, {}

    def after(model, step):
        for n, p in model.named_parameters():
            average[n] = 0.8 * average.get(n, torch.zeros_like(p)) + 0.2 * p.detach()
            shadow[n] = average[n] / (1 - 0.8 ** (step + 1))

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        return noisy_mean(s, total, noise, 0.6 * s["noise_multiplier"] if wrong else None)

    final = loop(s, gradients=gradients, after=after)
    return {**final, **shadow}


@style(judged=False)
def mean_of_all_weights(wrong=False, **s):
    """The mean of the weights after every step. Wrong: noise is lost on odd steps."""
    summed, count = {}, [0]

    def after(model, step):
        count[0] = step + 1
        for n, p in model.named_parameters():
            summed[n] = summed.get(n, torch.zeros_like(p)) + p.detach()

    def gradients(model, x, y, step, noise):
        total = clipped_sum(stacked(model, x, y), s["clip"])
        return noisy_mean(s, total, noise, 0.0 if wrong and step % 2 else None)

    final = loop(s, gradients=gradients, after=after)
    return {**final, **{n: v / count[0] for n, v in summed.items()}}


@style(judged=False)
def signs_of_noisy_gradients(wrong=False, **s):
    """signSGD of the noisy mean. Wrong: signs of the raw mean."""

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        if wrong:
            return {n: r.sum(0).sign() for n, r in rows.items()}
        found = noisy_mean(s, clipped_sum(rows, s["clip"]), noise)
        return {n: g.sign() for n, g in found.items()}

    return loop(s, gradients=gradients)


@style()
def weights_in_a_ball(wrong=False, **s):
    """Each matrix is limited to norm 6 after a step. Wrong: gradients are limited, not records'."""

    def after(model, step):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(min(1.0, 6 / max(float(p.norm()), 1e-12)))

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        if not wrong:
            return noisy_mean(s, clipped_sum(rows, s["clip"]), noise)
        mean = {n: r.sum(0)[None] / s["batch_size"] for n, r in rows.items()}
        return noisy_mean(s, clipped_sum(mean, s["clip"]), noise)

    return loop(s, gradients=gradients, after=after)


@style()
def only_the_head_is_trained(wrong=False, **s):
    """Earlier layers are frozen. Wrong: they learn, without noise."""

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        head = {n: r for n, r in rows.items() if n.startswith("4")}
        found = noisy_mean(s, clipped_sum(head, s["clip"]), noise)
        rest = clipped_sum(rows, s["clip"])
        return {
            n: found[n] if n in found else rest[n] * (1.0 if wrong else 0.0) / s["batch_size"]
            for n in rows
        }

    return loop(s, gradients=gradients)


@style()
def adaptive_clipping(wrong=False, **s):
    """C follows a noisy count of long records (Andrew et al., 2021). Wrong: the count is raw."""
    state = {"clip": s["clip"]}
    # Variance 1/sigma^2 is shared out between the sum and the count.
    count_noise = 10.0 * max(s["noise_multiplier"], 1e-12)
    share = 1 / math.sqrt(max(1e-12, 1 - (s["noise_multiplier"] / (2 * count_noise)) ** 2))

    def gradients(model, x, y, step, noise):
        rows = stacked(model, x, y)
        clip = state["clip"]
        below = float((lengths(rows) <= clip).float().sum() - len(x) / 2)
        below += 0.0 if wrong else count_noise * float(torch.randn((), generator=noise))
        state["clip"] = clip * math.exp(-0.03 * max(-3.0, min(3.0, below / s["batch_size"])))
        return noisy_mean(s, clipped_sum(rows, clip), noise, share * s["noise_multiplier"], clip)

    return loop(s, gradients=gradients)
