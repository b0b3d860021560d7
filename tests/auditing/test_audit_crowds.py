"""Canaries in a crowd and units of several rows: bounds that depend on others are refuted.

At a level of 1 - 1e-6, which is the false-alarm probability of each audit; seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisewise.auditing import audit
from noisewise.errors import RelationError
from noisewise.privacy import PoissonGaussian, Statement

NIGHTLY = 1 - 1e-6


def claim(unit: str = "one record") -> Statement:
    event = PoissonGaussian(1.0, 1.0, 1)
    return Statement.derive(event, delta=1e-5, mechanism="one step", unit=unit)


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
        claimed=claim("one patient"),
        attack="gradient-canaries",
        clip=1.0,
        canaries=300,
        repeats=10,
        unit_rows=4,
        confidence=NIGHTLY,
    )
    assert result.passed is passed
    assert "unit of 4 rows" in result.threat_model


def test_units_are_not_held_against_a_claim_about_single_records() -> None:
    # Right code for single records: four of them together move the sum four times as far.
    with pytest.raises(RelationError, match="unit of 4 rows"):
        audit(
            lambda gradients, *, units, seed: step(gradients, seed=seed),
            claimed=claim(),
            attack="gradient-canaries",
            clip=1.0,
            canaries=300,
            repeats=10,
            unit_rows=4,
        )


@pytest.mark.parametrize("attack", ["two-worlds", "membership"])
def test_a_canary_of_several_records_is_no_canary_of_one(attack: str) -> None:
    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        x = data[0]
        total = (x * (clip / x.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        generator = torch.Generator().manual_seed(seed)
        noise = noise_multiplier * clip * torch.randn(total.shape, generator=generator)
        return {"weight": init["weight"] + lr * (total + noise)[None] / batch_size}

    options: dict = {
        "init": {"weight": torch.zeros(1, 3)},
        "data": (torch.zeros(5, 3), torch.zeros(5)),
        "canary": (torch.ones(4, 3), torch.zeros(4)),
        "clip": 1.0,
        "noise_multiplier": 1.0,
        "repeats": 30,
    }
    if attack == "membership":
        options |= {
            "model_fn": lambda: torch.nn.Linear(3, 1, bias=False),
            "loss_fn": lambda output, target: -output[:, 0],
            "settings": {"steps": 1, "lr": 1.0, "batch_size": 5, "clip": 1.0,
                         "noise_multiplier": 1.0},
        }  # fmt: skip
        del options["clip"], options["noise_multiplier"]
    with pytest.raises(RelationError, match="unit of 4 rows"):
        audit(train, claimed=claim(), attack=attack, **options)
