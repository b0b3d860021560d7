"""Every bound on mechanisms of known epsilon: it exceeds the truth no more often than stated.

Each test draws many mechanisms, counts how often the bound is above the true epsilon, and
fails if so many failures had probability below 1e-6 at the stated error rate. Besides 95 per
cent the level of 50 per cent is tested, where a wrong bound shows far sooner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from mechanisms import (
    Known,
    exact_gaussian_epsilon,
    gaussian,
    laplace,
    randomised_response,
    sampled_step,
)
from noisewise.auditing import NoiseModel, Scores, bounds as b
from noisewise.auditing.bounds.one_run import guesses, p_value
from noisewise.auditing.bounds.thresholds import rates

FALSE_ALARM = 1e-6
DELTA = 1e-5
LEVELS = [0.5, 0.95]
#: For bounds that take long: the level at which faults show far sooner by default.
FIRST = [0.5, pytest.param(0.95, marks=pytest.mark.slow)]
SIZES = (30, 100, 400)
GENERAL = [
    laplace(1.0),
    laplace(0.4),
    randomised_response(0.5),
    randomised_response(2.0),
    gaussian(0.7),
    gaussian(2.0),
    sampled_step(0.7, 0.3),
    sampled_step(0.4, 0.1),
]
BOUND = Callable[[Scores, float], float]


def count_failures(
    bound: BOUND, mechanisms: list[Known], sizes: tuple[int, ...], trials: int, delta: float
) -> int:
    """How often the bound exceeds the truth, in `trials` audits of all mechanisms in turn."""
    rng = np.random.default_rng(20)
    failures = 0
    cases = itertools.cycle(itertools.product(mechanisms, sizes))
    truths = {mechanism.name: mechanism.epsilon(delta) for mechanism in mechanisms}
    for mechanism, size in itertools.islice(cases, trials):
        inside, outside = mechanism.draw(rng, size)
        value = bound(Scores(inside, outside, coins=True), delta)
        failures += value > truths[mechanism.name] * (1 + 1e-9)
    return failures


def assert_covers(failures: int, trials: int, error: float) -> None:
    assert failures <= binom.isf(FALSE_ALARM, trials, error), f"{failures} of {trials}"


def noise_bound(model: NoiseModel, level: float) -> BOUND:
    """One over the bound on the noise multiplier: the step before the accountant, which is slow."""

    def bound(scores: Scores, _: float) -> float:
        limits = rates(scores, "all", 1 - level)
        found, _index = model.tightest(limits.false_positive, limits.false_negative)
        return math.inf if found is None else 1 / found

    return bound


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("threshold", ["all", "split", 0.5])
def test_clopper_pearson_covers_every_kind_of_mechanism(
    level: float, delta: float, threshold: str | float
) -> None:
    known = GENERAL if delta > 0 else GENERAL[:4]  # Gaussian noise has no pure epsilon
    failures = count_failures(
        lambda s, d: b.clopper_pearson(s, delta=d, confidence=level, threshold=threshold).epsilon,
        known,
        SIZES,
        trials=400,
        delta=delta,
    )
    assert_covers(failures, 400, 1 - level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threshold", ["all", "split", 0.5])
def test_gaussian_covers_gaussian_noise(level: float, threshold: str | float) -> None:
    failures = count_failures(
        lambda s, d: b.gaussian(s, delta=d, confidence=level, threshold=threshold).epsilon,
        [gaussian(mu) for mu in (0.3, 0.7, 1.0, 2.0, 4.0)],
        SIZES,
        trials=600,
        delta=DELTA,
    )
    assert_covers(failures, 600, 1 - level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.3), (1.0, 0.5)])
def test_gaussian_covers_a_sampled_step(level: float, noise: float, rate: float) -> None:
    model = NoiseModel(rate, 1, "step")

    known = Known("noise", sampled_step(noise, rate).draw, lambda _: 1 / noise)
    bound = noise_bound(model, level)
    failures = count_failures(bound, [known], (100, 1000), trials=400, delta=0.1)
    assert_covers(failures, 400, 1 - level)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_gaussian_covers_a_run_of_sampled_steps(level: float) -> None:
    noise, rate, steps = 1.0, 0.3, 8
    model = NoiseModel(rate, steps, "run")

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        def ratio(inside: bool) -> np.ndarray:
            x = rng.normal(0, noise, (steps, n)) + (inside & (rng.random((steps, n)) < rate))
            return np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2))).sum(axis=0)

        return ratio(True), ratio(False)

    known = Known("noise", draw, lambda _: 1 / noise)
    bound = noise_bound(model, level)
    failures = count_failures(bound, [known], (200, 2000), trials=400, delta=1e-3)
    assert_covers(failures, 400, 1 - level)


def test_plain_gaussian_noise_is_the_wrong_model_of_a_sampled_step() -> None:
    """The control: without the sampled trade-off curve the bound is above the truth."""
    failures = count_failures(
        lambda s, d: b.gaussian(s, delta=d, model=NoiseModel()).epsilon,
        [sampled_step(0.5, 0.3)],
        (4000,),
        trials=20,
        delta=0.2,
    )
    assert failures == 20


@pytest.mark.parametrize("level", LEVELS)
def test_one_run_covers_randomised_response_where_it_is_tight(level: float) -> None:
    failures = count_failures(
        lambda s, d: b.one_run(s, delta=d, confidence=level).epsilon,
        [randomised_response(e) for e in (0.3, 1.0, 2.0)],
        (30, 150),
        trials=600,
        delta=0.0,
    )
    assert_covers(failures, 600, 1 - level)


@pytest.mark.parametrize("level", LEVELS)
def test_one_run_covers_other_mechanisms_with_delta(level: float) -> None:
    failures = count_failures(
        lambda s, d: b.one_run(s, delta=d, confidence=level).epsilon,
        GENERAL,
        (30, 200),
        trials=240,
        delta=DELTA,
    )
    assert_covers(failures, 240, 1 - level)


@pytest.mark.parametrize("level", LEVELS)
def test_one_run_covers_canaries_that_are_all_right_or_all_wrong_together(level: float) -> None:
    """With delta, an output may reveal every coin at once; independence would be refuted."""
    rng = np.random.default_rng(5)
    delta, size, trials, failures = 0.01, 50, 600, 0
    for _ in range(trials):
        coins = rng.random(size) < 0.5
        # (0, delta)-DP: with probability delta each run reveals everything, else nothing.
        scores = coins + 0.1 * rng.random(size) if rng.random() < delta else rng.random(size)
        found = Scores(scores[coins], scores[~coins], design="one-run", coins=True)
        failures += b.one_run(found, delta=delta, confidence=level).epsilon > 0
    assert_covers(failures, trials, 1 - level)


@pytest.mark.parametrize("level", FIRST)
def test_one_run_tradeoff_covers_gaussian_noise(level: float) -> None:
    failures = count_failures(
        lambda s, d: b.one_run_tradeoff(s, delta=d, confidence=level).epsilon,
        [gaussian(mu) for mu in (0.5, 1.0, 2.0)],
        (30, 200),
        trials=240,
        delta=DELTA,
    )
    assert_covers(failures, 240, 1 - level)


@pytest.mark.parametrize("level", FIRST)
def test_one_run_tradeoff_covers_canaries_that_share_their_noise(level: float) -> None:
    """All canaries in one direction: their sum is 1-GDP in each, and they depend wholly."""
    rng = np.random.default_rng(6)
    truth, trials, failures = exact_gaussian_epsilon(1.0, DELTA), 400, 0
    for _ in range(trials):
        coins = rng.random(40) < 0.5
        total = coins.sum() + rng.normal()
        scores = np.full(40, float(total))
        found = Scores(scores[coins], scores[~coins], design="one-run", coins=True)
        failures += b.one_run_tradeoff(found, delta=DELTA, confidence=level).epsilon > truth
    assert_covers(failures, trials, 1 - level)


@pytest.mark.parametrize("level", [0.5, pytest.param(0.9, marks=pytest.mark.slow)])
def test_joint_beta_is_right_on_average_over_its_prior_which_is_all_it_claims(
    level: float,
) -> None:
    rng = np.random.default_rng(7)
    size, trials, below = 60, 500, 0
    for _ in range(trials):
        alarm, miss = rng.beta(0.5, 0.5, 2)
        inside = (rng.random(size) >= miss).astype(float)
        outside = (rng.random(size) < alarm).astype(float)
        bound = b.joint_beta(Scores(inside, outside, midpoint=0.5), delta=0.01, confidence=level)
        truth = max(
            b.epsilon_from_rates(alarm, miss, 0.01), b.epsilon_from_rates(1 - alarm, 1 - miss, 0.01)
        )
        # Where the posterior puts the level's worth of mass on epsilon 0 the bound is 0, an atom.
        below += bound.epsilon <= truth
    assert below >= binom.ppf(FALSE_ALARM, trials, level)
    assert below <= binom.isf(FALSE_ALARM, trials, min(1.0, level + 0.12))


@pytest.mark.parametrize("level", FIRST)
def test_the_normal_estimate_covers_if_the_scores_are_normal(level: float) -> None:
    rng = np.random.default_rng(8)
    trials, failures, used = 400, 0, 0
    for _ in range(trials):
        scores = Scores(rng.normal(1, 1, 200), rng.normal(0, 1, 200))
        if b.looks_normal(scores) is None:
            used += 1
            found = b.normal_estimate(scores, delta=DELTA, confidence=level)
            failures += found.epsilon > exact_gaussian_epsilon(1.0, DELTA)
    assert used > 350
    # Its level is exact, so the count is bounded on both sides. Selection by the
    # normality tests, independent of the means, does not matter.
    assert_covers(failures, used, 1 - level)
    assert failures >= binom.ppf(FALSE_ALARM, used, 1 - level)


def test_a_bound_shrunk_error_or_a_forgotten_union_would_be_noticed() -> None:
    """The power of these tests: guessing as often as one likes without paying for it fails."""
    rng = np.random.default_rng(9)
    trials, failures = 600, 0
    for _ in range(trials):
        known = randomised_response(0.3)
        inside, outside = known.draw(rng, 150)
        found = guesses(Scores(inside, outside, coins=True))
        failures += any(p_value(guess, 0.3, 0.0) <= 0.5 for guess in found)
    with pytest.raises(AssertionError):
        assert_covers(failures, trials, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("method", ["clopper-pearson", "gaussian", "one-run", "one-run-tradeoff"])
def test_coverage_over_four_thousand_mechanisms(method: str, level: float) -> None:
    functions: dict[str, Callable[..., b.Bound]] = {
        "clopper-pearson": b.clopper_pearson,
        "gaussian": b.gaussian,
        "one-run": b.one_run,
        "one-run-tradeoff": b.one_run_tradeoff,
    }
    family = [gaussian(mu) for mu in (0.3, 0.7, 1.0, 2.0, 4.0)]
    known = GENERAL if method in ("clopper-pearson", "one-run") else family
    failures = count_failures(
        lambda s, d: functions[method](s, delta=d, confidence=level).epsilon,
        known,
        (30, 100, 400),
        trials=4000,
        delta=DELTA,
    )
    assert_covers(failures, 4000, 1 - level)
