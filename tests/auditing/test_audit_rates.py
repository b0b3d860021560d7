"""Bounds on error rates: exact at one threshold, simultaneous at all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from noisewise.auditing import Scores
from noisewise.auditing.bounds import rates as module
from noisewise.auditing.bounds.rates import band, upper_rate
from noisewise.auditing.bounds.thresholds import chosen_counts, rates


@given(total=st.integers(1, 400), part=st.floats(0, 1), error=st.floats(1e-9, 0.5))
def test_at_the_clopper_pearson_bound_so_few_successes_have_exactly_the_error_probability(
    total: int, part: float, error: float
) -> None:
    count = min(total - 1, int(part * total))
    rate = upper_rate(count, total, error)
    assert binom.cdf(count, total, rate) == pytest.approx(error, rel=1e-6)


def test_nothing_can_be_said_if_all_trials_succeeded() -> None:
    assert upper_rate(7, 7, 0.05) == 1.0


@pytest.mark.parametrize("total", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("level", [0.3, 0.05, 0.004])
def test_the_crossing_probability_equals_stecks_determinant(total: int, level: float) -> None:
    ranks = module._ranks(total)
    limits = module._limits(ranks, total, level)
    assert module._some_exceed(limits, ranks, total) == pytest.approx(
        1 - steck(limits, ranks, total), abs=1e-8
    )


def steck(limits: np.ndarray, ranks: np.ndarray, total: int) -> float:
    """P[U_(i) <= b_i for all i] = n! det[ b_i^(j-i+1) / (j-i+1)! ] (Steck, 1971)."""
    b = np.ones(total)
    for limit, rank in zip(limits, ranks, strict=True):
        b[: rank + 1] = np.minimum(b[: rank + 1], limit)
        # A smaller order statistic is below a larger one's limit as well.
    matrix = np.zeros((total, total))
    for i in range(total):
        for j in range(total):
            power = j - i + 1
            if power >= 0:
                matrix[i, j] = b[i] ** power / math.factorial(power)
    return math.factorial(total) * float(np.linalg.det(matrix))


@pytest.mark.parametrize(("total", "error"), [(20, 0.1), (300, 0.05), (5000, 0.05)])
def test_all_rates_of_a_sample_lie_below_the_band_as_often_as_promised(
    total: int, error: float
) -> None:
    trials = 2000
    uniform = np.sort(np.random.default_rng(1).random((trials, total)), axis=1)
    failures = int((uniform > band(total, error)[:total]).any(axis=1).sum())
    # False-alarm probability 1e-6.
    assert failures <= binom.isf(1e-6, trials, error)
    if total <= module.LARGEST_EXACT:
        assert failures >= binom.ppf(1e-6, trials, error)  # and not needlessly wide


@settings(max_examples=30)
@given(total=st.integers(1, 200), error=st.floats(1e-8, 0.5))
def test_a_band_grows_with_the_count_and_contains_the_bound_at_one_threshold(
    total: int, error: float
) -> None:
    bounds = band(total, error)
    assert bounds.shape == (total + 1,)
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[-1] == 1.0
    single = np.array([upper_rate(count, total, error) for count in range(total + 1)])
    assert np.all(bounds >= single - 1e-12)


def test_a_fixed_midpoint_takes_half_of_the_error_and_is_kept_where_it_is_better() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 300), rng.normal(0, 1, 300)
    sampled = Scores(inside, outside, midpoint=0.5, observed="step")
    both = rates(sampled, "all", 0.05)
    alone = rates(sampled, 0.5, 0.025)
    index = int(np.flatnonzero(both.thresholds == 0.5)[0])
    assert both.false_positive[index] == alone.false_positive[0]
    assert both.false_negative[index] == alone.false_negative[0]
    assert both.total is None
    whole = rates(Scores(inside, outside, midpoint=0.5), "all", 0.05)
    assert whole.total is not None
    wrong = int((inside < 0.5).sum() + (outside >= 0.5).sum())
    assert whole.total.rate == 2 * upper_rate(wrong, 600, 0.025)
    assert whole.total.rate < alone.false_positive[0] + alone.false_negative[0]


def test_errors_are_added_up_only_with_coins_or_equal_numbers() -> None:
    uneven = Scores([1.0] * 30, [0.0] * 20, midpoint=0.5)
    assert rates(uneven, "all", 0.05).total is None
    tossed = Scores([1.0] * 30, [0.0] * 20, midpoint=0.5, coins=True)
    assert rates(tossed, "all", 0.05).total is not None


def test_splitting_counts_only_scores_that_did_not_choose_the_threshold() -> None:
    scores = Scores(np.arange(11.0), np.arange(-5.0, 6.0))
    _, _, outside, _, inside = chosen_counts(scores, "split")
    assert (outside, inside) == (5, 5)


def test_splitting_sorted_scores_splits_them_at_random() -> None:
    """Every other of sorted scores would make the halves nearly copies of each other."""
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(0, 1, 400), rng.normal(0, 1, 400)
    as_drawn = chosen_counts(Scores(inside, outside), "split")
    as_sorted = chosen_counts(Scores(np.sort(inside), np.sort(outside)), "split")
    assert as_drawn[2:3] == as_sorted[2:3]
    sorted_halves = np.sort(inside)[::2], np.sort(inside)[1::2]
    assert as_sorted[3] != int((sorted_halves[1] < as_sorted[0]).sum()) or as_sorted[0] < -3


@pytest.mark.parametrize("bad", ["best", "", "ALL"])
def test_an_unknown_rule_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="threshold must be one of"):
        rates(Scores([1.0], [0.0]), bad, 0.05)
