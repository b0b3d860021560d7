"""Stage 4 of a mutant: Gaussian noise of deviation sigma C on the sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisewise.debugging.mutants.bounding import Gradients

__all__ = ["draw_noise", "misplaced"]


def draw_noise(
    bug: str | None,
    allocation: str,
    weights: Gradients,
    clip: float,
    sigma: float,
    batch_size: int,
    chance: torch.Generator,
    drawn: int,
    total: int,
) -> Gradients:
    """Return the noise of one step for every tensor."""
    right = sigma * clip
    deviation = {
        "noise-without-clip": sigma,
        "no-noise": 0.0,
        "noise-divided-twice": right / batch_size,
        "root-of-sigma": math.sqrt(sigma) * clip,
        "half-sigma": right / 2,
        "noise-clip-squared": right * clip,
        "noise-on-mean": right * batch_size,
        "one-micro-batch": right * batch_size,
        "variance-as-deviation": right**2,
        "noise-over-dataset-size": 2 * right * batch_size / total,
        "no-noise-for-one-record": 0.0 if drawn <= 1 else right,
    }.get(bug or "", right)
    noise: Gradients = {}
    seed = int(torch.randint(2**31, (1,), generator=chance))
    sizes = [w.numel() for w in weights.values()]
    for index, (n, w) in enumerate(weights.items()):
        source = chance
        if bug == "reseed-each-tensor" or (
            bug == "key-reused-by-shape" and sizes.count(w.numel()) > 1
        ):
            source = torch.Generator().manual_seed(seed)
        scale = deviation
        if allocation == "uneven":
            # Sum over K tensors of (C^2/K) / s_k^2 stays 1/sigma^2.
            tensors = len(weights)
            tilt = 1.5 if index % 2 else 0.5
            mean = sum(1.5 if k % 2 else 0.5 for k in range(tensors)) / tensors
            scale = deviation / math.sqrt(tilt / mean)
        if allocation == "optimal":
            # Least energy for equal sensitivities: s_k^2 in proportion to 1 / sqrt(d_k).
            roots = [math.sqrt(size) for size in sizes]
            scale = deviation * math.sqrt(sum(roots) / (len(roots) * roots[index]))
        noise[n] = (scale * _standard(bug, w.shape, source)).to(w)
    return noise


def _standard(bug: str | None, shape: torch.Size, source: torch.Generator) -> Tensor:
    """Return standard normal noise, or what is taken for it."""
    draws = torch.randn(shape, generator=source)
    if bug == "laplace":
        uniform = torch.rand(shape, generator=source) - 0.5
        size = 1 / math.sqrt(2)
        draws = -size * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.49999))
    if bug == "truncated":
        draws = draws.clamp(-2.0, 2.0) / 0.9594
    if bug == "twelve-uniforms":
        draws = torch.rand((12, *shape), generator=source).sum(0) - 6
    if bug == "rand-for-randn":
        draws = torch.rand(shape, generator=source)
    if bug == "some-coordinates-unnoised":
        draws = draws * (torch.rand(shape, generator=source) >= 0.02)
    if bug == "noise-shared-by-rows" and len(shape) > 1:
        draws = draws[:1].expand_as(draws)
    return draws


def misplaced(
    bug: str | None,
    noise: Gradients,
    step: int,
    drawn: int,
    lr: float,
    micro_batch_size: int,
    world_size: int,
) -> Gradients:
    """Return noise that was added in the wrong place, or too often, or not everywhere."""
    pieces = max(1, math.ceil(drawn / micro_batch_size))
    factor = 1.0
    if bug == "noise-per-micro-batch":
        factor = math.sqrt(pieces) / pieces
    if bug == "noise-every-accumulation":
        factor = math.sqrt(pieces)
    if bug == "noise-per-worker":
        factor = 1 / math.sqrt(world_size)
    if bug == "noise-after-learning-rate":
        factor = 1 / lr
    if bug == "noise-lost-after-first-step" and step > 0:
        factor = 0.0
    last = list(noise)[-2:]
    return {
        n: z * (0.0 if bug == "last-layer-unnoised" and n in last else factor)
        for n, z in noise.items()
    }
