"""Circulant noise: exact sensitivity by brute force, closed forms by linear algebra, records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.mechanisms import Setting, circulant_mechanism, plan
from noisewise.ecdf.mechanisms.circulant import PinnedCirculant, inverse_column
from noisewise.privacy.randomness import Randomness

APPROXIMATE, CONCENTRATED = Budget(1.0, 1e-6), Budget.concentrated(0.5)
OBJECTIVES = ("mean", "max")


def matrix_of(strategy: PinnedCirculant) -> np.ndarray:
    """From the histogram to the measurements, column by column, by definition."""
    places, points = strategy.kernel.size, strategy.setting.points
    circulant = scipy.linalg.circulant(strategy.kernel)[:, :points]
    prefix = np.tril(np.ones((points, strategy.setting.bins), np.int64))
    assert circulant.shape == (places, points)
    return np.asarray(circulant @ prefix)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bins", [2, 3, 4, 5, 16, 33, 70])
@pytest.mark.parametrize("budget", [APPROXIMATE, CONCENTRATED], ids=str)
def test_the_squared_sensitivity_is_attained_and_never_exceeded(
    budget: Budget, bins: int, objective: str
) -> None:
    mechanism = circulant_mechanism(Setting(bins, True), budget, objective=objective)  # type: ignore[arg-type]
    strategy = mechanism.strategy
    assert isinstance(strategy, PinnedCirculant)
    matrix = matrix_of(strategy)
    worst = max(
        sum(int(d) ** 2 for d in matrix[:, a] - matrix[:, b])
        for a, b in itertools.combinations(range(bins), 2)
    )
    assert strategy.shift("interval", "l2-squared") == (worst,)
    assert mechanism.ratio_squared <= budget.ratio**2 * (1 + 1e-12)
    assert mechanism.ratio_squared >= budget.ratio**2 * (1 - 1e-6)
    if budget.kind == "approximate":
        assert 0.99e-6 < mechanism.delta(1.0) <= 1e-6


@given(st.integers(2, 60), st.sampled_from(OBJECTIVES), st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_measurements_are_the_integer_matrix_and_come_back(
    bins: int, objective: str, seed: int
) -> None:
    mechanism = circulant_mechanism(Setting(bins, True), APPROXIMATE, objective=objective)  # type: ignore[arg-type]
    strategy = mechanism.strategy
    assert isinstance(strategy, PinnedCirculant)
    counts = np.random.default_rng(seed).integers(0, 10**6, bins)
    measured = strategy.measure(counts)
    assert measured.dtype == np.int64
    assert np.array_equal(measured, matrix_of(strategy) @ counts)
    back = strategy.reconstruct(measured, float(counts.sum()))
    assert np.allclose(back, np.cumsum(counts), rtol=1e-10, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bins", [2, 3, 10, 75, 200])
def test_read_out_is_least_squares_and_its_variance_the_closed_form(
    bins: int, objective: str
) -> None:
    mechanism = circulant_mechanism(Setting(bins, True), CONCENTRATED, objective=objective)  # type: ignore[arg-type]
    strategy = mechanism.strategy
    assert isinstance(strategy, PinnedCirculant)
    circulant = scipy.linalg.circulant(strategy.kernel)[:, : bins - 1].astype(float)
    best = np.linalg.pinv(circulant)
    found = strategy.reconstruct(np.eye(strategy.kernel.size), 0.0).T
    assert np.allclose(found[:-1], best, rtol=0, atol=1e-9 * np.abs(best).max())
    assert not found[-1].any()
    variance = (best**2).sum(1) * mechanism.noise[0].variance
    assert np.allclose(mechanism.variance[:-1], variance, rtol=1e-8)
    assert mechanism.variance[-1] == 0
    assert not mechanism.total_covariance.any()


def test_released_counts_have_the_stated_variance() -> None:
    # A mean of 1000 independent numbers, each a mean of squares of standard Gaussian numbers:
    # deviation at most sqrt(2 / 1000) = 0.045; six of them, false alarm below 1e-8.
    mechanism = plan(32, "replace-one", APPROXIMATE, mechanism="circulant")
    rng, counts = Randomness.seeded(3), np.arange(32)
    errors = np.array([noisy_counts(mechanism, counts, rng) for _ in range(1000)]) - np.cumsum(
        counts
    )
    standardised = errors[:, :-1] ** 2 / mechanism.variance[:-1]
    assert abs(standardised.mean() - 1) < 0.27
    simulated = mechanism.simulate(np.random.default_rng(5), 4000)[:, :-1]
    ratio = (simulated**2).mean(0) / mechanism.variance[:-1]
    assert np.abs(ratio - 1).max() < 0.16  # seven deviations of sqrt(2 / 4000)


@given(st.integers(1, 60), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_first_column_of_a_toeplitz_inverse(count: int, seed: int) -> None:
    column = np.random.default_rng(seed).normal(size=count)
    column[0] = np.abs(column).sum() + 0.1  # diagonally dominant
    inverse = np.linalg.inv(scipy.linalg.toeplitz(column))
    assert np.allclose(inverse_column(column), inverse[0], atol=1e-10)


# Variance at rho = 1/2: mean of the square root, flat circulant (largest), as published.
RECORDS = {8: (11.2, 11.5), 10: (16.0, 16.1), 12: (21.9, 21.9), 15: (31.0, 31.1)}


@pytest.mark.parametrize("height", list(RECORDS))
def test_no_worse_than_the_square_root_in_the_mean_nor_than_flat_noise_at_most(height: int) -> None:
    mean, largest = RECORDS[height]
    setting = Setting(2**height, True)
    assert circulant_mechanism(setting, CONCENTRATED).mean_variance < 0.93 * mean
    best = circulant_mechanism(setting, CONCENTRATED, objective="max")
    assert best.max_variance < 0.97 * largest


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bins", [64, 1024, 2**13])
def test_auto_takes_it_where_it_is_best(bins: int, objective: str) -> None:
    chosen = plan(bins, "replace-one", CONCENTRATED, objective=objective)  # type: ignore[arg-type]
    own = plan(bins, "replace-one", CONCENTRATED, mechanism="circulant", objective=objective)  # type: ignore[arg-type]
    assert "circulant" in chosen.reason
    if objective == "mean":
        assert chosen.mean_variance <= own.mean_variance
    else:
        assert chosen.max_variance <= own.max_variance
    if bins > 2**12:
        assert chosen.name == "circulant"


def test_it_is_refused_where_it_has_no_guarantee() -> None:
    with pytest.raises(ValueError, match="delta > 0"):
        plan(64, "replace-one", Budget(1.0), mechanism="circulant")
    with pytest.raises(ValueError, match="public number of records"):
        plan(64, "add-remove", APPROXIMATE, mechanism="circulant")
    with pytest.raises(ValueError, match="public number of records"):
        plan(64, "replace-one", APPROXIMATE, mechanism="circulant", change="joint")
    strategy = plan(64, "replace-one", APPROXIMATE, mechanism="circulant").strategy
    with pytest.raises(ValueError, match="Gaussian"):
        strategy.shift("suffix", "l2-squared")
    counts = np.zeros(64, np.int64)
    counts[3] = 2**50
    with pytest.raises(OverflowError):
        strategy.measure(counts)
