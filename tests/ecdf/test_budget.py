"""Budgets: Gaussian deltas, and the price of integer noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from noisewise.ecdf.budget import (
    Budget,
    concentrated_delta,
    concentrated_rho,
    discreteness_slack,
    gaussian_delta,
    gaussian_ratio,
)
from noisewise.privacy.accounting import epsilon_of
from noisewise.privacy.events import ZeroConcentrated


@given(st.floats(0.05, 3), st.floats(0.05, 5))
def test_gaussian_delta_is_the_hockey_stick_divergence(ratio: float, epsilon: float) -> None:
    def positive_part(z: float) -> float:
        return max(0.0, norm.pdf(z, ratio) - math.exp(epsilon) * norm.pdf(z))

    crossing = epsilon / ratio + ratio / 2
    expected, _ = quad(positive_part, crossing, crossing + 40, epsabs=1e-14, limit=200)
    value = gaussian_delta(ratio, epsilon)
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-13)


@given(st.floats(0.01, 8), st.floats(-12, -0.5))
def test_the_ratio_spends_delta_and_not_more(epsilon: float, exponent: float) -> None:
    delta = 10.0**exponent
    ratio = gaussian_ratio(epsilon, delta)
    assert gaussian_delta(ratio, epsilon) <= delta
    assert gaussian_delta(ratio * 1.0001, epsilon) > delta


@pytest.mark.parametrize("deviation", [0.7, 1.0, 2.5, 10.0, 40.0])
def test_slack_bounds_the_distance_of_integer_from_rounded_gaussian_noise(
    deviation: float,
) -> None:
    k = np.arange(-int(60 * deviation), int(60 * deviation) + 1)
    weight = np.exp(-(k**2) / (2 * deviation**2))
    integer = weight / weight.sum()
    rounded = norm.cdf((k + 0.5) / deviation) - norm.cdf((k - 0.5) / deviation)
    distance = np.abs(integer - rounded).sum() / 2
    bound = discreteness_slack(deviation, 1, 0.0) / 2
    assert distance <= bound
    if deviation >= 2:
        assert distance > bound / 4


@given(st.floats(1e-3, 1.0), st.floats(0.1, 5))
def test_zcdp_conversion_is_never_below_the_exact_gaussian(rho: float, epsilon: float) -> None:
    assert concentrated_delta(rho, epsilon) >= gaussian_delta(math.sqrt(2 * rho), epsilon) - 1e-15


def test_no_noise_is_large_enough_for_epsilon_zero() -> None:
    with pytest.raises(ValueError, match="epsilon must be > 0"):
        Budget(0.0)
    with pytest.raises(ValueError, match="delta"):
        Budget(1.0, 1.0)
    with pytest.raises(ValueError, match="rho"):
        Budget.concentrated(-1.0)


def test_least_deviation_keeps_the_slack_within_its_share() -> None:
    budget = Budget(1.0, 1e-6)
    deviation = budget.least_deviation(1000)
    assert discreteness_slack(deviation, 1000, 1.0) <= 1e-6 / 1024


@given(st.floats(8, 1000), st.floats(1e-12, 1e-2))
@settings(deadline=None, max_examples=20)
def test_the_concentrated_budget_is_the_largest_that_fits(epsilon: float, delta: float) -> None:
    rho = concentrated_rho(epsilon, delta)
    assert concentrated_delta(rho, epsilon) <= delta
    assert concentrated_delta(rho * 1.1, epsilon) > delta
    assert epsilon_of(ZeroConcentrated(rho), delta=delta, accountant="rdp") <= epsilon
