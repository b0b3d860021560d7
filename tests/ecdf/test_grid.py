"""Records are counted where the thresholds say, whatever arithmetic would say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisewise.ecdf import Grid

ends = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).filter(lambda p: p[0] + p[1] > p[0])


@given(ends, st.integers(2, 5000), st.integers(0, 2**32 - 1), st.sampled_from(["linear", "given"]))
def test_counting_is_searching_among_the_thresholds(pair, bins, seed, kind):
    lower, upper = pair[0], pair[0] + pair[1]
    rng = np.random.default_rng(seed)
    try:
        grid = Grid.of((lower, upper), bins)
    except ValueError:
        return  # too fine for double precision, which it says
    if kind == "given":
        kept = np.sort(rng.choice(grid.thresholds, max(2, bins // 3), replace=False))
        grid = Grid.of((lower, upper), bins, kept)
    # Records on the thresholds, one rounding beside them, at random, and outside the bounds.
    near = rng.choice(grid.edges, 200)
    beside = [np.nextafter(near, np.inf), np.nextafter(near, -np.inf)]
    anywhere = rng.uniform(lower - pair[1], upper + pair[1], 200)
    records = np.concatenate([near, *beside, anywhere, [lower, upper]])
    inside = np.clip(records, lower, upper)
    expected = np.bincount(
        np.searchsorted(grid.thresholds, inside, side="left"), minlength=grid.bins
    )
    assert (grid.count(records) == expected).all()


@pytest.mark.parametrize("bins", [2, 3, 2**15])
def test_every_threshold_belongs_to_the_bin_that_it_ends(bins):
    grid = Grid.of((0.1, 0.7), bins)
    assert (grid.count(grid.thresholds) == 1).all()
