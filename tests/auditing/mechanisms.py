"""Mechanisms of known epsilon, and broken ones, that the audits are judged by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]


@dataclass(frozen=True)
class Known:
    """A mechanism whose scores can be drawn and whose epsilon is known exactly."""

    name: str
    draw: Draw
    epsilon: Callable[[float], float]


def laplace(scale: float) -> Known:
    # delta(eps) = 1 - exp((eps - 1/scale) / 2)
    return Known(
        f"Laplace {scale}",
        lambda rng, n: (rng.laplace(1, scale, n), rng.laplace(0, scale, n)),
        lambda delta: max(0.0, 1 / scale + 2 * math.log(1 - delta)),
    )


def randomised_response(epsilon: float) -> Known:
    truth = 1 / (1 + math.exp(-epsilon))

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        return (rng.random(n) < truth).astype(float), (rng.random(n) >= truth).astype(float)

    return Known(
        f"randomised response {epsilon}",
        draw,
        lambda delta: max(0.0, math.log((truth - delta) / (1 - truth))),
    )


def gaussian(mu: float) -> Known:
    return Known(
        f"Gaussian {mu}",
        lambda rng, n: (rng.normal(mu, 1, n), rng.normal(0, 1, n)),
        lambda delta: exact_gaussian_epsilon(mu, delta),
    )


def sampled_step(noise: float, rate: float) -> Known:
    """One step of Poisson-sampled Gaussian noise; epsilon by its closed form."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        hit = rng.random(n) < rate
        return hit + rng.normal(0, noise, n), rng.normal(0, noise, n)

    return Known(
        f"sampled Gaussian {noise}, {rate}",
        draw,
        lambda delta: exact_sampled_epsilon(noise, rate, delta),
    )


def exact_gaussian_epsilon(mu: float, delta: float) -> float:
    from scipy.stats import norm

    def excess(e: float) -> float:
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta

    return _root(excess)


def exact_sampled_epsilon(noise: float, rate: float, delta: float) -> float:
    """Larger of the two directions between (1-q) N(0) + q N(1) and N(0)."""
    from scipy.stats import norm

    def removed(e: float) -> float:
        # The mixture exceeds e^eps times the other where x is large.
        slope = (math.exp(e) - 1 + rate) / rate
        cut = noise**2 * math.log(slope) + 0.5
        with_record = (1 - rate) * norm.sf(cut, 0, noise) + rate * norm.sf(cut, 1, noise)
        return float(with_record - math.exp(e) * norm.sf(cut, 0, noise)) - delta

    def added(e: float) -> float:
        inner = math.exp(-e) - 1 + rate
        if inner <= 0:
            return -delta
        cut = noise**2 * math.log(inner / rate) + 0.5
        with_record = (1 - rate) * norm.cdf(cut, 0, noise) + rate * norm.cdf(cut, 1, noise)
        return float(norm.cdf(cut, 0, noise) - math.exp(e) * with_record) - delta

    return max(_root(removed), _root(added))


def _root(excess: Callable[[float], float]) -> float:
    from scipy.optimize import brentq

    if excess(1e-12) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 1e-12, high, xtol=1e-12))


def dp_sgd_step(noise: float, clip: float = 1.0, rate: float = 1.0) -> Callable[..., Tensor]:
    """A correct private sum, for audits through gradients."""

    def step(gradients: Tensor, *, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if rate < 1:
            gradients = gradients[torch.rand(len(gradients), generator=generator) < rate]
        norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
        total = (gradients * (clip / norms).clamp(max=1)).sum(0)
        return total + noise * clip * torch.randn(total.shape, generator=generator)

    return step


def linear_train(
    *,
    clip: float,
    noise_multiplier: float,
    batch_size: int,
    seed: int,
    data: tuple[Tensor, Tensor],
    init: dict[str, Tensor],
    steps: int,
    lr: float,
) -> dict[str, Tensor]:
    """Correct DP-SGD of a linear model with squared loss, in twenty lines."""
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    weight = init["weight"].clone()
    rate = batch_size / max(len(x), 1)
    for _ in range(steps):
        keep = torch.rand(len(x), generator=generator) < rate
        residual = x[keep] @ weight[0] - y[keep]
        gradients = 2 * residual[:, None] * x[keep]
        norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
        total = (gradients * (clip / norms).clamp(max=1)).sum(0)
        noise = torch.randn(total.shape, generator=generator)
        weight = weight - lr * (total + noise_multiplier * clip * noise) / batch_size
    return {"weight": weight}
