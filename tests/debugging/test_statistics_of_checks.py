"""The hypothesis tests: right level under the null, power against the mistakes they are for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from noisewise.debugging.statistics import (
    LEVEL,
    binomial,
    coincidences,
    correlation,
    family_bound,
    goodness_of_fit,
    kurtosis,
    normal_shape,
    slope_test,
    variance_ratio,
)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(300, 5000), st.floats(1e-6, 1e6))
def test_gaussian_noise_is_not_accused(seed, count, scale):
    # 40 draws of three tests at level 1e-7: a false alarm has probability 1.2e-5.
    values = scale * np.random.default_rng(seed).standard_normal(count)
    assert variance_ratio(float(np.sum(values**2)), scale**2, count) > LEVEL
    assert min(normal_shape(values)) > LEVEL


def test_p_values_of_the_variance_test_are_uniform():
    rng = np.random.default_rng(0)
    p = [variance_ratio(float(np.sum(rng.standard_normal(50) ** 2)), 1.0, 50) for _ in range(4000)]
    # Deviation of a share of 4000: 0.005 at 0.1. Six of them: 1e-9.
    assert abs(np.mean(np.asarray(p) < 0.1) - 0.1) < 0.03


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_other_noise_is_accused(seed):
    rng = np.random.default_rng(seed)
    assert normal_shape(rng.laplace(size=9000))[0] < LEVEL
    assert min(normal_shape(np.clip(rng.standard_normal(9000), -2, 2))) < LEVEL
    wide = 1.1 * rng.standard_normal(9000)
    assert variance_ratio(float(np.sum(wide**2)), 1.0, 9000) < LEVEL


def test_sums_of_uniform_numbers_are_told_from_normal_ones_by_their_kurtosis():
    rng = np.random.default_rng(5)
    # The fourth cumulant of twelve uniform numbers is -0.1; 154 000 of them give 8 deviations.
    sums = rng.random((12, 154_000)).sum(0) - 6
    excess, p_value = kurtosis(sums)
    assert abs(excess + 0.1) < 0.05
    assert p_value < LEVEL
    assert min(normal_shape(sums)) > LEVEL
    assert kurtosis(rng.standard_normal(154_000))[1] > 1e-3
    assert kurtosis(np.zeros(10)) == (0.0, 1.0)


def test_p_values_of_the_kurtosis_are_uniform():
    rng = np.random.default_rng(6)
    p = [kurtosis(rng.standard_normal(1000))[1] for _ in range(600)]
    # Deviation of a share of 600: 0.0122 at 0.1. Six of them: 1e-9.
    assert abs(np.mean(np.asarray(p) < 0.1) - 0.1) < 0.074


def test_fixed_batch_sizes_are_accused_and_binomial_ones_are_not():
    rng = np.random.default_rng(1)
    assert goodness_of_fit([5] * 44, 20, 0.25) < LEVEL
    assert goodness_of_fit(rng.binomial(20, 0.25, 44).tolist(), 20, 0.25) > LEVEL
    assert binomial(440, 880, 0.25) < LEVEL


def test_shared_noise_is_correlated():
    rng = np.random.default_rng(2)
    one, other = rng.standard_normal((2, 64))
    assert correlation(one, one)[1] < LEVEL
    assert correlation(one, other)[1] > LEVEL
    assert correlation(np.zeros(64), one) == (0.0, 1.0)


def test_a_flat_line_has_no_slope_and_p_value_one():
    grid = np.linspace(1, 10, 10)
    assert slope_test(grid, np.zeros(10)) == (0.0, 1.0)
    slope, p_value = slope_test(grid, 3 * grid)
    assert abs(slope - 3) < 1e-9
    assert p_value < 1e-10


def test_family_bound_adds_up():
    assert family_bound(0) == 0.0
    assert family_bound(100) == 100 * LEVEL


@given(st.integers(0, 10**6), st.integers(150, 2000), st.floats(1e-6, 1e6))
def test_numbers_that_come_once_are_not_taken_for_copies(seed, count, scale):
    # About 100 draws; also where deviations differ, as between tensors.
    rng = np.random.default_rng(seed)
    values = np.abs(scale * rng.standard_normal(count) * rng.choice([0.2, 1.0], count))
    share, p_value = coincidences(values)
    assert p_value > LEVEL
    # One in twenty is expected; a quarter would be needed for an accusation.
    assert share < 0.25


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_numbers_that_come_twice_or_have_few_digits_are_noticed(seed, scale):
    values = np.abs(scale * np.random.default_rng(seed).standard_normal(600))
    rounded = (np.frexp(values)[0] * 2**8).round() * 2.0 ** np.frexp(values)[1]
    for copied in (np.concatenate([values, values * (1 + 1e-7)]), rounded):
        share, p_value = coincidences(copied)
        assert share > 0.25
        assert p_value < LEVEL
    assert coincidences(values[:50]) == (0.0, 1.0)
