"""Both kinds of errors as one count, and whole trainings as one score."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from scipy.stats import binom, norm

from mechanisms import dp_sgd_step, exact_gaussian_epsilon, gaussian, laplace, randomised_response
from noisewise.auditing import NoiseModel, Scores, audit, bounds as b, run_canaries
from noisewise.auditing.bounds.direct import epsilon_from_total
from noisewise.auditing.bounds.thresholds import rates
from noisewise.privacy import PoissonGaussian, Statement

FALSE_ALARM = 1e-6
DELTA = 1e-5
NIGHTLY = 1 - 1e-6


def claim(noise: float, rate: float = 1.0, steps: int = 1, **kwargs: str) -> Statement:
    event = PoissonGaussian(noise, rate, steps)
    return Statement.derive(event, delta=DELTA, mechanism="test", **kwargs)


@given(total=st.floats(1e-3, 1.999), delta=st.floats(0, 0.3))
def test_epsilon_from_a_total_is_the_least_over_all_ways_to_split_it(
    total: float, delta: float
) -> None:
    alarms = np.linspace(max(0.0, total - 1) + 1e-9, min(1.0, total) - 1e-9, 2001)
    split = min(b.epsilon_from_rates(float(a), float(total - a), delta) for a in alarms)
    assert epsilon_from_total(total, delta) == pytest.approx(split, abs=5e-3)
    assert epsilon_from_total(total, delta) <= split + 1e-9


@given(noise=st.floats(0.3, 5), rate=st.floats(0.01, 1))
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_total_of_a_sampled_step_is_inverted_exactly(
    noise: float, rate: float, relation: str
) -> None:
    out = -1.0 if relation == "replace-one" else None

    def density(x: float, at: float | None) -> float:
        here = norm.pdf(x, 0, noise)
        return here if at is None else (1 - rate) * here + rate * norm.pdf(x, at, noise)

    reach = 12 * noise + 1
    distance = (
        0.5
        * quad(
            lambda x: abs(density(x, 1.0) - density(x, out)),
            -reach,
            reach,
            limit=400,
            points=[0, 0.5],
        )[0]
    )
    model = NoiseModel(rate, 1, "step", relation)
    assert model.noise_of_total(1 - distance) == pytest.approx(noise, rel=1e-4)


def test_the_distance_of_whole_trainings_is_an_upper_bound_and_close() -> None:
    exact, numeric = NoiseModel(1.0, 7, "run"), NoiseModel(1 - 1e-9, 7, "run")
    for noise in (0.8, 3.0):
        distance = exact.total_variation(noise)
        assert distance <= numeric.total_variation(noise) <= distance + 1e-3


def test_the_total_of_a_run_is_inverted_from_above() -> None:
    """The search stops within two thousandths, above."""
    model = NoiseModel(0.3, 4, "run")
    found = model.noise_of_total(1 - model.total_variation(1.1))
    assert found is not None
    assert 1.1 <= found <= 1.1 * 1.003


def test_totals_that_nothing_explains_refute_and_those_of_guessing_allow_all_noise() -> None:
    assert NoiseModel(0.1, 1, "step").noise_of_total(0.5) is None
    for observed in ("batch", "step", "run"):
        assert NoiseModel(0.1, 2, observed).noise_of_total(1.0) == math.inf


@pytest.mark.parametrize("level", [pytest.param(0.5, marks=pytest.mark.slow), 0.95])
@pytest.mark.parametrize("coins", [pytest.param(True, marks=pytest.mark.slow), False])
def test_bounds_with_a_midpoint_cover(level: float, coins: bool) -> None:
    """Audits of nine mechanisms; the midpoint alone takes half of the error."""
    rng = np.random.default_rng(31)
    cases = [
        (laplace(0.7), False),
        (randomised_response(0.4), False),
        (randomised_response(2.0), False),
        *((gaussian(mu), kind) for mu in (0.3, 1.0, 2.5) for kind in (True, False)),
    ]
    failures = 0
    # With coins every number of canaries is new, and its band has to be computed.
    trials = 150 if coins else 400
    for trial in range(trials):
        known, sharp = cases[trial % len(cases)]
        size = (30, 300)[trial % 2]
        inside, outside = known.draw(rng, size)
        if coins:
            bits = rng.random(2 * size) < 0.5
            inside, outside = known.draw(rng, 2 * size)
            inside, outside = inside[bits], outside[~bits]
        scores = Scores(inside, outside, midpoint=0.5, coins=coins)
        method = b.gaussian if sharp else b.clopper_pearson
        found = method(scores, delta=DELTA, confidence=level).epsilon
        failures += found > known.epsilon(DELTA) * (1 + 1e-9)
    assert failures <= binom.isf(FALSE_ALARM, trials, 1 - level), failures


@pytest.mark.parametrize("level", [0.5, 0.95])
@pytest.mark.parametrize("rates_", [(0.02, 0.7), (0.4, 0.4), (0.0, 0.9)])
def test_the_total_covers_with_unequal_rates(level: float, rates_: tuple[float, float]) -> None:
    """Counts of unequal trials are not binomial; Hoeffding's theorem makes the bound hold."""
    rng = np.random.default_rng(32)
    alarm, miss = rates_
    failures, trials = 0, 2000
    for _ in range(trials):
        inside = (rng.random(25) >= miss).astype(float)
        outside = (rng.random(25) < alarm).astype(float)
        found = rates(Scores(inside, outside, midpoint=0.5), "all", 1 - level)
        assert found.total is not None
        failures += found.total.rate < alarm + miss
    # Half of the error is spent here.
    assert failures <= binom.isf(FALSE_ALARM, trials, (1 - level) / 2), failures


def log_odds(rng: np.random.Generator, n: int, noise: float, rate: float, steps: int):
    """Scores of canaries in whole trainings, drawn directly."""

    def world(inside: bool) -> np.ndarray:
        x = rng.normal(0, noise, (steps, n)) + (inside & (rng.random((steps, n)) < rate))
        return np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2))).sum(axis=0)

    return Scores(world(True), world(False), midpoint=0.0)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_whole_trainings_are_covered(level: float) -> None:
    """The noise multiplier is bounded from above in 400 audits of sampled trainings.

    The bound is below the true one exactly if the total lies below what the true one allows.
    """
    rng = np.random.default_rng(33)
    noise, rate, steps = 1.0, 0.2, 10
    model = NoiseModel(rate, steps, "run")
    least = 1 - model.total_variation(noise)
    failures, trials = 0, 400
    for trial in range(trials):
        scores = log_odds(rng, (100, 1000)[trial % 2], noise, rate, steps)
        limits = rates(scores, "all", 1 - level)
        assert limits.total is not None
        failures += limits.total.rate < least
    assert failures <= binom.isf(FALSE_ALARM, trials, (1 - level) / 2), failures


def test_scores_of_whole_trainings_are_those_of_their_law() -> None:
    mechanism = dp_sgd_step(0.8, clip=2.0, rate=0.3)
    seen = run_canaries(
        mechanism,
        clip=2.0,
        noise_multiplier=0.8,
        sample_rate=0.3,
        steps=6,
        canaries=500,
        repeats=4,
    )
    drawn = log_odds(np.random.default_rng(1), 2000, 0.8, 0.3, 6)
    for ours, theirs in ((seen.inside, drawn.inside), (seen.outside, drawn.outside)):
        spread = math.sqrt((ours.var() + theirs.var()) / 2000)
        assert abs(ours.mean() - theirs.mean()) < 5.5 * spread
    assert seen.counts == (2000, 2000)
    assert "not the batches" in seen.threat_model


@pytest.mark.parametrize(
    ("noise", "rate", "relation", "share"),
    [
        pytest.param(1.0, 0.01, "add-remove", 0.6, marks=pytest.mark.slow),
        pytest.param(1.0, 0.1, "replace-one", 0.8, marks=pytest.mark.slow),
        pytest.param(2.0, 0.1, "add-remove", 0.8, marks=pytest.mark.slow),
    ],
)
def test_a_hundred_steps_of_hidden_batches_show_most_of_their_epsilon(
    noise: float, rate: float, relation: str, share: float
) -> None:
    result = audit(
        dp_sgd_step(noise, rate=rate),
        claimed=claim(noise, rate, 100, relation=relation),
        attack="run-canaries",
        clip=1.0,
        relation=relation,
    )
    assert result.passed is True
    assert result.tightness is not None
    assert result.tightness >= share
    assert not any("did not check the sampler" in text for text in result.assumptions)


@pytest.mark.parametrize(
    "bug", [pytest.param("twice the rate", marks=pytest.mark.slow), "clipped to twice the norm"]
)
def test_wrong_trainings_are_refuted_as_a_whole(bug: str) -> None:
    mechanism = {
        "twice the rate": dp_sgd_step(1.0, rate=0.04),
        "clipped to twice the norm": dp_sgd_step(0.5, clip=2.0, rate=0.02),
    }[bug]
    result = audit(
        mechanism,
        claimed=claim(1.0, 0.02, 30),
        attack="run-canaries",
        clip=1.0,
        confidence=NIGHTLY,
    )
    assert result.passed is False


@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_four_fifths_of_one_step_are_seen_at_much_noise_too(noise: float) -> None:
    result = audit(
        dp_sgd_step(noise), claimed=claim(noise), attack="gradient-canaries", clip=1.0, seed=5
    )
    assert result.passed is True
    assert result.tightness is not None
    assert result.tightness >= 0.8


def test_adding_up_is_sharper_than_one_by_one() -> None:
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(0.25, 1, 10_000), rng.normal(0, 1, 10_000)
    together = b.gaussian(Scores(inside, outside, midpoint=0.125), delta=DELTA).epsilon
    apart = b.gaussian(Scores(inside, outside), delta=DELTA, threshold=0.125).epsilon
    assert apart < together < exact_gaussian_epsilon(0.25, DELTA)
