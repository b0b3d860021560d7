"""Private histograms: NumPy's bins, noise by bin or cumulative."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.histogram_release import dp_histogram, private_histogram
from noisewise.errors import UnsoundError
from noisewise.privacy import verify


@given(st.lists(st.integers(0, 16), max_size=60), st.integers(2, 16), st.integers(0, 99))
@settings(max_examples=40)
def test_with_hardly_any_noise_it_is_numpys_histogram(
    cells: list[int], bins: int, seed: int
) -> None:
    # Values on the edges too: bins are closed below, the last one on both sides.
    x = np.array(cells, float)
    for noise in ("cumulative", "independent"):
        counts, edges = dp_histogram(
            x, bins, (0, 16), epsilon=400.0, noise=noise, relation="add-remove", rng=seed
        )
        expected, expected_edges = np.histogram(x, bins, (0, 16))
        assert np.allclose(edges, expected_edges)
        assert np.allclose(counts, expected, atol=1e-6)


def test_given_edges_are_used() -> None:
    x = np.array([0.5, 1.5, 1.7, 9.0])
    counts, edges = dp_histogram(x, [0, 1, 2, 10], epsilon=400.0, rng=1, relation="replace-one")
    assert edges.tolist() == [0, 1, 2, 10]
    assert np.allclose(counts, [1, 2, 1])


@pytest.mark.parametrize("noise", ["cumulative", "independent"])
def test_ranges_have_the_stated_error_and_bins_are_not_negative(noise: str) -> None:
    # 500 releases; relative deviation of the mean square below sqrt(5 / 500) = 0.1.
    x = np.random.default_rng(0).normal(size=500)
    truth = np.histogram(np.clip(x, -3, 3), 64, (-3, 3))[0][5:50].sum()
    squares = []
    for seed in range(500):
        found = private_histogram(
            x,
            64,
            (-3, 3),
            epsilon=1.0,
            noise=noise,
            consistent=False,
            rng=seed,
            relation="replace-one",
        )
        value, deviation = found.range_count(5, 49)
        squares.append((value - truth) ** 2 / deviation**2)
    assert abs(np.mean(squares) - 1) < 0.6
    smooth = private_histogram(
        x, 64, (-3, 3), epsilon=1.0, noise=noise, rng=1, relation="replace-one"
    )
    assert smooth.counts.min() >= 0
    assert verify(smooth.statement()).ok
    assert smooth.statement().epsilon <= 1.0


def test_cumulative_noise_is_better_for_ranges_and_independent_noise_for_single_bins() -> None:
    x = np.zeros(10)
    found = {
        noise: private_histogram(
            x, 2048, (0, 1), epsilon=1.0, noise=noise, rng=1, relation="replace-one"
        )
        for noise in ("cumulative", "independent")
    }
    wide = {noise: found[noise].range_count(200, 1600)[1] for noise in found}
    single = {noise: found[noise].range_count(100, 100)[1] for noise in found}
    assert wide["cumulative"] < wide["independent"] / 1.5
    assert single["independent"] < single["cumulative"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(UnsoundError, match="without looking"):
        dp_histogram([1.0], 10, epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="edges"):
        dp_histogram([1.0], [0.0, 1.0], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="increase"):
        dp_histogram([1.0], 10, (1, 0), epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="epsilon"):
        dp_histogram([1.0], 10, (0, 1), epsilon=0.0, relation="replace-one")
    with pytest.raises(ValueError, match="NaN"):
        dp_histogram([math.nan], 10, (0, 1), epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="noise"):
        dp_histogram([1.0], 10, (0, 1), epsilon=1.0, noise="none", relation="replace-one")
    with pytest.raises(ValueError, match="last"):
        private_histogram(
            [1.0], 10, (0, 1), epsilon=1.0, rng=1, relation="replace-one"
        ).range_count(3, 2)


def test_it_can_be_drawn() -> None:
    import matplotlib

    matplotlib.use("Agg")
    found = private_histogram(np.zeros(5), 8, (0, 1), epsilon=1.0, rng=1, relation="replace-one")
    assert found.plot().get_ylabel() == "records"
