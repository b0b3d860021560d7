"""Attacks: scores are what they say, and correct mechanisms pass while the audit can see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from mechanisms import dp_sgd_step, linear_train
from noisewise.auditing import (
    NoiseModel,
    Scores,
    audit,
    gradient_canaries,
    membership,
    one_run_losses,
    stepwise_canaries,
    two_worlds,
)
from noisewise.errors import RelationError
from noisewise.privacy import Laplace, PoissonGaussian, Statement

NIGHTLY = 1 - 1e-6


def claim(noise: float, rate: float = 1.0, steps: int = 1, **kwargs: str) -> Statement:
    event = PoissonGaussian(noise, rate, steps)
    return Statement.derive(event, delta=1e-5, mechanism="test", **kwargs)


@given(noise=st.floats(0.05, 3), clip=st.floats(0.01, 100), count=st.integers(1, 50))
@settings(max_examples=25)
def test_scores_of_gradient_canaries_are_one_or_zero_plus_noise_in_units_of_the_clip(
    noise: float, clip: float, count: int
) -> None:
    scores = gradient_canaries(
        dp_sgd_step(noise, clip), clip=clip, canaries=count, repeats=2000 // count + 1
    )
    deviations = noise / np.sqrt(min(scores.counts))
    assert abs(scores.inside.mean() - 1) < 7 * deviations
    assert abs(scores.outside.mean()) < 7 * deviations
    total = sum(scores.counts)
    assert abs(scores.counts[0] / total - 0.5) < 7 * 0.5 / np.sqrt(total)


def test_under_replace_one_canaries_contribute_both_signs() -> None:
    scores = gradient_canaries(dp_sgd_step(0.01), clip=1.0, canaries=100, relation="replace-one")
    assert scores.inside.mean() == pytest.approx(1, abs=0.01)
    assert scores.outside.mean() == pytest.approx(-1, abs=0.01)
    assert scores.midpoint == 0.0


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_one_step_of_a_correct_mechanism_passes_and_four_fifths_of_its_epsilon_are_seen(
    noise: float, relation: str
) -> None:
    result = audit(
        dp_sgd_step(noise),
        claimed=claim(noise, relation=relation),
        attack="gradient-canaries",
        clip=1.0,
        relation=relation,
    )
    assert result.passed is True
    assert result.tightness is not None
    assert result.tightness >= 0.8


@pytest.mark.parametrize(
    "relation", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)]
)
def test_a_hundred_sampled_steps_pass_and_three_fifths_of_their_epsilon_are_seen(
    relation: str,
) -> None:
    statement = claim(1.0, 0.1, 100, relation=relation)
    common = {"claimed": statement, "clip": 1.0, "relation": relation}
    seen = audit(dp_sgd_step(1.0), attack="gradient-canaries", **common)
    blind = audit(dp_sgd_step(1.0, rate=0.1), attack="stepwise-canaries", steps=100, **common)
    for result in (seen, blind):
        assert result.passed is True
        assert result.tightness is not None
        assert result.tightness >= 0.6
    assert any("did not check the sampler" in text for text in seen.assumptions)
    assert not any("did not check the sampler" in text for text in blind.assumptions)


def test_stepwise_canaries_accept_a_step_without_records() -> None:
    scores = stepwise_canaries(dp_sgd_step(1.0, rate=0.5), clip=1.0, canaries=10, steps=3)
    assert scores.counts == (30, 30)
    assert scores.observed == "step"


def test_a_mechanism_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="one sum of shape"):
        gradient_canaries(lambda gradients, *, seed: gradients, clip=1.0, canaries=4)


# --- through a training function


def inputs(records: int = 20, width: int = 6) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, width, generator=generator, dtype=torch.float64)
    return {
        "init": {"weight": torch.zeros(1, width, dtype=torch.float64)},
        "data": (x, x.sum(1)),
        "canary": (5 * torch.ones(1, width, dtype=torch.float64), torch.tensor([-50.0]).double()),
    }


def test_two_worlds_over_several_steps_need_a_claim_about_just_these() -> None:
    common = {"attack": "two-worlds", "clip": 0.7, "noise_multiplier": 1.0, "lr": 1e-3, **inputs()}
    result = audit(linear_train, claimed=claim(1.0, steps=4), steps=4, repeats=300, **common)
    assert result.passed is True
    assert result.epsilon_lower_bound > 4  # of 9.997: four steps are twice the distance of one
    assert "4 steps on all of the data" in result.threat_model
    for wrong in (claim(1.0, 0.5, 4), claim(1.0, 1.0, 3), 3.0):
        delta = 1e-5 if isinstance(wrong, float) else None
        with pytest.raises(ValueError, match="steps without sampling"):
            audit(linear_train, claimed=wrong, delta=delta, steps=4, repeats=3, **common)


def test_two_worlds_of_a_correct_training_pass_and_are_seen_clearly() -> None:
    result = audit(
        linear_train,
        claimed=claim(1.0),
        attack="two-worlds",
        clip=0.7,
        noise_multiplier=1.0,
        lr=0.3,
        repeats=1500,
        **inputs(),
    )
    assert result.passed is True
    assert result.tightness is not None
    assert result.tightness > 0.7
    assert result.estimate is not None


def test_two_worlds_see_that_one_record_moves_the_sum_by_the_clip() -> None:
    scores = two_worlds(linear_train, clip=0.7, noise_multiplier=0.05, repeats=50, **inputs())
    assert scores.midpoint == pytest.approx(0.5)
    assert scores.inside.mean() == pytest.approx(1.0, abs=0.05)
    assert scores.outside.mean() == pytest.approx(0.0, abs=0.05)


def test_two_worlds_refute_batch_clipping() -> None:
    def batch_clipped(**settings: object) -> dict[str, Tensor]:
        x, y = settings["data"]  # type: ignore[misc]
        weight = settings["init"]["weight"]  # type: ignore[index]
        mean = (2 * (x @ weight[0] - y)[:, None] * x).sum(0)
        clip = settings["clip"] * len(x)  # type: ignore[operator]
        total = mean * min(1.0, clip / float(mean.norm()))
        generator = torch.Generator().manual_seed(settings["seed"])  # type: ignore[arg-type]
        noise = torch.randn(total.shape, generator=generator, dtype=total.dtype)
        total = total + settings["noise_multiplier"] * settings["clip"] * noise  # type: ignore[operator]
        return {"weight": weight - settings["lr"] * total / settings["batch_size"]}  # type: ignore[operator]

    result = audit(
        batch_clipped,
        claimed=claim(1.0),
        attack="two-worlds",
        clip=0.7,
        noise_multiplier=1.0,
        repeats=300,
        confidence=NIGHTLY,
        **inputs(),
    )
    assert result.passed is False


def test_a_canary_without_effect_is_refused() -> None:
    idle = {**inputs(), "canary": (torch.zeros(1, 6).double(), torch.zeros(1).double())}
    with pytest.raises(ValueError, match="does not change a step"):
        two_worlds(linear_train, clip=1.0, noise_multiplier=1.0, repeats=3, **idle)


def model() -> torch.nn.Module:
    return torch.nn.Linear(60, 1, bias=False).double()


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target) ** 2


def black_box(noise: float, steps: int = 1, count: int = 50) -> dict[str, object]:
    generator = torch.Generator().manual_seed(1)
    x = torch.linalg.qr(torch.randn(60, 60, generator=generator).double()).Q[:count]
    return {
        "init": {"weight": torch.zeros(1, 60).double()},
        "model_fn": model,
        "loss_fn": squared,
        "data": (x[:0], torch.zeros(0).double()),
        "canaries": (x, torch.ones(count).double()),
        "settings": {
            "clip": 1.0, "noise_multiplier": noise, "batch_size": 25, "steps": steps, "lr": 5.0,
        },
    }  # fmt: skip


def fixed_rate(**settings: object) -> dict[str, Tensor]:
    """Correct training with batches of everything, whatever the number of records."""
    size = len(settings["data"][0])  # type: ignore[index]
    public = settings["batch_size"]
    settings["lr"] = settings["lr"] * size / public  # type: ignore[operator]
    settings["batch_size"] = size
    return linear_train(**settings)  # type: ignore[arg-type]


def test_one_run_of_a_training_without_noise_is_refuted() -> None:
    result = audit(
        fixed_rate, claimed=1.0, delta=1e-5, attack="one-run", confidence=0.999, **black_box(0.01)
    )
    assert result.passed is False
    assert result.method == "one-run"
    assert result.epsilon_lower_bound <= result.largest_certifiable < 6


def test_one_run_of_a_private_training_passes() -> None:
    result = audit(
        fixed_rate, claimed=claim(2.0), attack="one-run", confidence=NIGHTLY, **black_box(2.0)
    )
    assert result.passed is True
    assert result.method == "one-run-tradeoff"


def test_scores_of_one_run_are_refused_where_independence_is_needed() -> None:
    scores = one_run_losses(fixed_rate, **black_box(1.0))
    assert scores.design == "one-run"
    for method in ("clopper-pearson", "joint-beta"):
        with pytest.raises(ValueError, match="influence each other"):
            audit(scores, claimed=1.0, delta=1e-5, method=method)


@pytest.mark.parametrize("score", ["loss", "likelihood-ratio"])
def test_membership_of_a_record_is_found_without_noise_and_hidden_with_it(score: str) -> None:
    options = black_box(0.02, count=10)
    x, y = options.pop("canaries")  # type: ignore[misc]
    options |= {"data": (x[1:], y[1:]), "canary": (x[:1], y[:1]), "repeats": 150, "score": score}
    leaky = audit(fixed_rate, claimed=1.0, delta=1e-5, attack="membership", **options)
    assert leaky.passed is False
    options["settings"] = {**options["settings"], "noise_multiplier": 5.0}  # type: ignore[dict-item]
    quiet = audit(
        fixed_rate, claimed=claim(5.0), attack="membership", confidence=NIGHTLY, **options
    )
    assert quiet.passed is True


def test_the_likelihood_ratio_is_fitted_on_runs_that_are_not_scored() -> None:
    options = black_box(1.0, count=10)
    x, y = options.pop("canaries")  # type: ignore[misc]
    options |= {"data": (x[1:], y[1:]), "canary": (x[:1], y[:1])}
    scores = membership(fixed_rate, repeats=30, score="likelihood-ratio", **options)
    assert scores.counts == (20, 20)


def test_a_loss_that_is_already_reduced_is_refused() -> None:
    options = black_box(1.0)
    options["loss_fn"] = lambda output, target: squared(output, target).mean()
    with pytest.raises(ValueError, match="one loss per record"):
        one_run_losses(fixed_rate, **options)


# --- one call for all


def test_the_relation_of_the_attack_must_be_that_of_the_claim() -> None:
    with pytest.raises(RelationError, match="choose the attack's relation"):
        audit(
            dp_sgd_step(1.0),
            claimed=claim(1.0, relation="replace-one"),
            attack="gradient-canaries",
            clip=1.0,
        )


def test_a_laplace_claim_is_audited_without_a_noise_model() -> None:
    rng = np.random.default_rng(0)
    scores = Scores(rng.laplace(1, 1, 3000), rng.laplace(0, 1, 3000))
    statement = Statement.derive(Laplace(1.0), delta=0.0, mechanism="Laplace")
    result = audit(scores, claimed=statement)
    assert result.method == "clopper-pearson"
    assert result.passed is True
    assert result.epsilon_lower_bound > 0.6


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"claimed": 1.0}, "delta must be given"),
        ({"claimed": -1.0, "delta": 1e-5}, "claimed must be >= 0"),
        ({"claimed": 1.0, "delta": 1e-5, "method": "best"}, "method must be one of"),
        ({"claimed": 1.0, "delta": 1e-5, "confidence": 1.0}, "confidence must lie in"),
        ({"claimed": 1.0, "delta": 1e-5, "method": "gaussian"}, "noise=NoiseModel"),
        ({"claimed": 1.0, "delta": 0.0, "method": "gaussian", "noise": NoiseModel()}, "delta > 0"),
        ({"claimed": 1.0, "delta": 1e-5, "clip": 2.0}, "do nothing: clip"),
        ({"claimed": claim(1.0), "delta": 1e-6}, "delta must be that of the statement"),
    ],
)
def test_contradictory_requests_are_refused(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(Scores([1.0, 2.0], [0.0, 0.5]), **kwargs)  # type: ignore[arg-type]


def test_a_function_needs_an_attack() -> None:
    with pytest.raises(ValueError, match="attack must be given"):
        audit(dp_sgd_step(1.0), claimed=1.0, delta=1e-5)
    with pytest.raises(TypeError, match="target must be Scores"):
        audit("scores.csv", claimed=1.0, delta=1e-5)  # type: ignore[arg-type]
