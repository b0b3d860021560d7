"""Private curves: what they return, how they cover the truth, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext as nothing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from noisewise.ecdf import Grid, dp_ecdf, plan
from noisewise.ecdf.bands import critical_values
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.errors import NoisewiseError, UnsoundError
from noisewise.privacy import Statement, verify
from noisewise.privacy.randomness import Randomness

RECORDS = np.random.default_rng(0).normal(50, 15, 2000)
BOUNDS = (0.0, 100.0)
# Noise so small that a curve is the true one, rounded.
LOUD = {"epsilon": 1e6, "bounds": BOUNDS, "rng": 1}


def truth(thresholds: np.ndarray, records: np.ndarray = RECORDS) -> np.ndarray:
    clamped = np.clip(records, *BOUNDS)
    return np.searchsorted(np.sort(clamped), thresholds, side="right") / records.size


SETTINGS: list[dict[str, Any]] = [
    {"mechanism": "kary", "relation": "replace-one"},
    {"mechanism": "kary", "relation": "add-remove"},
    {"mechanism": "thesis", "relation": "replace-one"},
    {"mechanism": "thesis", "smooth": "l1", "relation": "replace-one"},
    {"mechanism": "thesis", "smooth": "pava", "relation": "add-remove"},
    {"mechanism": "sqrt", "delta": 1e-6, "relation": "replace-one"},
    {"mechanism": "sqrt", "delta": 1e-6, "relation": "add-remove"},
    {"mechanism": "circulant", "delta": 1e-6, "relation": "replace-one"},
    {"mechanism": "thesis", "base": 4, "relation": "replace-one"},
    {"mechanism": "histogram", "relation": "replace-one"},
    {"mechanism": "auto", "objective": "max", "relation": "replace-one"},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_a_curve_is_a_distribution_function_near_the_true_one(options: dict[str, Any]) -> None:
    curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=2.0, bins=64, rng=3, **options)
    values = curve.probabilities
    assert np.all(np.diff(values) >= 0)
    assert values[0] >= 0
    assert values[-1] == 1
    # Largest deviation of a count here is below 45; six of them.
    assert np.abs(values - truth(curve.thresholds)).max() < 6 * 45 / 2000


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_without_noise_the_curve_is_scipys(relation: str) -> None:
    curve = dp_ecdf(RECORDS, **LOUD, bins=128, mechanism="kary", relation=relation)
    expected = stats.ecdf(np.clip(RECORDS, *BOUNDS))
    at = curve.thresholds
    assert np.allclose(curve(at), expected.cdf.evaluate(at), atol=1e-9)
    assert np.allclose(curve.cdf.evaluate(at), expected.cdf.evaluate(at), atol=1e-9)
    assert np.allclose(curve.sf.evaluate(at), expected.sf.evaluate(at), atol=1e-9)
    assert curve(-1.0) == 0
    assert curve(1000.0) == 1
    assert np.array_equal(curve.cdf.quantiles, at)


def test_quantiles_of_all_methods_agree_without_noise() -> None:
    curve = dp_ecdf(RECORDS, **LOUD, bins=2**12, relation="replace-one")
    q = np.linspace(0.02, 0.98, 25)
    expected = np.quantile(np.clip(RECORDS, *BOUNDS), q, method="inverted_cdf")
    bin_width = 100 / 2**12
    for method in ("inverse", "linear", "bisection"):
        found = curve.quantile(q, method=method)  # type: ignore[arg-type]
        assert np.abs(found - expected).max() <= bin_width * 1.01
    raw = curve.quantile(q, method="bisection", raw=True)
    assert np.abs(raw - expected).max() <= bin_width * 1.01
    assert curve.quantile(0.5).shape == ()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_inverse_quantiles_are_the_least_thresholds_that_reach_q(q: list[float]) -> None:
    curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=0.5, bins=32, rng=2, relation="replace-one")
    for value, threshold in zip(q, curve.quantile(q), strict=True):
        place = int(np.searchsorted(curve.thresholds, threshold))
        assert curve.probabilities[place] >= value
        assert place == 0 or curve.probabilities[place - 1] < value


def test_mean_and_sample_follow_the_curve() -> None:
    curve = dp_ecdf(RECORDS, **LOUD, bins=2**10, relation="replace-one")
    assert curve.mean() == pytest.approx(np.clip(RECORDS, *BOUNDS).mean(), abs=100 / 2**10)
    drawn = curve.sample(4000, seed=1)
    assert drawn.min() >= 0
    assert drawn.max() <= 100
    # Kolmogorov-Smirnov at 4000 draws: P(distance > 0.045) < 2 exp(-2 * 4000 * 0.045^2) = 2e-7.
    grid = curve.thresholds
    empirical = np.searchsorted(np.sort(drawn), grid, side="right") / 4000
    assert np.abs(empirical - curve.probabilities).max() < 0.045


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_simultaneous_bands_cover_the_true_curve_as_often_as_they_say(
    relation: str, delta: float
) -> None:
    # 300 independent curves at level 0.9: fewer than 243 covered has probability 1e-6 if the
    # coverage is 0.9 (binomial). Narrowing by monotony and rounding only add coverage.
    covered = narrow = 0
    for seed in range(300):
        curve = dp_ecdf(
            RECORDS, bounds=BOUNDS, epsilon=1.0, delta=delta, bins=24, relation=relation, rng=seed
        )
        band = curve.confidence_band(0.9, draws=199)
        true = truth(curve.thresholds)
        inside = (band.low.probabilities <= true + 1e-12) & (
            true <= band.high.probabilities + 1e-12
        )
        covered += bool(inside.all())
        narrow += bool((band.high.probabilities - band.low.probabilities).max() < 0.12)
    assert covered >= 243
    assert narrow == 300
    # Nor is it much too wide: above 296 has probability 1e-8 at coverage 0.92.
    assert covered <= 296


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_pointwise_bands_cover_each_value_as_often_as_they_say(delta: float) -> None:
    mechanism = plan(24, "replace-one", Budget(1.0, delta))
    factors = critical_values(mechanism, 0.9, simultaneous=False, draws=999)
    widths = factors * np.sqrt(mechanism.variance)
    rng = Randomness.seeded(5)
    counts = np.full(24, 100)
    errors = [np.abs(noisy_counts(mechanism, counts, rng) - np.cumsum(counts)) for _ in range(1000)]
    rate = (np.array(errors)[:, :-1] <= widths[:-1]).mean(0)
    # Deviation of a rate at most 0.0095, and 0.0095 more from the simulated widths; six.
    assert rate.min() > 0.9 - 0.08
    assert rate.max() < 0.9 + 0.08


def test_population_bands_cover_the_distribution_behind_the_records() -> None:
    covered = 0
    for seed in range(100):
        records = np.random.default_rng(seed).uniform(0, 100, 500)
        curve = dp_ecdf(
            records, bounds=BOUNDS, epsilon=1.0, bins=16, rng=seed, relation="replace-one"
        )
        band = curve.confidence_band(0.9, target="population", draws=199)
        true = curve.thresholds / 100
        low, high = band.low.probabilities, band.high.probabilities
        covered += bool(np.all((low <= true + 1e-12) & (true <= high + 1e-12)))
    # Fewer than 74 of 100 has probability 1e-6 at coverage 0.9.
    assert covered >= 74


@pytest.mark.parametrize("options", SETTINGS)
def test_stated_variance_is_that_of_repeated_releases(options: dict[str, Any]) -> None:
    options = {**options, "smooth": None} if options.get("smooth") != "pava" else options
    errors, variance = [], np.zeros(16)
    for seed in range(300):
        curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=1.0, bins=16, rng=seed, **options)
        errors.append(curve.noisy_probabilities - truth(curve.thresholds))
        variance += curve.variance() / 300
    ratio = (np.array(errors)[:, :-1] ** 2).mean() / variance[:-1].mean()
    # 300 draws of relative variance below 5: deviation 0.13; five of them.
    assert abs(ratio - 1) < 0.65


def test_a_statement_says_what_was_asked_and_can_be_verified() -> None:
    for options in SETTINGS:
        curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=0.7, bins=32, rng=1, **options)
        statement = curve.statement()
        assert statement.epsilon <= 0.7
        assert statement.epsilon > 0.69
        assert statement.delta == options.get("delta", 0.0)
        assert statement.relation.count_is_public == (options.get("relation") != "add-remove")
        assert "bounds" in " ".join(statement.assumptions)
        assert "seed" in statement.randomness
        assert verify(Statement.from_json(statement.to_json())).ok


class Parties:
    """Several parties: each sums its own records, and noise is added once."""

    def count(self, data: list[np.ndarray]) -> int:
        return sum(len(part) for part in data)

    def noisy_sum(
        self,
        data: list[np.ndarray],
        statistic: Callable[[Any], np.ndarray],
        noise: Callable[[Randomness], np.ndarray],
        rng: Randomness,
    ) -> np.ndarray:
        return sum(statistic(part) for part in data) + noise(rng)  # type: ignore[return-value]


@pytest.mark.parametrize("options", SETTINGS)
def test_parties_that_only_sum_get_the_curve_of_their_union(options: dict[str, Any]) -> None:
    parts = np.array_split(RECORDS, [3, 700, 701])
    common = {"bounds": BOUNDS, "epsilon": 1.0, "bins": 32, "rng": 9, **options}
    together = dp_ecdf(RECORDS, **common)
    apart = dp_ecdf(parts, aggregator=Parties(), **common)
    assert np.array_equal(together.noisy_counts, apart.noisy_counts)


def test_thresholds_may_be_linear_logarithmic_or_given() -> None:
    linear = Grid.of((0, 8), 4)
    assert linear.thresholds.tolist() == [2, 4, 6, 8]
    logarithmic = Grid.of((1, 16), 4, "log")
    assert np.allclose(logarithmic.thresholds, [2, 4, 8, 16])
    given_ones = Grid.of((0, 10), 99, [1, 5])
    assert given_ones.thresholds.tolist() == [1, 5, 10]
    assert given_ones.count([0, 1, 1.5, 5, 7, 10, 10]).tolist() == [2, 2, 3]


def test_records_outside_the_bounds_are_moved_to_them() -> None:
    counts = Grid.of((0, 10), 5).count([-np.inf, -3, 0, 11, np.inf])
    assert counts.tolist() == [3, 0, 0, 0, 2]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-5, 15), min_size=1, max_size=40), st.integers(2, 20))
def test_counts_agree_with_the_definition_of_an_ecdf(records: list[float], bins: int) -> None:
    grid = Grid.of((0, 10), bins)
    clamped = np.clip(records, 0, 10)
    expected = [(clamped <= t).sum() for t in grid.thresholds]
    assert np.cumsum(grid.count(records)).tolist() == expected


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize("bounds", [None, "data"])
def test_bounds_from_the_data_are_refused_because_they_leak(bounds: Any) -> None:
    with pytest.raises(UnsoundError, match="without looking at the data"):
        dp_ecdf(RECORDS, bounds=bounds, epsilon=1.0, relation="replace-one")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"epsilon": np.inf}, "epsilon must be finite"),
        ({"delta": 1.0}, "delta"),
        ({"bins": 1}, "bins must be a whole number >= 2"),
        ({"bins": 2.5}, "bins must be a whole number"),
        ({"bounds": (10, 0)}, "bounds must increase"),
        ({"bounds": (0, 0)}, "bounds must increase"),
        ({"bounds": (0, np.inf)}, r"bounds\[1\] must be finite"),
        ({"bounds": 3}, "bounds must be a pair"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"mechanism": "magic"}, "mechanism must be one of"),
        ({"mechanism": "sqrt"}, "delta > 0"),
        ({"mechanism": "kary", "smooth": "l1"}, "mechanism='thesis'"),
        ({"smooth": "spline"}, "smooth must be one of"),
        ({"objective": "median"}, "objective must be one of"),
        ({"thresholds": "log"}, "above 0"),
        ({"thresholds": "square"}, "thresholds must be one of"),
        ({"thresholds": [3.0, 2.0]}, "increase strictly"),
        ({"thresholds": [3.0, np.nan]}, "finite"),
        ({"thresholds": [-5.0, 2.0]}, "above 0"),
        ({"thresholds": [100.0]}, "at least one number below"),
        ({"bounds": (0.0, 5e-324)}, "too fine"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(
    change: dict[str, Any], message: str
) -> None:
    class Untouchable(Parties):
        def noisy_sum(self, *arguments: Any) -> np.ndarray:
            raise AssertionError("the data were touched")

    arguments = {"bounds": BOUNDS, "epsilon": 1.0, "bins": 64, "rng": 1, **change}
    with pytest.raises((ValueError, NoisewiseError), match=message):
        dp_ecdf([RECORDS], aggregator=Untouchable(), **arguments)


def test_records_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        dp_ecdf([1.0, np.nan], bounds=BOUNDS, epsilon=1.0, relation="replace-one")
    with pytest.raises(TypeError, match="real numbers"):
        dp_ecdf(["a"], bounds=BOUNDS, epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="one-dimensional"):
        dp_ecdf(np.ones((2, 2)), bounds=BOUNDS, epsilon=1.0, relation="replace-one")


def test_no_records_are_refused_only_if_their_number_is_public() -> None:
    with pytest.raises(ValueError, match="x is empty"):
        dp_ecdf([], bounds=BOUNDS, epsilon=1.0, relation="replace-one")
    # With a private number an error would tell nobody from somebody.
    curve = dp_ecdf([], bounds=BOUNDS, epsilon=1.0, bins=16, relation="add-remove", rng=1)
    assert np.all(np.diff(curve.probabilities) >= 0)
    assert curve.probabilities[-1] == 1
    assert np.isfinite(curve.variance()).all()
    curve.confidence_band(0.9, draws=99)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_one_record_and_constant_records_give_curves(relation: str) -> None:
    single = dp_ecdf([5.0], bounds=BOUNDS, epsilon=1.0, bins=8, relation=relation, rng=1)
    assert single.probabilities[-1] == 1
    constant = dp_ecdf(np.full(500, 50.0), **LOUD, bins=8, relation=relation)
    assert constant.probabilities.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert constant.quantile(0.5) == 50


def test_unsmoothed_curves_say_that_they_have_no_inverse() -> None:
    curve = dp_ecdf(
        RECORDS, bounds=BOUNDS, epsilon=0.1, bins=64, smooth=None, rng=1, relation="replace-one"
    )
    assert np.array_equal(curve.counts, curve.noisy_counts)
    with pytest.raises(ValueError, match="bisection"):
        curve.quantile(0.5)
    assert 0 <= curve.quantile(0.5, method="bisection") <= 100


def test_quantiles_outside_zero_and_one_are_refused() -> None:
    curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=1.0, bins=8, rng=1, relation="replace-one")
    for q in (-0.1, 1.1, np.nan, [0.5, 2.0]):
        with pytest.raises(ValueError, match="q must lie in"):
            curve.quantile(q)
    with pytest.raises(ValueError, match="draws"):
        curve.confidence_band(0.99, draws=50)
    with pytest.raises(ValueError, match="level"):
        curve.confidence_band(1.0)


def test_frames_and_plots_hold_the_curve() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    curve = dp_ecdf(RECORDS, bounds=BOUNDS, epsilon=1.0, bins=16, rng=1, relation="replace-one")
    frame = curve.to_frame(0.9)
    assert list(frame.columns) == [
        "threshold",
        "probability",
        "noisy_probability",
        "standard_error",
        "low",
        "high",
    ]
    assert np.array_equal(frame["probability"], curve.probabilities)
    axes = curve.plot(level=0.9)
    line = axes.lines[0]
    assert np.array_equal(line.get_ydata()[1:], curve.probabilities)
    assert "PrivateECDF(16 thresholds" in repr(curve)


def test_equal_seeds_give_equal_curves_and_default_randomness_is_secure() -> None:
    arguments = {"bounds": BOUNDS, "epsilon": 1.0, "bins": 32}
    one, two = (dp_ecdf(RECORDS, rng=4, **arguments) for _ in range(2))
    assert np.array_equal(one.noisy_counts, two.noisy_counts)
    free = [dp_ecdf(RECORDS, **arguments) for _ in range(2)]
    assert not np.array_equal(free[0].noisy_counts, free[1].noisy_counts)
    assert "NOT secret" not in free[0].statement().randomness


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_budget_in_rho_is_spent_and_stated(relation: str) -> None:
    curve = dp_ecdf(RECORDS, bounds=BOUNDS, rho=0.1, bins=64, relation=relation, rng=2)
    assert 0.0999 < curve.mechanism.rho <= 0.1
    assert curve.budget.kind == "concentrated"
    assert np.abs(curve.probabilities - truth(curve.thresholds)).max() < 0.1
    statement = curve.statement()
    assert statement.delta == 1e-6
    assert verify(statement).ok
    # rho + 2 sqrt(rho log(1 / delta)) is the textbook conversion; ours is no worse.
    assert statement.epsilon <= 0.1 + 2 * np.sqrt(0.1 * np.log(1e6))
    assert curve.statement(delta=1e-3).epsilon < statement.epsilon


@pytest.mark.parametrize("base", [2, 3, 5])
@pytest.mark.parametrize(
    "budget", [{"epsilon": 1.0}, {"rho": 0.1}, {"epsilon": 1.0, "delta": 1e-6}]
)
def test_trees_of_any_base_are_reachable(base: int, budget: dict[str, float]) -> None:
    curve = dp_ecdf(
        RECORDS, bounds=BOUNDS, bins=100, mechanism="thesis", base=base, rng=2, **budget
    )
    assert f"base {base}" in curve.mechanism.description
    assert np.all(np.diff(curve.probabilities) >= 0)
    with pytest.raises(ValueError, match="smooth='l1'") if base != 2 else nothing():
        dp_ecdf(
            RECORDS, bounds=BOUNDS, bins=100, mechanism="thesis", base=base, smooth="l1", **budget
        )


def test_budgets_and_bases_that_make_no_sense_are_refused() -> None:
    given: dict[str, Any] = {"bounds": BOUNDS, "bins": 16}
    with pytest.raises(TypeError, match=r"epsilon .* or rho"):
        dp_ecdf(RECORDS, **given)
    with pytest.raises(ValueError, match="budget by itself"):
        dp_ecdf(RECORDS, epsilon=1.0, rho=0.5, **given)
    with pytest.raises(ValueError, match="budget by itself"):
        dp_ecdf(RECORDS, delta=1e-6, rho=0.5, **given)
    with pytest.raises(ValueError, match="rho must be > 0"):
        dp_ecdf(RECORDS, rho=0.0, **given)
    with pytest.raises(ValueError, match="belongs to mechanism='thesis'"):
        dp_ecdf(RECORDS, epsilon=1.0, base=3, **given)
    for base in (1, 17, 2.5):
        with pytest.raises(ValueError, match="base"):
            dp_ecdf(RECORDS, epsilon=1.0, base=base, mechanism="thesis", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [20.0, 300.0])
@pytest.mark.parametrize("mechanism", ["sqrt", "circulant", "kary"])
def test_large_epsilons_with_delta_are_stated_within_the_budget(
    mechanism: str, epsilon: float
) -> None:
    curve = dp_ecdf(
        RECORDS,
        bounds=BOUNDS,
        epsilon=epsilon,
        delta=1e-6,
        bins=32,
        mechanism=mechanism,
        rng=1,
        relation="replace-one",
    )
    statement = curve.statement()
    assert 0.9 * epsilon < statement.epsilon <= epsilon
    assert verify(statement).ok
