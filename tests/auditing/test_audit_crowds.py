"""Canaries in a crowd and units of several rows: bounds that depend on others are refuted.

At a level of 1 - 1e-6, which is the false-alarm probability of each audit; seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisewise.auditing import audit
from noisewise.privacy import PoissonGaussian, Statement

NIGHTLY = 1 - 1e-6


def claim() -> Statement:
    return Statement.derive(PoissonGaussian(1.0, 1.0, 1), delta=1e-5, mechanism="one step")


def step(
    gradients: Tensor, *, seed: int, units: Tensor | None = None, bound: str = "row"
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(gradients.shape[1], generator=generator)
    if bound == "batch":
        mean = gradients.mean(0)
        return len(gradients) * mean * min(1.0, 1 / max(float(mean.norm()), 1e-12)) + noise
    norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
    clip = float(norms.median()) if bound == "median" else 1.0
    clipped = gradients * (clip / norms).clamp(max=1)
    if bound == "unit":
        assert units is not None
        sums = torch.zeros(int(units.max()) + 1 if len(units) else 0, gradients.shape[1])
        sums.index_add_(0, units, gradients)
        clipped = sums * (1 / sums.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp(max=1)
    return clipped.sum(0) + noise


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize("bound", ["row", "batch", "median"])
def test_a_crowd_shows_bounds_that_follow_the_batch(bound: str, loud: bool) -> None:
    result = audit(
        lambda gradients, *, seed: step(gradients, seed=seed, bound=bound),
        claimed=claim(),
        attack="crowd-canaries",
        clip=1.0,
        loud=loud,
        repeats=300,
        confidence=NIGHTLY,
    )
    # Clipping of the batch shows in any crowd, a median only in one that it can follow.
    wrong = bound == "batch" or (bound == "median" and loud)
    assert result.passed is not wrong


@pytest.mark.parametrize(("bound", "passed"), [("unit", True), ("row", False)])
def test_units_of_several_rows_are_audited_as_a_whole(bound: str, passed: bool) -> None:
    result = audit(
        lambda gradients, *, units, seed: step(gradients, units=units, seed=seed, bound=bound),
        claimed=claim(),
        attack="gradient-canaries",
        clip=1.0,
        canaries=300,
        repeats=10,
        unit_rows=4,
        confidence=NIGHTLY,
    )
    assert result.passed is passed
    assert "unit of 4 rows" in result.threat_model
