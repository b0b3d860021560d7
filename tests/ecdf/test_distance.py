"""Sensitivities of scaled Toeplitz matrices, against all pairs of columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.mechanisms import Setting
from noisewise.ecdf.mechanisms.distance import (
    block_bound,
    longest_column,
    longest_difference,
)
from noisewise.ecdf.mechanisms.profile import stored_profiles
from noisewise.ecdf.mechanisms.toeplitz import build


def dense(coefficients: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    count = coefficients.size
    lag = np.arange(count)[:, None] - np.arange(count)[None, :]
    toeplitz = np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0).astype(np.float64)
    return toeplitz * rows[:, None] * columns[None, :]


def largest_pair(matrix: np.ndarray) -> float:
    gram = matrix.T @ matrix
    squares = np.diag(gram)
    return float((squares[:, None] + squares[None, :] - 2 * gram).max())


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 260), st.integers(0, 10**6), st.sampled_from([0, 1, 7, None]))
def test_block_bounds_are_above_every_pair_however_few_blocks_are_split(
    count: int, seed: int, most: int | None
) -> None:
    generator = np.random.default_rng(seed)
    coefficients = np.sort(generator.integers(0, 1000, count))[::-1].copy()
    rows, columns = generator.integers(1, 60, count), generator.integers(1, 60, count)
    if seed % 3 == 0:  # smooth scales, like those of the profiles, where bounds are tight
        rows = 40 + np.rint(20 * np.sin(np.linspace(0, 3, count))).astype(np.int64)
        columns = 40 + np.rint(20 * np.cos(np.linspace(0, 2, count))).astype(np.int64)
    matrix = dense(coefficients, rows, columns)
    exact = largest_pair(matrix)
    bound = longest_difference(coefficients, rows, columns, most=most)
    assert bound >= exact
    if most is None:
        assert bound <= exact * 1.002 + 1e-6 * (matrix**2).sum(0).max()
    longest = float((matrix**2).sum(0).max())
    assert longest <= longest_column(coefficients, rows, columns) <= longest * (1 + 1e-8)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 60), st.integers(0, 10**6), st.data())
def test_every_block_bound_is_above_all_pairs_of_its_block(
    count: int, seed: int, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    coefficients = np.sort(generator.integers(1, 1000, count))[::-1].copy()
    spread = 1 + seed % 4  # from equal scales, where the bound is tight, to unequal ones
    rows, columns = (generator.integers(20, 20 + spread, count) for _ in range(2))
    first = data.draw(st.integers(1, count - 1))
    last = data.draw(st.integers(first, count - 1))
    matrix = dense(coefficients, rows, columns)
    pairs = [
        float(((matrix[:, s] - matrix[:, t]) ** 2).sum())
        for t in range(first, last + 1)
        for s in range(t)
    ]
    bound = block_bound(coefficients, rows, columns)(first, last)
    assert bound >= max(pairs)
    if first == last:
        assert bound == pytest.approx(max(pairs), rel=1e-6)


@pytest.mark.parametrize("count", [300, 700])
def test_unsplit_blocks_bound_the_stored_profiles(count: int) -> None:
    for objective in ("mean", "max"):
        (profile,) = stored_profiles("replace", objective, count)
        strategy = build(Setting(count, True), profile)
        parts = (strategy.coefficients, strategy.rows, strategy.columns)
        exact = largest_pair(dense(*parts))
        assert exact <= longest_difference(*parts) <= exact * 1.002
        assert exact <= longest_difference(*parts, most=0) <= exact * 1.5


def test_equal_scales_use_the_closed_form() -> None:
    strategy = build(Setting(200, True), None)
    parts = (strategy.coefficients, strategy.rows, strategy.columns)
    exact = largest_pair(dense(*parts))
    assert exact <= longest_difference(*parts) <= exact * (1 + 1e-8)


def test_increasing_coefficients_are_refused() -> None:
    ones = np.ones(4, np.int64)
    with pytest.raises(ValueError, match="not increasing"):
        longest_difference(np.array([1, 2, 3, 4]), ones, ones)
