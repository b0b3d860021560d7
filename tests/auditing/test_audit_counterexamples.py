"""Published algorithms whose printed epsilon is wrong: audits must refute them.

The two counterexamples are derived in the project's notes on soundness: a sum divided by
the batch's largest input norm (thesis of Barczewski, 2025, Alg. 8, as printed), and one
Gaussian noise per layer accounted as if there were a single layer.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noisewise.auditing import NoiseModel, ViolatedClaimError, audit
from noisewise.privacy import PoissonGaussian, Statement

DELTA = 1e-5
NIGHTLY = 1 - 1e-6
TAU = math.sqrt(2)  # Lipschitz constant of the loss, as the algorithm uses it


def claim(noise: float, rate: float = 1.0, steps: int = 1) -> Statement:
    event = PoissonGaussian(noise, rate, steps)
    return Statement.derive(event, delta=DELTA, mechanism="as printed")


def batch_maximum(
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
    """One linear layer trained by Alg. 8: sum / max_i |x_i| + noise of its "sensitivity"."""
    x, y = data
    weight = init["weight"].clone().requires_grad_()
    logits = x @ weight.T + init["bias"]
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, [weight])
    scaled = gradient / x.norm(dim=1).max()
    generator = torch.Generator().manual_seed(seed)
    noise = noise_multiplier * TAU * torch.randn(scaled.shape, generator=generator)
    return {"weight": init["weight"] - lr * (scaled + noise) / batch_size, "bias": init["bias"]}


def counterexample(records: int) -> dict[str, object]:
    """Many records of tiny norm on the wrong side of the boundary, and one of large norm."""
    small = torch.tensor([[1e-3, 0.0]]).repeat(records, 1)
    return {
        "init": {
            "weight": torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) * TAU,
            "bias": torch.tensor([9.0, -9.0]),
        },
        "data": (small, torch.ones(records, dtype=torch.long)),
        "canary": (torch.tensor([[30.0, 0.0]]), torch.tensor([0])),
        "clip": TAU,
        "noise_multiplier": 1.0,
    }


@pytest.mark.parametrize("records", [16, 256])
def test_the_batch_maximum_is_refuted_in_one_step(records: int) -> None:
    inputs = counterexample(records)
    result = audit(
        batch_maximum,
        claimed=claim(1.0),
        attack="two-worlds",
        confidence=NIGHTLY,
        repeats=300,
        **inputs,
    )
    assert result.claimed_epsilon == pytest.approx(4.377, abs=1e-3)
    assert result.passed is False
    assert result.epsilon_lower_bound > 15
    # The distance is s + 1 sensitivities, so the attack never errs: only the number of runs
    # limits what can be certified.
    assert result.epsilon_lower_bound == pytest.approx(result.largest_certifiable, rel=0.05)
    with pytest.raises(ViolatedClaimError, match="claimed"):
        result.raise_if_violated()


def test_the_batch_maximum_is_refuted_with_the_sampling_that_was_claimed() -> None:
    """Claimed 0.20 at q = 0.01; the truth is at least 243."""
    statement = claim(1.0, 0.01)
    assert statement.epsilon == pytest.approx(0.20, abs=0.01)
    result = audit(
        batch_maximum,
        claimed=statement,
        attack="two-worlds",
        confidence=NIGHTLY,
        repeats=300,
        **counterexample(256),
    )
    assert result.passed is False
    assert result.epsilon_lower_bound > 5


def test_the_batch_maximum_is_refuted_without_any_assumption_on_its_noise() -> None:
    result = audit(
        batch_maximum,
        claimed=4.378,
        delta=DELTA,
        method="clopper-pearson",
        attack="two-worlds",
        repeats=1500,
        **counterexample(64),
    )
    assert result.passed is False


def test_own_norms_instead_of_the_batch_maximum_pass() -> None:
    """The sound repair, on the same data: each record divided by its own norm."""

    def own_norms(*, data: tuple[Tensor, Tensor], **rest: object) -> dict[str, Tensor]:
        x, y = data
        unit = x / x.norm(dim=1, keepdim=True)
        # The cotangents of the true inputs, contracted with inputs of norm one.
        weight, bias = rest["init"]["weight"], rest["init"]["bias"]  # type: ignore[index]
        cotangent = torch.softmax(x @ weight.T + bias, 1) - torch.eye(2)[y]
        total = cotangent.T @ unit
        generator = torch.Generator().manual_seed(rest["seed"])  # type: ignore[arg-type]
        noise = rest["noise_multiplier"] * TAU * torch.randn(total.shape, generator=generator)  # type: ignore[operator]
        update = rest["lr"] * (total + noise) / rest["batch_size"]  # type: ignore[operator]
        return {"weight": weight - update, "bias": bias}

    result = audit(
        own_norms,
        claimed=claim(1.0),
        attack="two-worlds",
        repeats=500,
        **counterexample(256),
    )
    assert result.passed is True
    assert result.epsilon_lower_bound > 2.5  # and the audit was able to see something


def layers(count: int, noise: float):
    """A canary moves all layers at once by their sensitivity; each has its own noise.

    As a private sum: the score of a canary collects its share from all layers.
    """

    def step(gradients: Tensor, *, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
        bounded = (gradients * (1.0 / norms).clamp(max=1)).sum(0)
        noisy = bounded + noise * torch.randn((count, len(bounded)), generator=generator)
        return noisy.mean(0)

    return step


def test_one_noise_per_layer_accounted_as_one_layer_is_refuted() -> None:
    """sigma = 1, q = 0.01, T = 1000, six layers: claimed 1.83, true 25.9."""
    statement = claim(1.0, 0.01, 1000)
    assert statement.epsilon == pytest.approx(1.83, abs=0.01)
    result = audit(
        layers(6, 1.0),
        claimed=statement,
        attack="gradient-canaries",
        clip=1.0,
        confidence=NIGHTLY,
    )
    assert result.passed is False
    assert 15 < result.epsilon_lower_bound < 25.95
    assert result.bound.noise_multiplier == pytest.approx(1 / math.sqrt(6), rel=0.1)


@pytest.mark.slow
def test_one_layer_passes_the_same_audit() -> None:
    result = audit(
        layers(1, 1.0),
        claimed=claim(1.0, 0.01, 1000),
        attack="gradient-canaries",
        clip=1.0,
        confidence=NIGHTLY,
    )
    assert result.passed is True


@pytest.mark.parametrize("bug", ["no clipping", "half the noise", "twice the rate"])
def test_common_bugs_are_refuted_through_gradients(bug: str) -> None:
    from mechanisms import dp_sgd_step

    rate = 0.1
    correct = claim(1.0, rate, 100)
    if bug == "twice the rate":  # only an attack that lets the mechanism sample can see it
        result = audit(
            dp_sgd_step(1.0, rate=2 * rate),
            claimed=correct,
            attack="stepwise-canaries",
            clip=1.0,
            steps=100,
            confidence=NIGHTLY,
        )
    else:
        step = dp_sgd_step(0.5) if bug == "half the noise" else dp_sgd_step(0.1, clip=10.0)
        result = audit(
            step,
            claimed=correct,
            attack="gradient-canaries",
            clip=1.0,
            repeats=5,
            confidence=NIGHTLY,
        )
    assert result.passed is False


def test_the_noise_model_of_a_claim_must_be_given_where_the_audit_chooses_batches() -> None:
    from mechanisms import dp_sgd_step

    with pytest.raises(ValueError, match="sampling"):
        audit(dp_sgd_step(1.0), claimed=0.2, delta=DELTA, attack="gradient-canaries", clip=1.0)
    result = audit(
        dp_sgd_step(1.0),
        claimed=0.2051,
        delta=DELTA,
        noise=NoiseModel(0.01, 1),
        attack="gradient-canaries",
        clip=1.0,
    )
    assert result.passed is True
