"""Adaptive curves: what the looks may move, what they cost, where they help and do not hurt."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf import Budget, dp_ecdf, plan
from noisewise.ecdf.adaptive import (
    bend,
    bend_sensitivity_squared,
    choose_width,
    propose_width,
)
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.estimate import smooth_counts
from noisewise.ecdf.mechanisms.coarse import CoarseTree
from noisewise.federated import LocalAggregator
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation

REPLACE, ADD = Relation("replace-one"), Relation("add-remove")


def slow_bend(counts: np.ndarray, width: int) -> float:
    """Squared distance of the cumulative counts from straight lines, times width squared."""
    padded = np.append(counts, np.zeros(-counts.size % width))
    curve = np.concatenate([[0.0], np.cumsum(padded)])
    ends = np.arange(0, curve.size, width)
    lines = np.interp(np.arange(curve.size), ends, curve[ends])
    return float(((curve - lines) ** 2).sum()) * width**2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(2, 9))
@settings(deadline=None, max_examples=100)
def test_the_bend_is_the_distance_from_lines(counts: list[int], width: int) -> None:
    assert bend(np.array(counts), width) == pytest.approx(slow_bend(np.array(counts), width))


def test_the_bend_is_exact_beyond_64_bits() -> None:
    counts = np.zeros(256, np.int64)
    counts[0] = 10**9
    expected = sum((128 - i) ** 2 for i in range(1, 129)) * 10**18
    assert bend(counts, 128) == expected > 1 << 63


@pytest.mark.parametrize("width", [2, 3, 4, 7, 16])
def test_no_neighbour_changes_g_by_more_than_the_sensitivity_and_one_reaches_it(width: int) -> None:
    # g is linear in the counts, so its change is g of the change of the counts.
    unit = np.eye(2 * width, dtype=np.int64)

    def length(change: np.ndarray) -> int:
        inside = np.cumsum(change.reshape(-1, width), axis=1)
        gaps = width * inside - np.arange(1, width + 1) * inside[:, -1:]
        return int((gaps**2).sum())

    added = max(length(row) for row in unit)
    moved = max(length(a - b) for a, b in itertools.permutations(unit, 2))
    assert bend_sensitivity_squared(width, ADD) == added
    assert bend_sensitivity_squared(width, REPLACE) == moved


@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=24),
    st.integers(2, 8),
    st.integers(0, 1000),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_one_record_moves_the_released_length_and_the_filled_bins_by_at_most_their_sensitivity(
    counts: list[int], width: int, where: int, replace: bool
) -> None:
    before = np.array(counts)
    before[where % before.size] += 1
    after = before.copy()
    after[where % before.size] -= 1
    if replace:
        after[(where // 7) % before.size] += 1
    relation = REPLACE if replace else ADD
    squared = bend_sensitivity_squared(width, relation)
    for unit in (1, 3, 1000):
        one, two = (math.isqrt(unit**2 * bend(c, width)) for c in (before, after))
        assert abs(one - two) <= math.isqrt(unit**2 * squared - 1) + 1
    assert abs(np.count_nonzero(before) - np.count_nonzero(after)) <= 1


@pytest.mark.parametrize("relation", [REPLACE, ADD])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.7])
@pytest.mark.parametrize("shape", ["smooth", "atoms"])
def test_all_looks_and_the_curve_together_cost_epsilon(
    relation: Relation, epsilon: float, shape: str
) -> None:
    x = np.random.default_rng(0).random(20_000)
    x = x if shape == "smooth" else np.round(x, 1)
    counts = np.histogram(x, 2**12, (0, 1))[0]
    most = 0.0
    for seed in range(5):
        choice = choose_width(counts, relation, Budget(epsilon), Randomness.seeded(seed))
        assert choice.looks
        looks = math.fsum(choice.looks.values())
        assert looks <= epsilon / 64
        assert 0.98 * epsilon < choice.mechanism.epsilon + looks <= epsilon
        most = max(most, choice.mechanism.epsilon + looks)
    assert most > 0.999999 * epsilon or shape == "atoms"
    curve = dp_ecdf(
        x,
        bounds=(0, 1),
        epsilon=epsilon,
        bins=2**12,
        mechanism="adaptive",
        relation=relation.name,
        rng=3,
    )
    statement = curve.statement()
    # Not what this way through the looks has cost: another one may have cost more.
    assert statement.epsilon == epsilon
    assert "number of filled bins" in statement.mechanism
    assert verify(statement).ok
    if epsilon >= 1:
        assert isinstance(curve.mechanism.strategy, CoarseTree) == (shape == "smooth")


def test_the_noise_of_the_looks_is_what_is_stated() -> None:
    # A dataset whose curve is a line: the released number is pure Laplace noise of scale s, and
    # its square less 2 s^2 is above zero if the noise is above sqrt(2) s: with probability
    # exp(-sqrt(2)) / 2 = 0.1216. 400 draws; binomial, outside [20, 83] with probability 8e-7.
    counts = np.full(1024, 5)
    choices = [
        choose_width(counts, REPLACE, Budget(1.0), Randomness.seeded(seed)) for seed in range(400)
    ]
    found = [float(c.mechanism.reason.rsplit("about ", 1)[1].split(";")[0]) for c in choices]
    assert 20 <= np.count_nonzero(found) <= 83
    epsilon = choices[0].looks["distance of the curve from lines over 4 bins"]
    reach = math.sqrt(bend_sensitivity_squared(4, REPLACE)) / 4
    scale = reach / epsilon / math.sqrt(counts.size)
    # Beyond sqrt(2) s the noise exceeds it by s on average.
    noise = [math.sqrt(value**2 + 2 * scale**2) for value in found if value]
    assert abs(np.mean(noise) / scale - math.sqrt(2) - 1) < 6 / math.sqrt(len(noise))


def test_with_a_public_number_of_records_a_grid_that_cannot_gain_costs_nothing() -> None:
    x = np.random.default_rng(0).random(3000)
    curve = dp_ecdf(
        x, bounds=(0, 1), epsilon=1.0, bins=64, mechanism="adaptive", rng=1, relation="replace-one"
    )
    assert "then" not in curve.statement().mechanism
    assert curve.mechanism.name == "kary"
    assert curve.mechanism.epsilon > 0.999


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("bins", "width"), [(1000, 7), (64, 8), (50, 24), (12, 5)])
def test_the_variance_of_a_coarse_tree_is_that_of_its_noise(
    relation: str, bins: int, width: int
) -> None:
    inner = plan(CoarseTree.count(bins, width), relation, Budget(1.0), mechanism="kary")
    coarse = CoarseTree(inner.strategy, bins, width)  # type: ignore[arg-type]
    mechanism = type(inner)(coarse, inner.noise, inner.change)
    # The read-out is linear in independent noise: its matrix gives the variance exactly.
    sizes = sum(coarse.blocks)
    matrix = coarse.reconstruct(np.eye(sizes), 0.0)
    each = np.repeat([block.variance for block in inner.noise], coarse.blocks)
    assert np.allclose(mechanism.variance, (matrix**2 * each[:, None]).sum(0), rtol=1e-9)
    together = (matrix * matrix[:, -1:] * each[:, None]).sum(0)
    assert np.allclose(mechanism.total_covariance, together, atol=1e-9 * each.max())


@given(st.integers(3, 60), st.integers(2, 20), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_ends_of_blocks_are_measured_and_lines_run_between_them(
    bins: int, width: int, seed: int
) -> None:
    inner = plan(CoarseTree.count(bins, width), "add-remove", Budget(1.0), mechanism="kary")
    coarse = CoarseTree(inner.strategy, bins, width)  # type: ignore[arg-type]
    counts = np.random.default_rng(seed).integers(0, 9, bins)
    truth = np.cumsum(counts)
    curve = coarse.reconstruct(coarse.measure(counts), 0.0)
    assert np.allclose(curve[coarse.ends], truth[coarse.ends])
    places = np.concatenate([[-1], coarse.ends])
    lines = np.interp(np.arange(bins), places, np.concatenate([[0], truth[coarse.ends]]))
    assert np.allclose(curve, lines)


@given(st.integers(3, 60), st.integers(2, 20), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_limits_at_the_ends_of_blocks_hold_for_any_monotone_curve_between(
    bins: int, width: int, seed: int
) -> None:
    inner = plan(CoarseTree.count(bins, width), "add-remove", Budget(1.0), mechanism="kary")
    coarse = CoarseTree(inner.strategy, bins, width)  # type: ignore[arg-type]
    generator = np.random.default_rng(seed)
    # All mass of a block in its first bin, or in its last one: the extremes.
    mass = generator.random(coarse.ends.size)
    late, early = np.zeros(bins), np.zeros(bins)
    late[coarse.ends] = mass
    early[np.concatenate([[0], coarse.ends[:-1] + 1])] = mass
    curves = np.cumsum(late), np.cumsum(early)
    exact = curves[0][coarse.ends]
    guess = generator.random(bins) * exact[-1]
    guess[coarse.ends] = exact
    low, high = coarse.between(guess, guess)
    assert np.allclose(low, curves[0])
    assert np.allclose(high, curves[1])


def test_records_outside_the_bounds_do_not_spoil_the_blocks() -> None:
    counts = np.full(2048, 3)
    counts[[0, -1]] = 10**5
    chosen = choose_width(counts, REPLACE, Budget(1.0), Randomness.seeded(1)).mechanism
    assert isinstance(chosen.strategy, CoarseTree)
    exact = chosen.strategy.reconstruct(chosen.strategy.measure(counts), float(counts.sum()))
    assert np.allclose(exact, np.cumsum(counts))


SHAPES = {
    "smooth": lambda g: g.beta(2, 5, 10**5),
    "atoms": lambda g: np.round(g.beta(2, 5, 10**5), 2),
    "an atom inside a block": lambda g: np.append(g.random(10**5), np.full(300, 0.4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("simultaneous", [True, False])
def test_bands_cover_the_curve_inside_blocks_too(
    relation: str, shape: str, simultaneous: bool
) -> None:
    x = SHAPES[shape](np.random.default_rng(2))
    bins, runs = 2**9, 60
    inside = np.zeros((runs, bins), np.bool_)
    for seed in range(runs):
        curve = dp_ecdf(
            x,
            bounds=(0, 1),
            epsilon=0.05,
            bins=bins,
            mechanism="adaptive",
            relation=relation,
            rng=seed,
        )
        truth = np.searchsorted(np.sort(x), curve.thresholds, side="right") / x.size
        band = curve.confidence_band(0.9, simultaneous=simultaneous, draws=99)
        low, high = band.low.probabilities, band.high.probabilities
        inside[seed] = (low <= truth + 1e-12) & (truth <= high + 1e-12)
    if simultaneous:
        # Covered at least 54 times of 60 on average; 39 or fewer has probability 3e-8.
        assert inside.all(1).sum() >= 40
    else:
        assert inside.mean(0).min() >= 39 / 60
        assert inside.mean() > 0.85


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_smooth_data_gain_much_and_other_data_lose_little(relation: str) -> None:
    generator = np.random.default_rng(5)
    bins, relation, budget = 2**13, Relation.of(relation), Budget(1.0)
    rng = Randomness.seeded(7)
    default = plan(bins, relation, budget)
    smooth = generator.multinomial(2 * 10**4, np.full(bins, 1 / bins))
    heaps = np.where(np.arange(bins) % 40 == 7, 500, 0)
    rough = generator.multinomial(10**6, generator.dirichlet(np.ones(bins)))
    ratios = {}
    for name, counts in (("smooth", smooth), ("heaps", heaps), ("rough", rough)):
        truth, plain, adaptive, widths = np.cumsum(counts), 0.0, 0.0, Counter[int]()
        for _ in range(40):
            noisy = noisy_counts(default, counts, rng)
            plain += float(((smooth_counts(noisy, default, "auto") - truth) ** 2).mean())
            chosen = choose_width(counts, relation, budget, rng).mechanism
            widths[getattr(chosen.strategy, "width", 1)] += 1
            noisy = noisy_counts(chosen, counts, rng)
            adaptive += float(((smooth_counts(noisy, chosen, "shrink") - truth) ** 2).mean())
        ratios[name] = math.sqrt(adaptive / plain), widths
    # The seed is fixed; over other seeds the ratios move by 0.05.
    assert ratios["smooth"][0] < 0.75
    assert ratios["smooth"][1][1] == 0
    assert ratios["heaps"][1] == {1: 40}
    assert ratios["heaps"][0] < 1.1
    assert ratios["rough"][0] < 1.1


def test_the_proposal_grows_with_noise_and_falls_with_records() -> None:
    def width(records: int, epsilon: float) -> int:
        return propose_width(2**15, records, epsilon, REPLACE)

    by_records = [width(10**k, 1.0) for k in range(3, 10)]
    assert by_records == sorted(by_records, reverse=True)
    assert by_records[0] == 128
    assert by_records[-1] == 1
    by_epsilon = [width(10**6, 2.0**k) for k in range(-4, 5)]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    assert propose_width(255, 10, 0.01, REPLACE) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 1e-6}, "pure budgets"),
        ({"aggregator": LocalAggregator()}, "no sum over records"),
        ({"objective": "max"}, "mean error"),
        ({"base": 4}, "mechanism='thesis'"),
        ({"smooth": "l1"}, "mechanism='thesis'"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_spent(
    options: dict[str, Any], message: str
) -> None:
    x = np.random.default_rng(0).random(300)
    with pytest.raises(ValueError, match=message):
        dp_ecdf(x, bounds=(0, 1), epsilon=1.0, bins=2**12, mechanism="adaptive", **options)


@pytest.mark.parametrize("smooth", ["auto", "l2", "pava", "shrink", None])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_every_reading_of_an_adaptive_curve_works(smooth: str | None, relation: str) -> None:
    x = np.random.default_rng(0).random(5000)
    curve = dp_ecdf(
        x,
        bounds=(0, 1),
        epsilon=1.0,
        bins=1023,
        mechanism="adaptive",
        smooth=smooth,
        relation=relation,
        rng=2,
    )
    assert curve.mechanism.name == "adaptive"
    assert "blocks of" in curve.mechanism.description
    assert curve.probabilities[-1] == 1
    if smooth is not None:
        assert np.all(np.diff(curve.probabilities) >= 0)
        assert abs(curve.quantile(0.5) - 0.5) < 0.05
        assert np.abs(curve(curve.thresholds) - curve.thresholds).max() < 0.06
        assert curve.sample(10, seed=0).shape == (10,)
    assert abs(curve.mean() - 0.5) < 0.05
    assert len(curve.to_frame(0.9)) == 1023
