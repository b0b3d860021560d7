"""Shrinking inside families: what it must not touch, and that it lowers the error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf import Budget, dp_ecdf, plan, private_roc, shrink_families
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.estimate import smooth_counts
from noisewise.privacy.randomness import Randomness


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=3),
    st.integers(0, 2**32),
    st.floats(0.1, 1e3),
)
@settings(deadline=None, max_examples=60)
def test_sums_of_families_are_kept_and_nothing_is_moved_beyond_equal_shares(
    fanouts: list[int], seed: int, variance: float
) -> None:
    size = int(np.prod(fanouts))
    leaves = np.random.default_rng(seed).normal(20, 10, size)
    prefix = np.cumsum(leaves)
    shrunk = np.diff(shrink_families(prefix, fanouts, [variance] * len(fanouts)), prepend=0.0)
    assert shrunk.sum() == pytest.approx(prefix[-1])
    old, new = leaves.reshape(-1, fanouts[0]), shrunk.reshape(-1, fanouts[0])
    before = old - old.mean(1, keepdims=True)
    after = new - new.mean(1, keepdims=True)
    factors = np.array([a @ b / (b @ b) for a, b in zip(after, before, strict=True)])
    assert np.allclose(after, factors[:, None] * before, atol=1e-8)
    expected = np.maximum(1 - max(fanouts[0] - 3, 0) * variance / (before**2).sum(1), 0)
    assert np.allclose(factors[:-1], expected[:-1], atol=1e-8)  # the last count is kept


def test_without_noise_or_with_few_children_nothing_changes() -> None:
    prefix = np.cumsum(np.random.default_rng(0).integers(0, 100, 24)).astype(float)
    assert np.allclose(shrink_families(prefix, (6, 4), (0.0, 0.0)), prefix)
    assert np.allclose(shrink_families(prefix, (3, 2, 2, 2), (1e9,) * 4), prefix)
    # Families that reach beyond the last bin are left alone.
    assert np.allclose(shrink_families(prefix[:5], (6,), (1e9,)), prefix[:5])


SHAPES = {
    "even": lambda g: g.poisson(20, 2048),
    "one bin": lambda g: np.eye(2048, dtype=np.int64)[700] * 40_000,
    "spikes": lambda g: np.where(np.arange(2048) % 50 == 0, 1000, 0),
    "slope": lambda g: g.poisson(np.linspace(0, 40, 2048)),
}


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_error_falls_where_records_are_even_and_nowhere_rises(
    shape: str, relation: str
) -> None:
    mechanism = plan(2048, relation, Budget(1.0))
    counts = SHAPES[shape](np.random.default_rng(1)).astype(np.int64)
    truth, rng = np.cumsum(counts), Randomness.seeded(4)
    plain = shrunk = 0.0
    for _ in range(60):
        noisy = noisy_counts(mechanism, counts, rng)
        plain += float(((smooth_counts(noisy, mechanism, "auto") - truth) ** 2).mean())
        shrunk += float(((smooth_counts(noisy, mechanism, "shrink") - truth) ** 2).mean())
    # Both see the same noise. The seed is fixed; over other seeds the ratio of a slope is 0.91 and
    # moves by 0.02.
    assert shrunk < plain * (0.96 if shape in ("even", "slope") else 1.02)


def test_it_is_reachable_and_keeps_the_curve_monotone() -> None:
    x = np.random.default_rng(0).random(3000)
    curve = dp_ecdf(
        x, bounds=(0, 1), epsilon=0.5, bins=512, smooth="shrink", rng=1, relation="replace-one"
    )
    assert np.all(np.diff(curve.probabilities) >= 0)
    assert curve.smoothing == "shrink"
    y = (np.random.default_rng(1).random(3000) < x).astype(int)
    roc = private_roc(y, x, epsilon=1.0, bins=256, smooth="shrink", rng=1, relation="replace-one")
    assert np.all(np.diff(roc.tpr) >= 0)
    assert 0.7 < roc.auc < 0.95


def test_other_mechanisms_have_no_families() -> None:
    x = np.random.default_rng(0).random(300)
    with pytest.raises(ValueError, match="mechanism='kary'"):
        dp_ecdf(
            x,
            bounds=(0, 1),
            epsilon=1.0,
            bins=64,
            smooth="shrink",
            mechanism="thesis",
            relation="replace-one",
        )
    with pytest.raises(ValueError, match="mechanism='kary'"):
        dp_ecdf(x, bounds=(0, 1), rho=0.5, bins=64, smooth="shrink", relation="replace-one")
