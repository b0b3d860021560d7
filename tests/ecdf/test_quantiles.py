"""Quantiles: drawn by the law that is written down, as private as stated, and accurate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from noisewise import ecdf
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.quantiles import plan_quantiles
from noisewise.errors import BudgetExceededError, UnsoundError
from noisewise.privacy import Ledger, verify
from noisewise.privacy.randomness import resolve
from noisewise.privacy.relation import Relation
from noisewise.release import Contribution, picking, rank_choice
from noisewise.release.decimals import Coarse, Decimals, code_of, number_of
from noisewise.release.rank_choice import RankChoice, Ranked

# ------------------------------------------------------------------------------- the domain


def test_codes_are_in_the_order_of_numbers_and_keep_fifteen_digits() -> None:
    generator = np.random.default_rng(0)
    size = generator.lognormal(0, 40, 3000)
    values = np.sort(np.concatenate([-size, [0.0, 1e-300, -1e-300], size]))
    codes = code_of(values)
    assert np.all(np.diff(codes) >= 0)
    back = np.array([number_of(int(code)) for code in codes])
    inside = np.abs(values) > 1e-289
    assert np.abs(back[inside] / values[inside] - 1).max() < 1e-14
    rounded = np.round(generator.normal(0, 1000, 3000), 3)
    assert [number_of(int(code)) for code in code_of(rounded)] == (rounded + 0.0).tolist()


def test_a_code_does_not_depend_on_the_place_in_an_array() -> None:
    values = np.random.default_rng(0).lognormal(0, 40, 1001)
    alone = [int(code_of([value])[0]) for value in values]
    assert code_of(values).tolist() == alone
    assert code_of(values[::-1]).tolist() == alone[::-1]


@pytest.mark.parametrize(
    "bounds",
    [(0, 120), (-3, 5), (-1e9, 1e9), (1e6, 1e6 + 1), (0.1, 0.2), (-1e280, 1e280), (-5, -2)],
    ids=str,
)
def test_the_measure_is_additive_positive_and_found_again(bounds: tuple[float, float]) -> None:
    domain = Decimals(float(bounds[0]), float(bounds[1]))
    low, high = domain.ends
    generator = np.random.default_rng(0)
    drawn = [generator.integers(low, high, 200), code_of(np.round(generator.uniform(*bounds, 50)))]
    codes = np.unique(np.clip(np.concatenate([*drawn, [low, high, 0]]), low, high))
    upto = domain.upto(codes)
    alone = [a - b for a, b in zip(upto, domain.upto(codes - 1), strict=True)]
    assert min(alone) >= 1
    assert all(b - a >= c for a, b, c in zip(upto, upto[1:], alone[1:], strict=False))
    for code, after in zip(codes.tolist(), upto, strict=True):
        assert domain._at(code) - domain._at(low - 1) == after
        assert domain.find(after - 1, low - 1, high) == code


def test_the_measure_of_a_number_is_the_sum_of_what_it_is_a_multiple_of() -> None:
    domain = Decimals(-3.0, 5.0)
    _, weights, steps = domain._round
    for value in (1.0, -1.0, 2.5, 3.14, -3.0, 5.0, 1e-5, -1e-5, 4.9, 0.123456789):
        code = int(code_of([value])[0])
        exact = Fraction(repr(value))
        expected = sum(w for w, p in domain._even if (exact / Fraction(10) ** p).denominator == 1)
        power, place = divmod(abs(code) - 1, 9 * 10**14)
        piece = 3 * power + (place >= 10**14) + (place >= 4 * 10**14)  # from 1, from 2, from 5
        expected += sum(w for w, s in zip(weights[piece], steps, strict=True) if place % s == 0)
        first, last = domain.upto([code - 1, code])
        assert last - first == expected


@pytest.mark.parametrize("bounds", [(0.0, 120.0), (-7.0, 3.0), (5.0, 6.0), (-1e9, 1e-3)], ids=str)
def test_limits_are_rounded_outwards(bounds: tuple[float, float]) -> None:
    values = np.random.default_rng(0).uniform(*bounds, 500)
    values[:3] = [*bounds, np.clip(1e-12, *bounds)]
    for mirrored in (False, True):
        coarse = Coarse.of(Decimals(*bounds), mirrored)
        sign = -1 if mirrored else 1
        numbers = [coarse.number(int(code)) for code in coarse.place(sign * values)]
        assert np.all(np.array(numbers) <= sign * values + 1e-13 * np.abs(values))
        codes = np.arange(coarse.low, coarse.high + 1)
        listed = np.array([coarse.number(int(code)) for code in codes])
        assert np.all(np.diff(listed) > 0)


# ----------------------------------------------------------------------------------- the law


def regions_of(scores: list[int], masses: list[int]) -> Callable[[Fraction], picking.Regions]:
    def near(reach: Fraction) -> picking.Regions:
        kept = [i for i, score in enumerate(scores) if score <= reach]
        return picking.Regions(
            [scores[i] for i in kept], [masses[i] for i in kept], [(i, i) for i in kept], []
        )

    return near


def test_regions_are_drawn_with_their_probabilities() -> None:
    scores, masses = [7, 0, 3, 40, 1, 2000], [5, 1, 10**30, 10**40, 0, 10**60]
    rate = Fraction(3, 2)
    weights = np.array([m * math.exp(-1.5 * s) for s, m in zip(scores, masses, strict=True)])
    expected = weights / weights.sum()
    rng, counts, draws = resolve(5), np.zeros(6), 4000
    for _ in range(draws):
        found, number, inside = picking.pick(regions_of(scores, masses), rate, sum(masses), rng)
        chosen = found.points[number][0]
        assert 0 <= inside < masses[chosen]
        counts[chosen] += 1
    assert counts[expected == 0].sum() == 0
    likely = expected * draws > 5
    statistic = ((counts - draws * expected)[likely] ** 2 / (draws * expected[likely])).sum()
    assert statistic < chi2.isf(1e-6, max(likely.sum() - 1, 1))


def test_digits_are_drawn_until_the_region_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few digits at first almost every draw has to be decided by more; the law stays."""
    monkeypatch.setattr(picking, "_DIGITS", 8)
    rng, draws = resolve(6), 3000
    scores, masses = [0, 1, 2, 3], [1, 2, 3, 4]
    weights = np.array([m * math.exp(-s) for s, m in zip(scores, masses, strict=True)])
    expected = weights / weights.sum()
    counts = np.zeros(4)
    for _ in range(draws):
        found, number, _ = picking.pick(regions_of(scores, masses), Fraction(1), 10, rng)
        counts[found.points[number][0]] += 1
    statistic = ((counts - draws * expected) ** 2 / (draws * expected)).sum()
    assert statistic < chi2.isf(1e-6, 3)


def test_exponentials_are_enclosed() -> None:
    from mpmath import exp, floor, mp, mpf

    mp.prec = 2000
    for exponent in (
        Fraction(0),
        Fraction(1, 3),
        Fraction(700),
        Fraction(10**6, 7),
        Fraction(10**9),
    ):
        for digits in (16, 128, 512):
            low, high = picking.exp_between(exponent, digits)
            true = exp(-mpf(exponent.numerator) / exponent.denominator) * mpf(2) ** digits
            assert low <= true <= high
            assert high - low <= 2
            assert int(floor(true)) in (low, low + 1)


# ------------------------------------------------------------------ privacy, by all neighbours


class Scripted:
    """Chooses as told, and remembers how likely that was."""

    def __init__(self, places: list[float]) -> None:
        self.places = iter(places)
        self.logarithms: list[float] = []

    @property
    def logarithm(self) -> float:
        return math.fsum(self.logarithms)

    def pick(self, regions: Any, rate: Fraction, whole: int, rng: Any) -> Any:
        found = regions(Fraction(10**40))
        assert sum(found.masses) == whole  # all of them
        first = found.marks[0]
        wanted = first + int(Fraction(next(self.places)) * whole)
        number = next(
            number
            for number, (mark, mass) in enumerate(zip(found.marks, found.masses, strict=False))
            if mark <= wanted < mark + mass
        )
        best = min(found.scores)
        total = sum(
            mass / whole * math.exp(-float(rate * (score - best)))
            for mass, score in zip(found.masses, found.scores, strict=True)
        )
        likely = -float(rate * (found.scores[number] - best)) - math.log(total)
        self.logarithms.append(likely)
        return found, number, wanted - found.marks[number]


class Ties:
    """A source whose words belong to the records, in their order."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def spawn(self, count: int) -> list[Ties]:
        return [self] * count

    def uint64(self, size: int) -> np.ndarray:
        return np.array(self.words[:size], np.uint64)


def likelihood(
    choice: RankChoice, records: list[tuple[float, int]], places: list[float]
) -> tuple[float, list[float]]:
    """How likely the outcome at these places is, and of each choice of it."""
    script = Scripted(places)
    words = [int(w) for w in np.random.default_rng(7).integers(0, 2**63, 32)]
    exact = Ranked(np.array([r[0] for r in records]), np.array([r[1] for r in records], np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_choice, "pick", script.pick)
        choice.applied(exact, Ties(words))  # type: ignore[arg-type]
    return script.logarithm, script.logarithms


REST = [(3.0, 1), (1.0, 1), (3.0, 1), (7.5, 1), (3.0, 1)]
SPOTS = (0.0, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0)


def units_of(steps: int) -> list[list[tuple[float, int]]]:
    """All ways in which a unit may spread so many steps over the spots, of one or two rows."""
    alone = [[(spot, steps)] for spot in SPOTS]
    if steps == 1:
        return alone
    return alone + [[(a, steps - 1), (b, 1)] for a, b in itertools.product(SPOTS[::2], SPOTS[1::2])]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "quantiles", [(0.5,), (0.9,), (0.0,), (0.25, 0.5, 0.75), (0.05, 0.6, 0.61, 0.9)], ids=str
)
def test_no_unit_makes_any_outcome_likelier_than_stated(
    quantiles: tuple[float, ...], steps: int, relation: str
) -> None:
    kind = Relation.of(relation)
    most = Contribution(rows=steps, unit="one unit", sentences=("of units",))
    levels = tuple(map(Fraction, quantiles))
    choice = plan_quantiles(Decimals(0.0, 10.0), levels, kind, Budget(1.0), most)
    generator = np.random.default_rng(1)
    worst = 0.0
    scale = [(value, steps) for value, _ in REST]  # the others count as much as this one
    # Also one for which the number of records matters, and nobody else.
    for rest in (scale, [], [(3.0, 1)] * 3):
        for _ in range(4):
            places = generator.random(len(levels)).tolist()
            # The random words of the others come first, so that they are the same.
            with_unit = [likelihood(choice, [*rest, *unit], places) for unit in units_of(steps)]
            logs = [log for log, _ in with_unit]
            if relation == "add-remove":
                nothing = likelihood(choice, rest, places)[0]
                worst = max(worst, *(abs(log - nothing) for log in logs))
            else:
                worst = max(worst, max(logs) - min(logs))
    assert worst <= 1.0 + 1e-9
    assert worst > 0.2  # the check can fail


def test_the_spread_that_is_stated_is_reached() -> None:
    """With a spread that is a tenth too small the same check fails."""
    choice = plan_quantiles(
        Decimals(0.0, 10.0), (Fraction(1, 2),), Relation("add-remove"), Budget(1.0)
    )
    rest = [(3.0, 1)] * 20 + [(7.0, 1)] * 20
    generator = np.random.default_rng(2)
    places = [[place] for place in generator.random(120)]
    ratios = [
        likelihood(choice, [*rest, (1.0, 1)], place)[0] - likelihood(choice, rest, place)[0]
        for place in places
    ]
    assert 0.9 < max(ratios) - min(ratios) <= 1.0 + 1e-9


def test_a_concentrated_budget_bounds_the_range_of_each_choice() -> None:
    """An eta-bounded range is eta^2 / 8-zCDP (Cesar and Rogers 2021); here eta is checked."""
    rho = 0.02
    levels = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
    choice = plan_quantiles(
        Decimals(0.0, 10.0), levels, Relation("add-remove"), Budget.concentrated(rho)
    )
    assert sum(float(rate) ** 2 / 8 for rate in choice.rates) <= rho
    generator = np.random.default_rng(3)
    eta = float(choice.rates[0])

    def ratios(unit: list[tuple[float, int]], places: list[float]) -> np.ndarray:
        one, other = (likelihood(choice, held, places)[1] for held in ([*REST, *unit], REST))
        return np.array(one) - np.array(other)

    for unit in units_of(1):
        first = generator.random()
        later = [ratios(unit, [first, *generator.random(2)]) for _ in range(8)]
        below_and_above = [ratio[1] + ratio[2] for ratio in later]  # given the first
        assert max(below_and_above) - min(below_and_above) <= eta + 1e-9
        top = [ratios(unit, generator.random(3).tolist())[0] for _ in range(8)]
        assert max(top) - min(top) <= eta + 1e-9


# ---------------------------------------------------------------------------------- accuracy


def missed(x: np.ndarray, q: Any, found: Any) -> float:
    """By how many records the rank is missed, on average."""
    ordered, target = np.sort(x), np.asarray(q) * len(x)
    below = np.searchsorted(ordered, np.asarray(found), "left")
    upto = np.searchsorted(ordered, np.asarray(found), "right")
    return float(np.maximum(0, np.maximum(below - target, target - upto)).mean())


@pytest.mark.parametrize("bounds", [(0, 120), (-1e6, 1e6), (-1e12, 1e12), (0, 1e280)], ids=str)
@pytest.mark.parametrize("q", [0.5, [0.25, 0.5, 0.75]], ids=str)
def test_bounds_that_are_far_too_wide_cost_next_to_nothing(bounds: Any, q: Any) -> None:
    x = np.random.default_rng(0).normal(40, 10, 2000)
    found = [
        missed(x, q, ecdf.dp_quantile(x, q, bounds=bounds, epsilon=0.5, seed=seed))
        for seed in range(4)
    ]
    assert np.mean(found) < 25


def test_what_all_records_share_is_found_to_the_bit() -> None:
    for value, bounds in ((0.1, (0, 1)), (47.0, (-1e9, 1e9)), (0.0, (0, 1e12)), (1234.5, (0, 1e6))):
        x = np.full(2000, value)
        found = ecdf.dp_quantile(x, [0.1, 0.5, 0.9], bounds=bounds, epsilon=0.5, seed=1)
        assert np.all(np.asarray(found) == value)
        assert ecdf.dp_median(x, bounds=bounds, epsilon=0.5, seed=1) == value


def test_records_that_share_a_number_do_not_shift_the_other_quantiles() -> None:
    """Without random digits all zeros would be on one side of the first split."""
    generator = np.random.default_rng(0)
    x = np.where(generator.random(4000) < 0.6, 0.0, generator.lognormal(3, 1, 4000))
    q = [0.25, 0.5, 0.75, 0.9]
    found = [missed(x, q, ecdf.dp_quantile(x, q, bounds=(0, 1e6), epsilon=1.0, seed=s)) for s in
             range(5)]  # fmt: skip
    assert np.mean(found) < 20


def test_with_an_epsilon_beyond_any_noise_the_records_own_numbers_come_out() -> None:
    """A curve has next to no noise then, and its bins are still between the numbers."""
    x = [1.0, 2.0, 3.0] * 50
    found = ecdf.dp_quantile(x, [0.1, 0.5], bounds=(0, 10), epsilon=1e6, seed=1)
    assert np.asarray(found).tolist() == [1.0, 2.0]


def test_heavy_tails_do_not_matter() -> None:
    x = np.random.default_rng(0).standard_cauchy(3000)
    found = ecdf.dp_quantile(x, [0.05, 0.5, 0.95], bounds=(-1e15, 1e15), epsilon=1.0, seed=2)
    assert missed(x, [0.05, 0.5, 0.95], found) < 40


def test_quantiles_come_in_the_shape_and_order_in_which_they_were_asked_for() -> None:
    x = np.random.default_rng(0).random(1000)
    q = np.array([[0.9, 0.1], [0.5, 0.5]])
    found = ecdf.dp_quantile(x, q, bounds=(0, 1), epsilon=5.0, seed=1)
    assert found.shape == q.shape
    assert found[0, 0] > found[1, 0] > found[0, 1]
    assert found[1, 0] == found[1, 1]
    many = np.asarray(ecdf.dp_quantile(x, np.linspace(0, 1, 40), bounds=(0, 1), epsilon=0.01))
    assert np.all(np.diff(many) >= 0)
    assert many.min() >= 0
    assert many.max() <= 1


@pytest.mark.parametrize("mechanism", ["exponential", "curve"])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_an_interval_holds_the_quantile_of_the_records(mechanism: str, relation: str) -> None:
    x = np.round(np.random.default_rng(0).normal(40, 10, 1500), 1)
    q = [0.1, 0.5]
    truth = np.quantile(x, q, method="inverted_cdf")
    outside, runs, widths = 0, 60, []
    for seed in range(runs):
        found = ecdf.dp_quantile(
            x, q, bounds=(0, 120), epsilon=1.0, relation=relation, mechanism=mechanism,
            interval=0.8, bins=256, seed=seed,
        )  # fmt: skip
        low, high = found.confidence_interval(0.8)
        outside += int(np.any((truth < low) | (truth > high)))
        widths.append(np.mean(high - low))
    # At most a fifth of the time: P(Binomial(60, 0.2) > 28) < 1e-6.
    assert outside <= 28
    assert np.mean(widths) < 40


def test_an_interval_that_was_not_paid_for_is_the_bounds() -> None:
    x = np.random.default_rng(0).random(500)
    median = ecdf.dp_median(x, bounds=(0, 1), epsilon=1.0, seed=1)
    assert median.confidence_interval() == (0.0, 1.0)
    paid = ecdf.dp_median(x, bounds=(0, 1), epsilon=1.0, interval=0.9, seed=1)
    low, high = paid.confidence_interval(0.9)
    assert 0 < low <= 0.5 <= high < 1
    assert paid.confidence_interval(0.5) == (low, high)
    assert paid.confidence_interval(0.95) == (0.0, 1.0)


# ------------------------------------------------------------------------------------- edges


def test_no_records_and_one_record_are_datasets_like_any_other() -> None:
    for x in ([], [0.3]):
        for q in (0.5, [0.1, 0.9]):
            found = ecdf.dp_quantile(x, q, bounds=(0, 1), epsilon=1.0, interval=0.9, seed=1)
            assert np.all((np.asarray(found) >= 0) & (np.asarray(found) <= 1))
            low, high = found.confidence_interval(0.9)
            assert np.all(np.asarray(low) == 0)
            assert np.all(np.asarray(high) == 1)
    ecdf.dp_median([0.3], bounds=(0, 1), epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="empty"):
        ecdf.dp_median([], bounds=(0, 1), epsilon=1.0, relation="replace-one")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": [0.1, math.nan]}, "NaN"),
        ({"x": np.ma.masked_array([0.1, 0.2], [False, True])}, "masked"),
        ({"x": ["a"]}, "real numbers"),
        ({"q": 1.5}, r"\[0, 1\]"),
        ({"q": math.nan}, r"\[0, 1\]"),
        ({"q": []}, "at least one"),
        ({"q": "0.5"}, r"\[0, 1\]"),
        ({"q": 0.5j}, r"\[0, 1\]"),
        ({"q": [True, False]}, r"\[0, 1\]"),
        ({"q": None}, r"\[0, 1\]"),
        ({"bins": 0}, "bins"),
        ({"bins": "many"}, "bins"),
        ({"q": np.linspace(0, 1, 41), "bins": 1 << 20, "bounds": (1e6, 1e6 + 1e-4)}, "finer"),
        ({"bounds": None}, "known without looking"),
        ({"bounds": (1, 0)}, "increase"),
        ({"bounds": (1e9, 1e9 + 1e-4)}, "too close together"),
        ({"interval": 1.0}, "interval"),
        ({"mechanism": "tree"}, "mechanism"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"max_per_unit": 2}, "no units="),
        ({"epsilon": None}, "budget"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_before_anything_is_spent(
    options: dict[str, Any], message: str, tmp_path: Any
) -> None:
    asked = {"x": [0.1, 0.2], "q": 0.5, "bounds": (0, 1), "epsilon": 1.0, **options}
    with Ledger.create(tmp_path / "l") as ledger:
        with pytest.raises((ValueError, TypeError), match=message):
            ecdf.dp_quantile(asked.pop("x"), asked.pop("q"), ledger=ledger, **asked)
        assert ledger.charges == ()


def test_records_outside_the_bounds_are_moved_to_them() -> None:
    x = [-math.inf, -5.0, 0.5, 7.0, math.inf] * 100
    found = ecdf.dp_quantile(x, [0.1, 0.5, 0.9], bounds=(0, 1), epsilon=20.0, seed=1)
    assert np.asarray(found).tolist() == [0.0, 0.5, 1.0]


def test_a_result_is_a_number_or_an_array_and_what_is_made_of_it_has_no_statement() -> None:
    x = np.random.default_rng(0).random(300)
    median = ecdf.dp_median(x, bounds=(0, 1), epsilon=1.0)
    assert isinstance(median, float)
    assert isinstance(median + 1, float)
    found = ecdf.dp_quantile(x, [0.2, 0.8], bounds=(0, 1), epsilon=1.0)
    assert isinstance(found, np.ndarray)
    assert verify(found.statement()).ok
    assert type(found * 2) is np.ndarray
    with pytest.raises(UnsoundError):
        found[:1].statement()
    with pytest.raises(UnsoundError):
        found[:1].confidence_interval()


def test_the_same_seed_gives_the_same_and_a_ledger_charges_it_once(tmp_path: Any) -> None:
    x = np.random.default_rng(0).random(300)
    ask = {"bounds": (0, 1), "epsilon": 0.5, "seed": 3, "ledger": tmp_path / "l"}
    one, two = (ecdf.dp_quantile(x, [0.2, 0.8], **ask) for _ in range(2))
    assert np.array_equal(one, two)
    with Ledger.open(tmp_path / "l") as ledger:
        assert len(ledger.charges) == 1
        assert "quantiles 0.2, 0.8" in ledger.charges[0].note


def test_very_many_quantiles_at_a_delta_are_concentrated_or_a_curve(tmp_path: Any) -> None:
    x = np.random.default_rng(0).random(2000)
    q = np.linspace(0.001, 0.999, 300)
    found = ecdf.dp_quantile(
        x, q, bounds=(0, 1), epsilon=1.0, delta=1e-6, ledger=tmp_path / "l",
        mechanism="exponential",
    )  # fmt: skip
    statement = found.statement()
    assert verify(statement).ok
    assert 0.9 < statement.epsilon <= 1.0
    assert "Zero" in type(statement.history[0]).__name__
    with Ledger.create(tmp_path / "small", epsilon=0.5, delta=1e-6) as ledger:
        with pytest.raises(BudgetExceededError):
            ecdf.dp_quantile(x, 0.5, bounds=(0, 1), epsilon=1.0, ledger=ledger)
        assert ledger.charges == ()


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("rule", ["weights", "rows"])
def test_quantiles_of_units(rule: str, limit: int, relation: str) -> None:
    generator = np.random.default_rng(0)
    ids = np.concatenate([np.zeros(3000, int), np.arange(1, 2001)])
    x = np.concatenate([np.full(3000, 0.9), generator.random(2000) / 2])
    found = ecdf.dp_median(
        x, bounds=(0, 1), epsilon=1.0, units=ecdf.Units(ids, rule=rule), max_per_unit=limit,
        relation=relation, seed=1, interval=0.95,
    )  # fmt: skip
    assert abs(found - 0.25) < 0.05
    low, high = found.confidence_interval()
    assert low <= np.median(x[3000:]) <= high
    statement = found.statement()
    assert "at most" in "\n".join(statement.assumptions)
    assert statement.unit == ecdf.Units([]).name
    assert verify(statement).ok


def test_parties_get_their_quantiles_whatever_the_bounds_are() -> None:
    from noisewise.federated import LocalAggregator

    parts = np.array_split(np.random.default_rng(0).random(3000), 3)
    options: dict[str, Any] = {"epsilon": 5.0, "aggregator": LocalAggregator(), "seed": 1}
    found = ecdf.dp_median(parts, bounds=(-1e6, 1e6), **options)
    assert abs(found - 0.5) < 0.05
    assert "protocol: trusted curator" in found.statement().assumptions
    with pytest.raises(ValueError, match="no aggregator"):
        ecdf.dp_median(
            parts, bounds=(0, 1), epsilon=1.0, aggregator=LocalAggregator(), mechanism="exponential"
        )
