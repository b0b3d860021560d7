"""Group sums, calibration and the Hosmer-Lemeshow test: sensitivity by brute force, levels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2
from sklearn.calibration import calibration_curve

from noisewise.ecdf import hosmer_lemeshow as hl
from noisewise.ecdf.calibration import (
    dp_calibration_curve,
    dp_expected_calibration_error,
    measure_calibration,
    private_calibration,
)
from noisewise.ecdf.group_sums import (
    SUM_UNIT,
    Family,
    group_of,
    plan_scales,
    release_sums,
    to_units,
)
from noisewise.ecdf.hosmer_lemeshow import clipped_root, dp_hosmer_lemeshow, root_sensitivity
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation

RELATIONS = ("replace-one", "add-remove")
CUTS = np.array([0.25, 0.5, 0.75])
# Every kind of record: on cuts, between them, at the ends, with both labels.
GRID = (0.0, 0.1, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0)
RECORDS = list(itertools.product(GRID, (0.0, 1.0)))


def families(which: str, p: np.ndarray, y: np.ndarray) -> list[Family]:
    return hl._residual_family(y, p) if which == "residual" else hl._thesis(y, p)


def sums_of(which: str, records: list[tuple[float, float]]) -> list[np.ndarray]:
    p = np.array([record[0] for record in records])
    y = np.array([record[1] for record in records])
    group = group_of(p, CUTS)
    found = []
    for family in families(which, p, y):
        sums = np.zeros((4, len(family.names)), np.int64)
        np.add.at(sums, group, family.values)
        found.append(sums)
    return found


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("which", ["residual", "thesis"])
def test_worst_loss_of_the_group_sums_over_all_neighbours_is_epsilon(
    which: str, relation: str
) -> None:
    rest = [(0.4, 1.0), (0.7, 0.0)]
    empty = families(which, np.zeros(0), np.zeros(0))
    scales, spent = plan_scales(
        [f.bound for f in empty], [f.share for f in empty], 1.0, Relation.of(relation)
    )
    if relation == "replace-one":
        pairs = [([*rest, a], [*rest, b]) for a, b in itertools.permutations(RECORDS, 2)]
    else:
        pairs = [(rest, [*rest, a]) for a in RECORDS]
    worst = 0.0
    for left, right in pairs:
        loss = 0.0
        for a, b, scale in zip(sums_of(which, left), sums_of(which, right), scales, strict=True):
            loss += float(np.abs(a - b).sum() / scale)
        worst = max(worst, loss)
    assert 0.999999 < worst <= spent <= 1.0


def test_thesis_numbers_move_by_four_and_cost_one_over_l_plus_five() -> None:
    change = max(
        sum(
            np.abs(a - b).sum() / SUM_UNIT
            for a, b in zip(sums_of("thesis", [left]), sums_of("thesis", [right]), strict=True)
        )
        for left, right in itertools.permutations(RECORDS, 2)
    )
    assert change == 4.0
    # epsilon' = epsilon / (L + 5): scale 1 / epsilon' for each of the four sums.
    height = 10
    rest = 1 - hl.curve_share_of("thesis", 2**height)
    scales, _ = plan_scales([SUM_UNIT, SUM_UNIT], [0.5, 0.5], rest, Relation.of("replace-one"))
    assert [float(s) / SUM_UNIT for s in scales] == pytest.approx([height + 5] * 2)


def test_groups_are_half_open_so_that_a_score_on_a_cut_is_counted_once() -> None:
    score = np.array(GRID)
    assert group_of(score, CUTS).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_every_sum_has_its_own_noise() -> None:
    # Algorithm 10 as printed shares noise between observed and expected numbers, so that
    # their difference is exact. Here no two noises agree.
    empty = np.zeros(0)
    sums = release_sums(
        np.zeros(0, np.intp), hl._thesis(empty, empty), CUTS, epsilon=0.001,
        relation=Relation.of("replace-one"), rng=Randomness.seeded(1),
    )  # fmt: skip
    noise = np.concatenate(list(sums.columns.values()))
    assert np.unique(noise).size == 16


@given(st.integers(1, 40), st.integers(0, 10**6), st.sampled_from([(20.0, 5.0), (1.0, 2.0)]))
@settings(max_examples=60)
def test_one_record_moves_the_clipped_root_by_at_most_its_sensitivity(
    n: int, seed: int, limits: tuple[float, float]
) -> None:
    floor, clip = limits
    rng = np.random.default_rng(seed)
    p = np.append(rng.choice(GRID, n), rng.random(3)) ** rng.choice([1, 4])
    y = (rng.random(p.size) < rng.random()).astype(float)
    copies = rng.integers(1, 60)
    p, y = np.repeat(p, copies), np.repeat(y, copies)
    here = clipped_root(y, p, CUTS, floor, clip)
    added, replaced = (
        root_sensitivity(floor, clip, Relation.of(r)) for r in ("add-remove", "replace-one")
    )
    for a, b in RECORDS[::2] + RECORDS[1::3]:
        other = clipped_root(np.append(y, b), np.append(p, a), CUTS, floor, clip)
        assert abs(other - here) <= added + 1e-12
        swapped = clipped_root(np.append(y[1:], b), np.append(p[1:], a), CUTS, floor, clip)
        assert abs(swapped - here) <= replaced + 1e-12


def test_the_sensitivity_of_the_root_is_not_far_from_what_one_record_can_do() -> None:
    # One group, small variance: D moves by 1, so the root moves by 1/sqrt(floor).
    p, y = np.full(50, 0.01), np.ones(50) * 0
    y[:8] = 1
    here = clipped_root(y, p, np.zeros(0), 20.0, 5.0)
    there = clipped_root(np.append(y, 1), np.append(p, 0.0), np.zeros(0), 20.0, 5.0)
    assert there - here > 0.6 * root_sensitivity(20.0, 5.0, Relation.of("add-remove"))


@pytest.mark.parametrize("method", ["residual", "thesis", "statistic"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_statements_are_verified_and_within_the_budget(
    method: str, relation: str, delta: float
) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(400)
    test = dp_hosmer_lemeshow(
        rng.random(400) < p, p, epsilon=0.8, delta=delta, method=method, relation=relation,
        bins=64, rng=1, draws=50,
    )  # fmt: skip
    statement = test.statement()
    assert verify(statement).ok
    assert statement.epsilon <= 0.8
    if delta == 0:
        assert statement.epsilon > 0.79
    curve = private_calibration(
        rng.random(400) < p, p, epsilon=0.8, delta=delta, strategy="quantile", bins=64,
        relation=relation, rng=1,
    )  # fmt: skip
    assert verify(curve.statement()).ok
    assert curve.statement().epsilon <= 0.8


def classic_statistic(y: np.ndarray, p: np.ndarray, cuts: np.ndarray) -> float:
    group = group_of(p, cuts)
    total = 0.0
    for index in range(cuts.size + 1):
        inside = group == index
        for observed, expected in (
            (y[inside].sum(), p[inside].sum()),
            ((1 - y[inside]).sum(), (1 - p[inside]).sum()),
        ):
            total += (observed - expected) ** 2 / expected
    return total


@pytest.mark.parametrize("method", ["residual", "thesis"])
def test_with_hardly_any_noise_the_statistic_is_the_classic_one(method: str) -> None:
    rng = np.random.default_rng(3)
    p = np.round(rng.beta(2, 4, 5000) * 1024 - 0.5) / 1024 + 0.5 / 1024  # middles of bins
    y = (rng.random(5000) < p).astype(float)
    test = dp_hosmer_lemeshow(
        y, p, epsilon=400.0, method=method, bins=1024, rng=1, draws=4000, relation="replace-one"
    )
    assert test.statistic == pytest.approx(classic_statistic(y, p, test.cuts), rel=0.02)
    # Right predictions on new records: chi-square with as many degrees as groups.
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 10), abs=0.04)
    assert test.to_frame().shape == (10, 6)


def test_a_fitted_model_loses_two_degrees_of_freedom() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(2, 4, 20_000)
    y = rng.random(20_000) < p
    test = dp_hosmer_lemeshow(
        y, p, epsilon=400.0, rng=1, draws=20_000, fitted=True, relation="replace-one"
    )
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 8), abs=0.03)


@pytest.mark.parametrize("method", ["residual", "statistic"])
def test_right_predictions_are_rejected_at_the_level_and_wrong_ones_almost_always(
    method: str,
) -> None:
    # 120 tests at level 0.1 of right predictions: more than 32 rejections would have
    # probability below 1e-6 at the nominal level.
    rng = np.random.default_rng(5)
    p = rng.beta(1, 5, 8000)
    options = dict(epsilon=1.0, method=method, bins=256, draws=300, relation="replace-one")
    right = [
        dp_hosmer_lemeshow(rng.random(8000) < p, p, rng=seed, **options) for seed in range(120)
    ]
    assert sum(test.p_value <= 0.1 for test in right) <= 32
    assert sum(test.noise_aware_p_value <= 0.1 for test in right) <= 32
    wrong = [
        dp_hosmer_lemeshow(rng.random(8000) < p**1.5, p, rng=seed, **options) for seed in range(10)
    ]
    assert sum(test.noise_aware_p_value <= 0.1 for test in wrong) >= 9


def test_measuring_residuals_directly_beats_the_thesis_by_far() -> None:
    rng = np.random.default_rng(6)
    p = rng.beta(1, 5, 8000)
    y = (rng.random(8000) < p).astype(float)
    errors = {}
    for method in ("residual", "thesis"):
        tests = [
            dp_hosmer_lemeshow(
                y, p, epsilon=1.0, method=method, bins=256, rng=s, draws=1, relation="replace-one"
            )
            for s in range(25)
        ]
        truth = [classic_statistic(y, p, test.cuts) for test in tests]
        found = [test.statistic for test in tests]
        errors[method] = np.median(np.abs(np.array(found) - truth))
    assert errors["residual"] < errors["thesis"] / 4


# -------------------------------------------------------------------- calibration


def test_with_hardly_any_noise_the_curve_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(3000)
    y = (rng.random(3000) < p**1.3).astype(int)
    ours = dp_calibration_curve(y, p, epsilon=1e4, n_bins=7, rng=1, relation="replace-one")
    theirs = calibration_curve(y, p, n_bins=7)
    for left, right in zip(ours, theirs, strict=True):
        assert np.allclose(left, right, atol=2e-3)


def test_noise_of_the_residuals_has_its_stated_variance_and_the_interval_covers() -> None:
    # 400 releases of 10 groups: the mean square of 4000 Laplace numbers has relative
    # deviation sqrt(5 / 4000) = 0.035; 0.25 is seven of them. 400 intervals at 0.9: fewer
    # than 320 hits have probability below 1e-6.
    rng = np.random.default_rng(2)
    p = rng.random(2000)
    y = (rng.random(2000) < p).astype(float)
    group = group_of(p, np.arange(1, 10) / 10)
    truth = np.bincount(group, weights=y - p, minlength=10)
    ece = np.abs(truth).sum() / 2000
    hits, squares = 0, []
    for seed in range(400):
        found = private_calibration(y, p, epsilon=1.0, rng=seed, relation="replace-one")
        squares.append((found.residuals - truth) ** 2)
        low, high = found.ece_interval(0.9)
        hits += low <= ece <= high
    scale = found.sums.scales["residual"]
    assert abs(np.mean(squares) / (2 * scale**2) - 1) < 0.25
    assert hits >= 320


def test_calibration_sums_of_all_families_fit_one_epsilon() -> None:
    y, p = np.array([1.0, 0.0]), np.array([0.3, 1.0])
    sums = measure_calibration(y, p, CUTS, 1.0, Relation.of("replace-one"), Randomness.seeded(1))
    scales = sums.scales
    assert 2 / scales["count"] + 2 / scales["residual"] + 2 / scales["place"] <= 1.0
    assert sums.statement().epsilon == pytest.approx(1.0)


def test_ece_alone_and_plots() -> None:
    import matplotlib

    matplotlib.use("Agg")
    rng = np.random.default_rng(2)
    p = rng.random(5000)
    y = rng.random(5000) < 0.5
    value = dp_expected_calibration_error(y, p, epsilon=2.0, rng=1, relation="replace-one")
    assert abs(value - 0.25) < 0.05
    found = private_calibration(y, p, epsilon=2.0, relation="add-remove", rng=1)
    low, high = found.ece_interval()
    assert low < 0.26
    assert high > 0.24
    assert len(found.to_frame()) == 10
    assert found.plot().get_ylabel() == "share of positives"


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("seed", range(5))
def test_the_ece_of_a_single_record_is_a_number_between_0_and_1(relation: str, seed: int) -> None:
    found = private_calibration([1], [0.3], epsilon=0.1, relation=relation, rng=seed)
    low, high = found.ece_interval()
    assert 0 <= low <= high <= 1
    assert 0 <= found.ece <= 1


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(epsilon=0.0), "epsilon"),
        (dict(groups=0), "groups"),
        (dict(method="best"), "method"),
        (dict(cuts=[0.5, 0.2]), "cuts"),
        (dict(cuts=[0.0, 0.2]), "cuts"),
        (dict(floor=0.0), "floor"),
        (dict(draws=0), "draws"),
    ],
)
def test_wrong_arguments_of_the_test_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dp_hosmer_lemeshow([0, 1], [0.2, 0.8], **{"epsilon": 1.0, **change})


def test_wrong_records_are_refused_and_degenerate_ones_are_not() -> None:
    for call in (dp_hosmer_lemeshow, private_calibration):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            call([0, 1], [0.2, 1.5], epsilon=1.0)
        with pytest.raises(ValueError, match="NaN"):
            call([0, 1], [0.2, math.nan], epsilon=1.0)
        with pytest.raises(ValueError, match="empty"):
            call([], [], epsilon=1.0, relation="replace-one")
    for y, p in (([1], [0.5]), ([1, 1, 1], [0.2] * 3), ([0] * 50, [0.0] * 50)):
        for method in ("residual", "thesis", "statistic"):
            test = dp_hosmer_lemeshow(
                y, p, epsilon=1.0, method=method, bins=32, rng=1, draws=100, relation="replace-one"
            )
            assert 0 < test.p_value <= 1
            assert math.isfinite(test.statistic)
        found = private_calibration(y, p, epsilon=1.0, rng=1, relation="replace-one")
        assert np.isfinite(found.prob_true).all()


def test_contributions_are_integers_within_their_bound() -> None:
    p = np.array([0.0, 1 / 3, 1.0])
    units = to_units(p)
    assert units.dtype == np.int64
    assert units[0] == 0
    assert units[-1] == SUM_UNIT
    with pytest.raises(ValueError, match="shares"):
        plan_scales([SUM_UNIT, SUM_UNIT], [0.9, 0.2], 1.0, Relation.of("replace-one"))
