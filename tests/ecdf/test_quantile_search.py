"""Quantiles from few looks: as private as charged, alike everywhere, at home in wide bounds."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from noisewise import ecdf
from noisewise.ecdf import quantile_model, search as module
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.search import MOST_LOOKS, Found, QuantileSearch
from noisewise.errors import BudgetExceededError
from noisewise.federated import LocalAggregator
from noisewise.privacy import Ledger, Pure, ZeroConcentrated
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation
from noisewise.release import Envelope, MemoryAccount
from noisewise.release.decimals import Decimals, code_of, number_of

SKEWED = np.random.default_rng(0).lognormal(3.0, 1.0, 20_000)
THREE = (0.25, 0.5, 0.75)


def missed(records: np.ndarray, q: Any, found: Any) -> np.ndarray:
    """By how many records ranks are wrong."""
    ordered, wanted = np.sort(records), np.asarray(q) * records.size
    below = np.searchsorted(ordered, found, "left") - wanted
    return np.asarray(
        np.maximum(0, np.maximum(below, wanted - np.searchsorted(ordered, found, "right")))
    )


class Watched:
    """Looks at records, without an account: what is seen, and what was asked."""

    def __init__(self, records: Any, bounds: tuple[float, float], relation: str, seed: int) -> None:
        self.records, self.bounds = np.asarray(records, np.float64), bounds
        self.relation, self.generator = Relation.of(relation), np.random.default_rng(seed)
        self.asked: list[tuple[np.ndarray, Budget]] = []
        self.seen: list[PrivateECDF] = []

    def __call__(self, thresholds: np.ndarray, part: Budget) -> PrivateECDF:
        grid = Grid.of(self.bounds, 2, thresholds)
        mechanism = plan(grid.bins, self.relation, part)
        exact = np.cumsum(grid.count(self.records)).astype(np.float64)
        noisy = exact + mechanism.simulate(self.generator, 1)[0]
        counts: np.ndarray = np.maximum.accumulate(noisy)
        nothing: Any = None
        self.asked.append((thresholds, part))
        self.seen.append(
            PrivateECDF(grid, noisy, counts, mechanism, part, self.relation, "l2", nothing)
        )
        return self.seen[-1]


def searched(looks: Watched, q: Any, budget: Budget) -> Found:
    wanted = tuple(sorted(Fraction(one) for one in q))
    return QuantileSearch(Decimals(*map(float, looks.bounds)), wanted).run(looks, budget)


# --------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_all_looks_together_move_no_more_than_is_charged_whatever_was_seen(relation: str) -> None:
    """Exact loss of all looks, over neighbours of small datasets and many ways to go.

    With the noise of a look known, what a neighbour needs is the shift of its measurements over
    the scale of their noise, added up over all looks of that way.
    """
    few, worst = (0.0, 0.3, 0.31, 4.0), 0.0
    epsilon = 0.7
    datasets = [[0.3], [0.0, 4.0], [0.3, 0.31]]
    for number, records in enumerate(datasets):
        if relation == "add-remove":
            others = [[*records, extra] for extra in few]
        else:
            others = [[extra, *records[1:]] for extra in few if extra != records[0]]
        for many in (1, 3):
            looks = Watched(records, (-10.0, 1000.0), relation, number)
            q = np.arange(1, many + 1) / (many + 1)
            searched(looks, q, Budget(epsilon))
            for other in others:
                loss = Fraction(0)
                for (thresholds, _), seen in zip(looks.asked, looks.seen, strict=True):
                    grid = Grid.of(looks.bounds, 2, thresholds)
                    measure = seen.mechanism.strategy.measure
                    moved = np.abs(
                        measure(grid.count(np.array(other))) - measure(grid.count(looks.records))
                    )
                    scales = [
                        block.scale for block in seen.mechanism.noise for _ in range(block.size)
                    ]
                    assert len(scales) == moved.size
                    loss += sum(
                        Fraction(int(step)) / scale
                        for step, scale in zip(moved, scales, strict=True)
                        if step
                    )
                assert loss <= Fraction(epsilon)
                worst = max(worst, float(loss))
    assert worst > 0.99 * epsilon  # and noise that is a hundredth too small is noticed


def test_what_is_asked_next_follows_from_what_was_seen() -> None:
    """The same answers lead to the same questions, whatever the records are."""
    first = Watched(SKEWED, (-1e9, 1e9), "add-remove", 1)
    found = searched(first, THREE, Budget(1.0))
    answers = iter(first.seen)
    asked = []

    def replay(thresholds: np.ndarray, part: Budget) -> PrivateECDF:
        asked.append((thresholds, part))
        return next(answers)

    again = QuantileSearch(Decimals(-1e9, 1e9), tuple(map(Fraction, THREE))).run(
        replay, Budget(1.0)
    )
    assert again == found
    assert len(asked) == len(first.asked)
    for (mine, part), (other, same) in zip(asked, first.asked, strict=True):
        assert np.array_equal(mine, other)
        assert part == same


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 0.3}, {"epsilon": 0.3, "delta": 1e-6}, {"rho": 0.01},
     {"epsilon": 0.3, "units": np.arange(20_000) // 5, "max_per_unit": 3},
     {"epsilon": 0.3, "relation": "replace-one"}],
    ids=["pure", "delta", "rho", "units", "replaced"],
)  # fmt: skip
def test_the_whole_budget_is_charged_before_the_first_look_and_stated(
    options: dict[str, Any], tmp_path: Any
) -> None:
    asked = {"bounds": (-1e6, 1e6), "mechanism": "search", "seed": 2, **options}
    found = ecdf.dp_quantile(SKEWED, 0.5, ledger=tmp_path / "ledger", **asked)
    stated = found.statement()
    assert len(stated.history) == 1
    if "rho" not in options:
        assert 0.299 < stated.epsilon <= 0.3
        assert stated.delta == options.get("delta", 0.0)
    assert "looks at counts" in stated.mechanism
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.history == stated.history


def test_an_engine_that_fails_in_between_leaves_the_charge(tmp_path: Any) -> None:
    class Broken(LocalAggregator):
        answers = 0

        def total(self, vectors: Any) -> Any:
            Broken.answers += 1
            if Broken.answers == 2:
                raise OSError("gone")
            return super().total(vectors)

    with pytest.raises(OSError, match="gone"):
        ecdf.dp_median(
            [SKEWED], bounds=(-1e6, 1e6), epsilon=0.5, aggregator=Broken(), ledger=tmp_path / "l"
        )
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.spent() == 0.5


def test_an_envelope_of_concentrated_privacy_holds_rho_and_nothing_else() -> None:
    envelope = Envelope(MemoryAccount(), ZeroConcentrated(0.5), Randomness.secure())
    envelope.charge(ZeroConcentrated(0.1, 2), "two looks")
    assert envelope.left == Fraction(0.5) - Fraction(0.2)
    with pytest.raises(BudgetExceededError):
        envelope.charge(ZeroConcentrated(0.31), "too much")
    with pytest.raises(BudgetExceededError):
        envelope.charge(Pure(0.01), "another currency")


# ------------------------------------------------------------------------- accuracy


def test_arrays_tables_and_parties_give_the_same_bits() -> None:
    duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
    options: dict[str, Any] = {
        "bounds": (-1e9, 1e9),
        "epsilon": 1.0,
        "mechanism": "search",
        "seed": 1,
    }
    alone = ecdf.dp_quantile(SKEWED, THREE, **options)
    table = duckdb.connect().from_arrow(pa.table({"x": SKEWED}))
    there = ecdf.dp_quantile("x", THREE, data=table, **options)
    parts = [SKEWED[:5], SKEWED[5:]]
    apart = ecdf.dp_quantile(parts, THREE, aggregator=LocalAggregator(), **options)
    assert alone.tolist() == there.tolist() == apart.tolist()


def test_a_frame_in_memory_is_ranked_like_an_array() -> None:
    pd = pytest.importorskip("pandas")
    who = np.arange(SKEWED.size) // 4
    for units in (None, who):
        options: dict[str, Any] = {"bounds": (0, 1e9), "epsilon": 1.0, "seed": 3}
        alone = ecdf.dp_quantile(SKEWED, THREE, units=units, **options)
        frame = pd.DataFrame({"x": SKEWED, "who": who})
        name = None if units is None else "who"
        found = ecdf.dp_quantile("x", THREE, data=frame, units=name, **options)
        assert found.tolist() == alone.tolist()
        assert found.mechanism == alone.mechanism
        assert "exponential" in found.mechanism


@pytest.mark.parametrize("power", [3, 6, 9, 15, 100])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_bounds_may_be_wide(power: int, shift: float) -> None:
    """At ten times the noise of a look: each power of ten would else cost a factor of ten."""
    records = SKEWED + (shift if power > 3 else 0.0)
    looks = Watched(records, (-(10.0**power), 10.0**power), "add-remove", 7)
    found = searched(looks, THREE, Budget(1.0))
    assert missed(records, THREE, found.values).max() < 150  # of 20,000
    assert found.looks <= MOST_LOOKS


def test_what_many_records_share_is_found_to_the_bit() -> None:
    records = np.repeat([0.0, 12.5, 37.125, 2024.0], 4000)
    found = ecdf.dp_quantile(
        [records], [0.1, 0.4, 0.6, 0.9], bounds=(-1e12, 1e12), epsilon=1.0, seed=1,
        aggregator=LocalAggregator(),
    )  # fmt: skip
    assert found.tolist() == [0.0, 12.5, 37.125, 2024.0]


def test_looks_are_counted_and_their_cells_are_few() -> None:
    """Also where nothing is to be found: no records, one, or all at a bound."""
    flat = np.linspace(-1e6, 1e6, 10**5)
    for records in ([], [5.0], np.full(10**5, -1e6), np.full(10**5, 1e6), flat):
        for many in (1, 3) if records is not flat else (module.MOST_QUANTILES,):
            looks = Watched(records, (-1e6, 1e6), "add-remove", 1)
            q = np.arange(1, many + 1) / (many + 1)
            found = searched(looks, q, Budget(1.0))
            assert found.looks == len(looks.asked) <= MOST_LOOKS
            assert max(part.size for part, _ in looks.asked) <= module.MOST_CELLS + 2 * many + 1
            spent = sum(Fraction(part.epsilon) for _, part in looks.asked)
            assert spent <= 1
    with pytest.raises(ValueError, match="at most"):
        ecdf.dp_quantile(
            SKEWED, np.linspace(0, 1, 300), bounds=(0, 1), epsilon=1.0, mechanism="search"
        )


@pytest.mark.slow
def test_intervals_hold_all_quantiles_of_the_records() -> None:
    """At 90 %: more than `most` misses of 60 have a probability below 1e-6."""
    runs, level = 60, 0.9
    most = int(binom.isf(1e-6, runs, 1 - level))
    misses = 0
    for seed in range(runs):
        found = ecdf.dp_quantile(
            [SKEWED[:2000]], THREE, bounds=(-1e6, 1e6), epsilon=1.0, seed=seed,
            aggregator=LocalAggregator(),
        )  # fmt: skip
        low, high = found.confidence_interval(level)
        true = np.quantile(SKEWED[:2000], THREE, method="inverted_cdf")
        misses += not bool(((low <= true) & (true <= high)).all())
        assert bool((low < high).all())
    assert misses <= most


# ------------------------------------------------------------------------ thresholds


@pytest.mark.parametrize(
    "bounds", [(-1e9, 1e9), (0, 1), (-5, -2), (1e6, 1e6 + 1), (0, 1e280)], ids=str
)
def test_cuts_are_thresholds_that_divide_again_and_again(bounds: tuple[float, float]) -> None:
    domain = Decimals(float(bounds[0]), float(bounds[1]))
    low, high = domain.ends[0] - 1, domain.ends[1]
    generator = np.random.default_rng(0)
    for _ in range(20):
        ends = domain.cuts(low, high, 16)
        assert ends == sorted(set(ends))
        assert ends[-1] == high
        assert ends[0] > low
        assert len(ends) <= 16
        inside = [number for number in map(domain.number, ends) if bounds[0] < number < bounds[1]]
        Grid.of(bounds, 2, [*inside, bounds[1]])  # distinct enough for every grid
        if len(ends) == 1:
            break
        cell = int(generator.integers(len(ends)))
        low, high = ([low, *ends])[cell], ends[cell]


@pytest.mark.parametrize(
    ("above", "upto", "roundest"),
    [(2.96, 3.12, 3.0), (12.4, 12.7, 12.5), (-1.0, 1.0, 0.0), (-3.12, -2.96, -3.0),
     (0.7, 400.0, 10.0), (3.0, 3.00000000001, 3.00000000001), (97.3, 97.4, 97.4), (0.0, 5.0, None)],
)  # fmt: skip
def test_the_roundest_number_of_a_cell(above: float, upto: float, roundest: float | None) -> None:
    low, high = code_of([above, upto]).tolist()
    code = Decimals(-1e3, 1e3).simplest(low, high)
    assert low < code <= high
    if roundest is not None:
        assert number_of(code) == roundest


# --------------------------------------------------------------------- what "auto" takes


def test_auto_takes_what_misses_least_by_the_table_and_asks_for_n_only_where_it_decides() -> None:
    ways = quantile_model.MECHANISMS
    decides = []
    for many in range(1, 400):
        for size in (1, 10, 50, 100, 400, 1000, 10**5):
            chosen = quantile_model.best(many, size, ways)
            missed_by = [quantile_model.expected(way, many, size) for way in ways]
            limit = min(missed_by) / quantile_model.CLEARLY
            assert quantile_model.expected(chosen, many, size) <= limit * (1 + 1e-9)
        found = {quantile_model.best(many, size, ways) for size in (10, 100, 1000)}
        assert quantile_model.needs_size(many, ways) == (len(found) > 1)
        decides.append(len(found) > 1)
    assert any(decides)
    assert not all(decides)


def test_where_n_is_private_and_decides_it_is_paid_for_and_all_together_is_the_budget() -> None:
    ways = quantile_model.MECHANISMS
    many = next(m for m in range(1, 200) if quantile_model.needs_size(m, ways))
    q = np.arange(1, many + 1) / (many + 1)
    options: dict[str, Any] = {"bounds": (0, 1e6), "epsilon": 0.5, "seed": 1}
    for number in (20, 200, 20_000):
        found = ecdf.dp_quantile(SKEWED[:number], q, **options)
        assert found.statement().epsilon == 0.5
        public = ecdf.dp_quantile(SKEWED[:number], q, relation="replace-one", **options)
        assert public.statement().epsilon <= 0.5
        assert "2 thresholds" not in public.statement().mechanism


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("many", [1, 3])
def test_auto_counts_no_records_that_are_elsewhere(many: int, relation: str) -> None:
    """Tables are asked nothing but counts of looks, and parties of unequal size nothing at all."""
    duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
    q = np.arange(1, many + 1) / (many + 1)
    options: dict[str, Any] = {
        "bounds": (-1e9, 1e9), "epsilon": 1.0, "seed": 1, "relation": relation,
    }  # fmt: skip
    table = duckdb.connect().from_arrow(pa.table({"x": SKEWED}))
    alone = ecdf.dp_quantile(SKEWED, q, mechanism="search", **options)
    there = ecdf.dp_quantile("x", q, data=table, **options)
    parts = [SKEWED[:7], SKEWED[7:]]
    apart = ecdf.dp_quantile(parts, q, aggregator=LocalAggregator(), **options)
    assert alone.tolist() == there.tolist() == apart.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "epsilon", "many"), [(300, 0.3, 9), (3000, 0.3, 3)])
def test_auto_is_never_far_from_the_best(number: int, epsilon: float, many: int) -> None:
    """At most twice the error of the best fixed choice, on the shapes behind the table.

    Means of twelve releases vary by a fifth of themselves; a wrong choice costs a factor of three
    to a hundred here.
    """
    pytest.importorskip("benchmarks")
    from benchmarks.quantile_model import SHAPES, error

    def mean(way: str) -> float:
        cases = [(shape, wide) for shape in SHAPES for wide in (False, True)]
        return float(np.mean([error(*case, number, epsilon, many, way, 1) for case in cases]))

    assert mean("auto") <= 2 * min(mean("exponential"), mean("search"), mean("curve"))


@pytest.mark.parametrize("seed", range(4))
def test_what_a_look_has_ruled_out_stays_so(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later looks of as much noise could not rule it out again, and lost quantiles."""
    seen: list[list[Any]] = []
    narrowed = QuantileSearch._narrowed

    def watched(*words: Any) -> Any:
        seen.append(narrowed(*words))
        return seen[-1]

    monkeypatch.setattr(QuantileSearch, "_narrowed", watched)
    records = np.random.default_rng(seed).uniform(-30, 30, 10_000)
    looks = Watched(records, (-1e8, 1e8), "add-remove", seed)
    found = searched(looks, THREE, Budget(1.0))
    assert len(seen) > 2
    for before, after in pairwise(seen):
        for wider, narrower in zip(before, after, strict=True):
            assert wider.low <= narrower.low < narrower.high <= wider.high
    assert missed(records, THREE, found.values).max() < 100


@pytest.mark.parametrize("shape", ["normal", "lognormal", "uniform"])
def test_outer_quantiles_of_a_thousand_records_are_found_in_wide_bounds(shape: str) -> None:
    """Early looks take as much of the budget as tells a tenth of the records from none.

    Such runs missed 20, 16 and 24 records (means of 30, deviations 6 to 8).
    """
    q, off = np.arange(1, 10) / 10, []
    for seed in range(6):
        generator = np.random.default_rng([seed, 9])
        records = generator.normal(0, 10, 1000)
        if shape == "lognormal":
            records = 10 * generator.lognormal(0, 1, 1000)
        if shape == "uniform":
            records = generator.uniform(-30, 30, 1000)
        found = searched(Watched(records, (-1e8, 1e8), "add-remove", seed), q, Budget(1.0))
        off.append(missed(records, q, found.values).mean())
    assert np.mean(off) < 38
