"""All rows of a unit together move a curve by no more than its statement says."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_all_pairs import integer_shift

from noisewise import ecdf
from noisewise.ecdf import group_sums, streaming
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import measure_calibration
from noisewise.ecdf.counting import change_of, count_of, counting
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.hosmer_lemeshow import _residual_family, _thesis
from noisewise.ecdf.hosmer_lemeshow_root import CHANGE, release_root
from noisewise.ecdf.mechanisms import Mechanism, plan
from noisewise.ecdf.mechanisms.calibrating import for_units
from noisewise.ecdf.stream_items import FirstOfUnit
from noisewise.ecdf.two_class import two_curve_mechanism
from noisewise.errors import RelationError, UnsoundError
from noisewise.privacy import Ledger, verify
from noisewise.privacy.randomness import resolve
from noisewise.privacy.relation import Relation
from noisewise.privacy.units import unit_codes
from noisewise.release import MemoryAccount, PerUnit, Units, noise as noising, per_unit
from noisewise.release.units import WEIGHT_GRAIN

GENERATOR = np.random.default_rng(0)
IDS = GENERATOR.integers(0, 120, 500)
X = GENERATOR.random(500)
Y = (GENERATOR.random(500) < X).astype(int)
RULES = ("weights", "rows")


def bounding(limit: int, rule: str, parties: int = 1) -> PerUnit:
    units = Units([[]] * parties, rule=rule, parties=parties if parties > 1 else None)
    found = per_unit(units, limit, resolve(0), several=parties > 1)
    assert found is not None
    return found


# ------------------------------------------------------------------------- all pairs of units


def collections(places: int, most: int) -> Iterator[tuple[int, ...]]:
    """Where the rows of a unit may be: all multisets of up to so many rows."""
    for size in range(most + 1):
        yield from itertools.combinations_with_replacement(range(places), size)


def measured(
    mechanism: Mechanism, bounded: PerUnit, rows: tuple[int, ...], places: int
) -> np.ndarray:
    """Measurements of a unit with these rows, among two others with one and with three.

    Choices of others are the same whatever this unit is: their random numbers come first.
    """
    bounded = bounding(bounded.limit, bounded.rule)
    others = [0, places - 1, places // 2, places - 1]
    codes = np.array([1, 2, 2, 2] + [0] * len(rows), np.int64)
    place = np.array([*others, *rows], np.int64)
    return mechanism.strategy.measure(bounded.count(codes, place, places))


def check_pairs(mechanism: Mechanism, bounded: PerUnit, relation: str, places: int) -> None:
    # A unit that loses rows beyond its bound chooses others, so that all choices are looked at:
    # with "rows" a unit is what was chosen, of which any subset of the bound's size is possible.
    most = bounded.limit + (2 if bounded.rule == "weights" else 0)
    held = [
        measured(mechanism, bounded, rows, places)
        for rows in collections(places, most)
        if rows or relation == "add-remove"
    ]
    ends = np.cumsum(mechanism.strategy.blocks)[:-1]
    worst = 0.0
    reached = [0.0] * len(mechanism.noise)
    for one, other in (
        itertools.combinations(held, 2)
        if relation == "replace-one"
        else ((held[0], other) for other in held[1:])
    ):
        shift = integer_shift(mechanism, other - one)
        assert np.array_equal(mechanism.strategy.spread(shift), other - one)
        assert np.count_nonzero(shift) <= mechanism.touched
        loss = 0.0
        for number, part in enumerate(np.split(shift.astype(float), ends)):
            length = np.abs(part).sum() if mechanism.kind == "laplace" else np.sqrt((part**2).sum())
            assert length <= mechanism.sensitivity[number].value * (1 + 1e-9)
            reached[number] = max(reached[number], length / mechanism.sensitivity[number].value)
            scale = float(mechanism.noise[number].scale)
            loss += length / scale if mechanism.kind == "laplace" else length**2 / scale
        worst = max(worst, loss)
    stated = mechanism.epsilon if mechanism.kind == "laplace" else mechanism.ratio_squared
    assert worst <= stated * (1 + 1e-9)
    assert min(reached) > 0.45  # the check can fail: what is stated is nearly reached


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("kary", Budget(1.0)),
        ("kary", Budget(0.7, 1e-6)),
        ("histogram", Budget(1.0)),
        ("sqrt", Budget(0.7, 1e-6)),
    ],
    ids=str,
)
def test_no_pair_of_units_needs_a_longer_shift_than_stated(
    name: str, budget: Budget, rule: str, limit: int, relation: str
) -> None:
    bounded = bounding(limit, rule)
    most, bins = bounded.contribution, 4
    kind = Relation.of(relation)
    planned = plan(bins, kind, budget, mechanism=name, change=change_of(kind, most))
    mechanism = for_units(planned, most)
    check_pairs(mechanism, bounded, relation, bins)
    asked = counting(mechanism, kind, count_of(Grid.of((0, 1), bins), bounded), "counts",
                     contribution=most)  # fmt: skip
    asked.require(mechanism)
    if most.steps > 1:
        with pytest.raises(UnsoundError, match="was planned for"):
            asked.require(planned)  # noise for one row is refused by the kernel


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("budget", [Budget(1.0), Budget(0.7, 1e-6)], ids=str)
def test_a_unit_with_rows_in_both_classes_is_hidden_too(
    budget: Budget, rule: str, limit: int, relation: str
) -> None:
    bounded = bounding(limit, rule)
    mechanism = two_curve_mechanism(
        2, relation, budget, mechanism="kary", contribution=bounded.contribution
    )
    check_pairs(mechanism, bounded, relation, 4)


def test_a_unit_known_to_several_parties_costs_as_many_times() -> None:
    bounded = bounding(2, "rows", parties=3)
    assert bounded.contribution.rows == 6
    assert any("up to 6 rows" in said for said in bounded.contribution.sentences)
    one, six = (
        plan(4, "add-remove", Budget(1.0)),
        for_units(plan(4, "add-remove", Budget(1.0)), bounded.contribution),
    )
    assert six.noise[0].scale == 6 * one.noise[0].scale
    assert six.epsilon == one.epsilon
    with pytest.raises(ValueError, match="several parties"):
        ecdf.dp_ecdf(X, bounds=(0, 1), epsilon=1.0, units=Units(IDS, parties=3))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", ["calibration", "residual", "thesis"])
def test_no_unit_moves_sums_over_groups_by_more_than_stated(
    how: str, rule: str, limit: int, relation: str
) -> None:
    cuts = np.array([0.3, 0.7])
    spots = list(itertools.product((0.0, 1.0), (0.0, 0.3, 0.5, 1.0)))
    size = limit + 1 if rule == "weights" else limit
    units = [
        list(rows)
        for number in range(1, size + 1)
        for rows in itertools.combinations_with_replacement(spots, number)
    ]

    def sums(rows: list[tuple[float, float]]) -> tuple[np.ndarray, Any]:
        # Two others, one of them with more rows than count; their random numbers come first.
        others = [(1.0, 0.2), (0.0, 0.9), (1.0, 0.9), (1.0, 0.4)]
        held = np.array([*others, *rows])
        codes = np.array([1, 2, 2, 2] + [0] * len(rows), np.int64)
        labels, predictions = held[:, 0], held[:, 1]
        bounded = bounding(limit, rule)
        mine = group_sums.Held(bounded, codes)
        group = group_sums.group_of(predictions, cuts)
        seen: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noising, "add", lambda exact, noise: seen.append(exact) or exact)
            kind, rng = Relation.of(relation), resolve(0)
            if how == "calibration":
                measure_calibration(labels, predictions, cuts, 1.0, kind, rng, None, mine)
            else:
                make = _residual_family if how == "residual" else _thesis
                families = make(labels, predictions)
                group_sums.release_sums(
                    group, families, cuts, epsilon=1.0, relation=kind, rng=rng, held=mine
                )
        return seen[0]

    families = {"calibration": 3, "residual": 1, "thesis": 2}[how]
    # A unit's worst change is found at the ends of what its values can be.
    before = [np.split(sums(rows), families) for rows in units]
    nothing = np.split(sums([]), families)
    pairs = (
        itertools.combinations(before, 2)
        if relation == "replace-one"
        else ((nothing, one) for one in before)
    )
    factor = Relation.of(relation).sum_factor
    worst = 0.0
    for one, other in pairs:
        for a, b in zip(one, other, strict=True):
            worst = max(worst, float(np.abs(a - b).sum()) / (factor * limit * group_sums.SUM_UNIT))
    assert 0.9 < worst <= 1


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_no_unit_moves_the_root_of_the_statistic_by_more_than_stated(relation: str) -> None:
    cuts, limit, kind = np.array([0.1, 0.5]), 2, Relation.of(relation)
    spots = list(itertools.product((0.0, 1.0), (0.0, 0.1, 0.3, 1.0)))
    seen: list[int] = []

    def root(rows: list[tuple[float, float]]) -> int:
        held = np.array([(1.0, 0.4), (0.0, 0.2), *rows])
        codes = np.array([1, 2] + [0] * len(rows), np.int64)
        mine = group_sums.Held(bounding(limit, "rows"), codes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noising, "add", lambda exact, noise: seen.append(exact) or exact)
            release_root(
                held[:, 0], held[:, 1], cuts, 1.0, 0.5, 1.0, kind, MemoryAccount(), resolve(0), mine
            )
        return seen[-1]

    units = [list(rows) for rows in itertools.combinations_with_replacement(spots, limit)]
    values = [root(rows) for rows in units]
    moved = (
        max(values) - min(values)
        if relation == "replace-one"
        else max(abs(value - root([])) for value in values)
    )
    assert 0 < moved <= limit * CHANGE


# ------------------------------------------------------------------------------- the two rules


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_weights_are_what_a_random_choice_gives_on_average(limit: int) -> None:
    codes, place = unit_codes(IDS, 500), Grid.of((0, 1), 8).place(X)
    sizes = np.bincount(codes)
    expected = np.bincount(place, np.minimum(1, limit / sizes[codes]), 8)
    by_weight = bounding(limit, "weights").count(codes, place, 8)
    assert by_weight.sum() == np.minimum(sizes, limit).sum() * WEIGHT_GRAIN
    assert np.abs(by_weight / WEIGHT_GRAIN - expected).max() <= sizes.size / WEIGHT_GRAIN
    chooser = bounding(limit, "rows")
    draws = np.array([chooser.count(codes, place, 8) for _ in range(400)])
    # Each count is a sum of at most 120 independent bounded numbers: 6 deviations, 1e-8.
    deviation = np.sqrt(sizes.size * limit / 4 / 400)
    assert np.abs(draws.mean(0) - expected).max() < 6 * deviation
    assert np.all(draws.sum(1) == np.minimum(sizes, limit).sum())


def test_counts_do_not_depend_on_the_order_of_rows() -> None:
    codes, place = unit_codes(IDS, 500), Grid.of((0, 1), 8).place(X)
    order = np.random.default_rng(1).permutation(500)
    bounded = bounding(2, "weights")
    assert np.array_equal(
        bounded.count(codes, place, 8), bounded.count(codes[order], place[order], 8)
    )


def test_units_that_have_no_more_rows_than_count_are_counted_as_they_are() -> None:
    bounded = bounding(500, "weights")
    place = Grid.of((0, 1), 8).place(X)
    assert np.array_equal(
        bounded.count(unit_codes(IDS, 500), place, 8),
        WEIGHT_GRAIN * np.bincount(place, minlength=8),
    )


def test_one_unit_with_more_rows_than_steps_adds_exactly_its_bound() -> None:
    rows = 3 * WEIGHT_GRAIN + 7
    place = np.random.default_rng(0).integers(0, 1000, rows)
    for limit in (1, 7):
        counted = bounding(limit, "weights").count(np.zeros(rows, np.int64), place, 1000)
        assert counted.min() >= 0
        assert counted.sum() == limit * WEIGHT_GRAIN
        assert bounding(limit, "rows").count(np.zeros(rows, np.int64), place, 1000).sum() == limit


def test_products_beyond_64_bits_are_exact() -> None:
    bounded = bounding(1 << 20, "weights")
    values = np.full((3, 1), 1 << 40, np.int64)
    sums = bounded.sums(np.zeros(3, np.int64), np.zeros(3, np.int64), 1, values)
    assert sums.tolist() == [[3 << 40]]
    sums = bounding(2, "weights").sums(np.zeros(3, np.int64), np.zeros(3, np.int64), 1, values)
    assert sums.tolist() == [[2 << 40]]


# --------------------------------------------------------------------------------- identifiers


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "b", "a"],
        [("x", 1), ("y", 2), ("x", 1)],
        [date(2020, 1, 1), date(2021, 1, 1), date(2020, 1, 1)],
        [1, "1", 1],
        [frozenset([1]), frozenset([2]), frozenset([1])],
        np.array([7.5, 1.0, 7.5]),
        np.array(["2020-01-01", "2021-01-01", "2020-01-01"], "datetime64[D]"),
        np.array(["a", "b", "a"]),
        np.array([b"a", b"b", b"a"], object),
        pd.Series(["a", "b", "a"], dtype="category"),
        pd.Series([1, 2, 1], dtype="Int64", index=[9, 8, 7]),
        (Decimal(1), Decimal(2), Decimal(1)),
    ],
    ids=repr,
)
def test_identifiers_may_be_of_any_hashable_type(ids: Any) -> None:
    first, second, third = unit_codes(ids, 3).tolist()
    assert first == third != second


SECRET = "patient-4711"


@pytest.mark.parametrize(
    "ids",
    [
        [SECRET, None, "b"],
        [SECRET, math.nan, "b"],
        [SECRET, ("a", None), "b"],
        np.array([4711.0, np.nan, 1.0]),
        np.array(["2020-01-01", "NaT", "2020-01-01"], "datetime64[D]"),
        pd.Series([4711, None, 2], dtype="Int64"),
        pd.Series([SECRET, pd.NA, "b"], dtype="string"),
        pd.to_datetime(pd.Series(["2020-01-01", None, "2020-01-01"])),
        [SECRET, [1], "b"],
        [SECRET, np.zeros(2), "b"],
        [SECRET, "b"],
        SECRET,
        {SECRET: 1},
        4711,
        np.full((3, 2), 4711),
    ],
    ids=repr,
)
def test_what_is_no_identifier_is_refused_and_nothing_is_shown(ids: Any, tmp_path: Any) -> None:
    with Ledger.create(tmp_path / "l", unit=Units([]).name) as ledger:
        with pytest.raises((ValueError, TypeError)) as caught:
            ecdf.dp_ecdf(
                [0.1, 0.2, 0.3], bounds=(0, 1), epsilon=1.0, bins=8, units=ids, ledger=ledger
            )
        assert ledger.charges == ()
    assert "4711" not in str(caught.value)
    assert "4711" not in repr(caught.value.__cause__)
    assert "4711" not in repr(Units(ids))


def test_a_bound_without_units_is_refused() -> None:
    with pytest.raises(ValueError, match="no units="):
        ecdf.dp_ecdf(X, bounds=(0, 1), epsilon=1.0, max_per_unit=3)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises((ValueError, TypeError)):
            ecdf.dp_ecdf(X, bounds=(0, 1), epsilon=1.0, units=IDS, max_per_unit=wrong)


# ------------------------------------------------------------------------------------- curves


def on_values(function: Any, *rest: Any, **fixed: Any) -> Any:
    return lambda x=X, y=Y, **options: function(x, *rest, **fixed, **options)


def on_scores(function: Any, **fixed: Any) -> Any:
    return lambda x=X, y=Y, **options: function(y, x, **fixed, **options)


E = {"epsilon": 0.5}
CURVES = {
    "dp_ecdf": on_values(ecdf.dp_ecdf, bounds=(0, 1), bins=32, **E),
    "dp_ecdf, gaussian": on_values(ecdf.dp_ecdf, bounds=(0, 1), bins=32, delta=1e-6, **E),
    "dp_histogram": on_values(ecdf.dp_histogram, 16, (0, 1), **E),
    "private_histogram": on_values(ecdf.private_histogram, 16, (0, 1), **E),
    "private_roc": on_scores(ecdf.private_roc, bins=32, **E),
    "dp_roc_curve": on_scores(ecdf.dp_roc_curve, bins=32, **E),
    "dp_roc_auc_score": on_scores(ecdf.dp_roc_auc_score, bins=32, **E),
    "dp_precision_recall_curve": on_scores(ecdf.dp_precision_recall_curve, bins=32, **E),
    "dp_average_precision_score": on_scores(ecdf.dp_average_precision_score, bins=32, **E),
    "dp_det_curve": on_scores(ecdf.dp_det_curve, bins=32, **E),
    "private_calibration": on_scores(ecdf.private_calibration, **E),
    "private_calibration, quantile": on_scores(
        ecdf.private_calibration, strategy="quantile", bins=32, delta=1e-6, **E
    ),
    "dp_calibration_curve": on_scores(ecdf.dp_calibration_curve, **E),
    "dp_expected_calibration_error": on_scores(ecdf.dp_expected_calibration_error, **E),
    **{
        f"dp_hosmer_lemeshow, {method}": on_scores(
            ecdf.dp_hosmer_lemeshow, bins=32, draws=20, method=method, **E
        )
        for method in ("residual", "thesis", "statistic")
    },
    "private_evaluation": on_scores(ecdf.private_evaluation, bins=32, **E),
    "private_confusion": on_scores(
        lambda y, x, **o: ecdf.private_confusion(y, x > 0.5, classes=[0, 1], **o), **E
    ),
    "private_regression_errors": on_scores(ecdf.private_regression_errors, bounds=(0, 1), **E),
    "dp_quantile": on_values(ecdf.dp_quantile, [0.2, 0.7], bounds=(0, 1), **E),
    "dp_median": on_values(ecdf.dp_median, bounds=(0, 1), **E),
}
every = pytest.mark.parametrize("name", CURVES)


def test_every_releasing_name_takes_units() -> None:
    names = {name.split(",")[0] for name in CURVES}
    assert {n for n in ecdf.__all__ if n.startswith(("dp_", "private_"))} == names


@every
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 4])
def test_the_statement_names_unit_and_bound_and_is_what_was_charged(
    name: str, relation: str, limit: int, tmp_path: Any
) -> None:
    units = Units(IDS, name="one patient")
    with Ledger.create(tmp_path / "l", delta=1e-6, relation=relation, unit="one patient") as ledger:
        found = CURVES[name](units=units, max_per_unit=limit, relation=relation, ledger=ledger)
        statement = found.statement()
        assert statement.unit == ledger.unit == "one patient"
        told = [event.per_row(limit) for event in ledger.history]
        assert sorted(map(repr, statement.history)) == sorted(map(repr, told))
    assert verify(statement).ok
    assert statement.unit_rows == limit
    assert json.loads(statement.to_json())["unit_rows"] == limit
    assert statement.epsilon <= 0.5 * (1 + 1e-6)
    said = "\n".join(statement.assumptions)
    assert f"at most {limit} row" in said
    assert ("the number of units is public" in said) == (relation == "replace-one")
    assert "the number of records is public" not in said


@every
def test_a_ledger_of_rows_is_not_charged_for_units(name: str, tmp_path: Any) -> None:
    with Ledger.create(tmp_path / "l", delta=1e-6) as ledger:
        with pytest.raises(RelationError):
            CURVES[name](units=IDS, ledger=ledger)
        assert ledger.charges == ()


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rule", RULES)
def test_curves_without_noise_are_those_of_bounded_units(
    rule: str, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noising, "add", lambda exact, noise: exact)
    units = Units(IDS, rule=rule)
    curve = ecdf.dp_ecdf(X, bounds=(0, 1), bins=8, units=units, relation=relation, smooth=None, **E)
    frame = pd.DataFrame({"unit": IDS, "x": X})
    means = np.array(
        [(frame["x"] <= t).groupby(frame["unit"]).mean().mean() for t in curve.thresholds]
    )
    if rule == "weights":
        assert np.abs(curve.probabilities - means).max() < 1e-4
    assert curve.total == pytest.approx(frame["unit"].nunique())


def test_half_of_the_table_in_one_unit_weighs_as_one() -> None:
    ids = np.concatenate([np.zeros(500, int), np.arange(1, 501)])
    x = np.concatenate([np.full(500, 0.9), np.full(500, 0.1)])
    curve = ecdf.dp_ecdf(x, bounds=(0, 1), bins=16, epsilon=5.0, units=ids, seed=1)
    assert abs(curve(0.5) - 500 / 501) < 0.02


def test_a_choice_with_a_seed_can_be_repeated_and_the_statement_says_so() -> None:
    units = Units(IDS, rule="rows")
    one, two = (CURVES["dp_ecdf"](units=units, max_per_unit=2, seed=3) for _ in range(2))
    assert np.array_equal(one.noisy_counts, two.noisy_counts)
    assert "NOT secret" in one.statement().randomness
    said = "\n".join(one.statement().assumptions)
    assert "2 are chosen at random" in said


def test_parties_bound_their_own_rows() -> None:
    from noisewise.federated import LocalAggregator

    parts = np.array_split(X, 3), np.array_split(IDS, 3)
    curve = ecdf.dp_ecdf(
        parts[0], bounds=(0, 1), bins=16, epsilon=20.0, aggregator=LocalAggregator(), seed=1,
        units=Units(parts[1], parties=3), max_per_unit=1,
    )  # fmt: skip
    pairs = sum(np.unique(ids).size for ids in parts[1])
    assert abs(curve.total - pairs) < 10
    assert "at most 3 parties hold rows of one unit" in "\n".join(curve.statement().assumptions)
    labels = np.array_split(Y, 3)
    roc = ecdf.private_roc(
        labels, parts[0], epsilon=20.0, aggregator=LocalAggregator(), relation="replace-one",
        units=Units(parts[1], parties=1), max_per_unit=1, seed=1, bins=32,
    )  # fmt: skip
    assert roc.release.records == pairs
    with pytest.raises(ValueError, match="one entry for each party: here 3"):
        ecdf.dp_ecdf(parts[0], bounds=(0, 1), epsilon=1.0, aggregator=LocalAggregator(), units=IDS)


def test_a_look_at_the_shape_is_refused_with_units() -> None:
    with pytest.raises(ValueError, match="use mechanism='auto' with units"):
        ecdf.dp_ecdf(X, bounds=(0, 1), epsilon=1.0, units=IDS, mechanism="adaptive")


def test_no_rows_are_a_dataset_like_any_other() -> None:
    for rule in RULES:
        curve = CURVES["dp_ecdf"](x=np.zeros(0), units=Units([], rule=rule), seed=1)
        assert np.isfinite(curve.probabilities).all()
        roc = CURVES["private_roc"](x=[], y=[], units=Units([], rule=rule), seed=1)
        # Rates among a noisy number of 0 are not defined; the numbers are noise like any other.
        assert np.isfinite(roc.release.counts).all()
        assert roc.release.noisy.any()
    with pytest.raises(ValueError, match="empty"):
        CURVES["dp_ecdf"](x=np.zeros(0), units=[], relation="replace-one", max_per_unit=2)


# ------------------------------------------------------------------------------------ streams


def test_a_stream_counts_the_first_items_of_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noising, "add", lambda exact, noise: exact)
    counter = ecdf.StreamingCounter(epsilon=1.0, max_per_unit=2)
    released = counter.extend([1, 1, 1, 1], ["a", "a", "a", "b"])
    assert released.tolist() == [1, 2, 2, 3]
    assert counter.update(1, "a") == 3
    assert counter.update(1, ("b",)) == 4  # another identifier
    assert counter.update(1, "b") == 5


@pytest.mark.parametrize("mechanism", ["kary", "thesis"])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_stream_of_units_has_so_many_times_the_noise(mechanism: str, limit: int) -> None:
    one, units = (
        ecdf.StreamingCounter(epsilon=1.0, mechanism=mechanism, horizon=64, seed=1, **options)
        for options in ({"bound": limit}, {"max_per_unit": limit})
    )
    one.extend(np.zeros(64, int))
    units.extend(np.zeros(64, int), np.arange(64))
    # An item that may be `limit` has the noise that `limit` items need.
    assert units.variance == one.variance
    statement = units.statement()
    assert verify(statement).ok
    assert statement.epsilon <= 1 + 1e-9
    assert statement.unit.startswith("one unit")
    assert f"the first {limit} items count" in "\n".join(statement.assumptions)


def test_a_stream_of_units_refuses_what_it_cannot_bound(tmp_path: Any) -> None:
    counter = ecdf.StreamingCounter(epsilon=1.0, max_per_unit=2)
    for units in (None, [SECRET, None], [SECRET], [[1], SECRET]):
        with pytest.raises((ValueError, TypeError)) as caught:
            counter.extend([1, 1], units)
        assert "4711" not in str(caught.value)
    assert counter.position == 0
    with pytest.raises(ValueError, match="max_per_unit="):
        ecdf.StreamingCounter(epsilon=1.0).extend([1], ["a"])
    with pytest.raises(ValueError, match="not stored"):
        ecdf.StreamingCounter(epsilon=1.0, max_per_unit=2, path=tmp_path / "s")
    with pytest.raises(ValueError, match="use 'kary'"):
        ecdf.StreamingCounter(epsilon=1.0, delta=1e-6, max_per_unit=2, mechanism="sqrt")
    path = tmp_path / "l"
    with ecdf.StreamingCounter(epsilon=1.0, max_per_unit=2, ledger=path) as paid:
        paid.extend([1], ["a"])
    with Ledger.open(path) as ledger:
        assert ledger.unit.startswith("one unit")
    with pytest.raises(RelationError):
        ecdf.StreamingCounter(epsilon=1.0, ledger=path)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("bound", [1, 3])
def test_no_pair_of_units_changes_more_of_a_stream_than_stated(limit: int, bound: int) -> None:
    """All contents of a unit with three items among those of others."""
    whose = ["b", "a", "a", "c", "b", "a"]
    mine = [place for place, name in enumerate(whose) if name == "a"]

    def counted(values: tuple[int, ...]) -> np.ndarray:
        items = np.array([1, 0, 0, 1, 1, 0])
        items[mine] = values
        first = FirstOfUnit(limit)
        # In pieces, as a stream comes.
        return np.concatenate(
            [first.kept(items[s : s + 2], whose[s : s + 2]) for s in range(0, 6, 2)]
        )

    contents = list(itertools.product(range(bound + 1), repeat=len(mine)))
    found = [counted(values) for values in contents]
    moved = [np.abs(a - b) for a, b in itertools.combinations(found, 2)]
    assert max(int(m.sum()) for m in moved) == limit * bound
    others = [place for place in range(6) if place not in mine]
    assert all(not m[others].any() for m in moved)


@pytest.mark.parametrize("mechanism", ["kary", "thesis"])
def test_a_unit_that_spreads_its_items_over_segments_costs_no_more(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every segment may spend the whole epsilon: on a unit that has all its items there."""
    limit, made = 3, []
    start = streaming.TreeSegment.__init__

    def watched(self: Any, noise: Any, bound: int) -> None:
        made.append(noise)
        start(self, noise, bound)

    monkeypatch.setattr(streaming, "FIRST", 4)
    monkeypatch.setattr(streaming.TreeSegment, "__init__", watched)
    counter = ecdf.StreamingCounter(epsilon=1.0, max_per_unit=limit, mechanism=mechanism, seed=1)
    counter.extend(np.ones(70, int), [n % 9 for n in range(70)])
    assert len(made) == 3
    stated = counter.statement()
    assert stated.unit_rows == limit
    # All ways to have so many items, each changed by one, in three segments.
    for items in itertools.product(range(limit + 1), repeat=len(made)):
        if sum(items) <= limit:
            cost = sum(number * noise.epsilon(1) for number, noise in zip(items, made, strict=True))
            assert cost <= stated.epsilon
    assert max(noise.epsilon(limit) for noise in made) > 0.99
