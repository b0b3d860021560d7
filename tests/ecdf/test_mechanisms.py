"""Counting mechanisms: exact privacy loss by brute force, exact variance by linear algebra."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.mechanisms import Block, Mechanism, Setting, plan, thesis_mechanism
from noisewise.ecdf.mechanisms.kary import CountTree, kary_mechanism
from noisewise.ecdf.mechanisms.thesis import ThesisTree
from noisewise.ecdf.two_class import join
from noisewise.privacy.randomness import Randomness

PURE, APPROXIMATE, CONCENTRATED = Budget(1.0), Budget(1.0, 1e-6), Budget.concentrated(0.5)
RELATIONS = ("replace-one", "add-remove")
CASES = [
    ("thesis", PURE),
    ("kary", PURE),
    ("histogram", PURE),
    ("auto", PURE),
    ("thesis", APPROXIMATE),
    ("kary", APPROXIMATE),
    ("sqrt", APPROXIMATE),
    ("thesis", CONCENTRATED),
    ("kary", CONCENTRATED),
    ("sqrt", CONCENTRATED),
    ("auto", CONCENTRATED),
]


def neighbours(bins: int, relation: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of neighbouring histograms up to what the other records do (linear maps)."""
    units = np.eye(bins, dtype=np.int64)
    rest = np.ones(bins, dtype=np.int64)
    if relation == "replace-one":
        for a, b in itertools.permutations(range(bins), 2):
            yield rest + units[a], rest + units[b]
    else:
        for a in range(bins):
            yield rest, rest + units[a]
            yield rest + units[a], rest


def read_out(mechanism: Mechanism) -> np.ndarray:
    """The matrix from noise to prefix counts, column by column."""
    size = sum(mechanism.strategy.blocks)
    return mechanism.strategy.reconstruct(mechanism.strategy.spread(np.eye(size)), 0.0).T


# ------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["kary", "histogram"])
@pytest.mark.parametrize("bins", [2, 3, 7, 12, 40])
def test_worst_privacy_loss_of_trees_of_counts_is_epsilon(
    name: str, relation: str, bins: int
) -> None:
    # With independent noise on every measurement the largest loss over all outputs is
    # sum |difference| / scale, and it is attained.
    mechanism = plan(bins, relation, PURE, mechanism=name)
    scales = np.repeat(
        [float(block.scale) for block in mechanism.noise], [b.size for b in mechanism.noise]
    )

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        difference = mechanism.strategy.measure(a) - mechanism.strategy.measure(b)
        return float((np.abs(difference) / scales).sum())

    worst = max(loss(a, b) for a, b in neighbours(bins, relation))
    assert 0.999 < worst <= 1.0 + 1e-12
    assert mechanism.epsilon == pytest.approx(worst)


def tree_noise_pmf(scale: float, reach: int, tails: int) -> np.ndarray:
    """Joint law of the noise of the four leaves of a tree of height 2, on [-reach, reach]^4."""

    def laplace(k: np.ndarray) -> np.ndarray:
        return math.tanh(1 / (2 * scale)) * np.exp(-np.abs(k) / scale)

    y = np.arange(-reach, reach + 1)
    shifts = np.arange(-tails, tails + 1)
    wide = np.arange(-reach - tails, reach + tails + 1)
    pair = np.zeros((wide.size, wide.size))
    for a in shifts:
        leaf = laplace(wide - a)
        pair += laplace(np.array(a)) * np.outer(leaf, leaf)
    joint = np.zeros((y.size,) * 4)
    for root in shifts:
        low = tails - root
        window = pair[low : low + y.size, low : low + y.size]
        joint += laplace(np.array(root)) * window[:, :, None, None] * window[None, None, :, :]
    return joint


def largest_loss(scale: float, change: tuple[int, ...]) -> float:
    """Largest log ratio of probabilities between the noise and the noise moved by `change`."""
    reach = 7
    joint = tree_noise_pmf(scale, reach, 30)
    here = joint[tuple(slice(1, None) for _ in change)]
    moved = joint[tuple(slice(1 - c, joint.shape[0] - c) for c in change)]
    return float(np.abs(np.log(here) - np.log(moved)).max())


@pytest.mark.parametrize("relation", RELATIONS)
def test_worst_privacy_loss_of_the_thesis_tree_is_epsilon(relation: str) -> None:
    bins = 5 if relation == "replace-one" else 4  # four noisy thresholds in both cases
    # A large epsilon, so that outputs many scales away, where the loss is worst, are near.
    mechanism = thesis_mechanism(Setting.of(bins, relation), Budget(4.0))
    assert mechanism.setting.points == 4
    scale = float(mechanism.noise[0].scale)
    changes = set()
    for a, b in neighbours(bins, relation):
        difference = np.cumsum(b)[:4] - np.cumsum(a)[:4]
        changes.add(tuple(np.abs(difference).tolist()))
    losses = {change: largest_loss(scale, change) for change in changes}
    worst = max(losses.values())
    assert 0.95 * 4 < worst <= 4.0 + 1e-9
    # Nine tenths of the noise would not have been enough.
    dearest = max(losses, key=lambda change: losses[change])
    assert largest_loss(0.9 * scale, dearest) > 1.05 * 4


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("name", "budget"), [("sqrt", CONCENTRATED), ("kary", APPROXIMATE)])
@pytest.mark.parametrize("bins", [2, 3, 9, 33, 70])
def test_no_neighbours_are_further_apart_than_the_squared_sensitivity(
    name: str, budget: Budget, relation: str, bins: int
) -> None:
    mechanism = plan(bins, relation, budget, mechanism=name, objective="max")
    scales = np.repeat(
        [float(block.scale) for block in mechanism.noise], [b.size for b in mechanism.noise]
    )

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        difference = mechanism.strategy.measure(a) - mechanism.strategy.measure(b)
        return float((difference.astype(np.float64) ** 2 / scales).sum())

    worst = max(distance(a, b) for a, b in neighbours(bins, relation))
    assert worst <= mechanism.ratio_squared * (1 + 1e-12)
    assert worst > mechanism.ratio_squared * (1 - 2e-3)
    assert mechanism.ratio_squared <= budget.ratio**2 * (1 + 1e-12)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("points", [4, 8])
def test_integer_shifts_of_the_gaussian_thesis_tree_exist_within_the_bound(
    relation: str, points: int
) -> None:
    # Round path sums of the least real shift, as in the module's proof, and measure the result.
    tree = ThesisTree(Setting(points, False), 2, 64)
    height = tree.height
    index = np.arange(points)
    paths = np.concatenate(
        [np.eye(points >> level)[index >> level] for level in range(height + 1)], axis=1
    )
    levels = np.repeat(np.arange(height + 1), [points >> level for level in range(height + 1)])
    ends = range(points - 1, points) if relation == "add-remove" else range(points)
    change_name = "suffix" if relation == "add-remove" else "interval"
    (bound,) = tree.shift(change_name, "l2-squared")
    for last in ends:
        for first in range(last + 1):
            change = np.zeros(points)
            change[first : last + 1] = 64
            real = np.linalg.pinv(paths) @ change
            sums = np.zeros(real.size)
            starts = np.cumsum([0] + [points >> level for level in range(height + 1)])
            for level in range(height, -1, -1):
                nodes = np.arange(points >> level)
                own = real[starts[level] + nodes]
                above = sums[starts[level + 1] + nodes // 2] if level < height else 0.0
                sums[starts[level] + nodes] = own + above
            rounded = np.rint(sums)
            whole = rounded.copy()
            for level in range(height):
                nodes = np.arange(points >> level)
                whole[starts[level] + nodes] -= rounded[starts[level + 1] + nodes // 2]
            assert np.array_equal(paths @ whole, change)
            assert float(whole @ whole) <= bound
    assert levels.size == real.size


def exact_delta(variances: list[float], shifts: list[int], epsilon: float) -> float:
    """Hockey-stick divergence of discrete Gaussian noise from its shift, by summing."""
    reach = 12 * int(max(math.sqrt(v) for v in variances)) + 10
    k = np.arange(-reach, reach + 1)
    here, moved = np.ones(1), np.ones(1)
    for variance, shift in zip(variances, shifts, strict=True):
        weight = np.exp(-(k**2) / (2 * variance))
        total = weight.sum()
        here = np.multiply.outer(here, weight / total).ravel()
        moved = np.multiply.outer(moved, np.exp(-((k - shift) ** 2) / (2 * variance)) / total)
        moved = moved.ravel()
    return float(np.maximum(here - math.exp(epsilon) * moved, 0).sum())


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
@pytest.mark.parametrize(("variance", "resolution"), [(2.0, 1), (6.25, 1), (30.0, 4), (400.0, 16)])
def test_the_stated_delta_bounds_the_exact_delta_of_integer_noise(
    epsilon: float, variance: float, resolution: int
) -> None:
    tree = CountTree(Setting(2, True), (2,), (1.0,), (1.0,), resolution)
    noise = (Block("gaussian", Fraction(variance), 2),)
    mechanism = Mechanism(tree, noise, "interval")
    exact = exact_delta([variance] * 2, [resolution, -resolution], epsilon)
    assert exact <= mechanism.delta(epsilon) <= 1
    assert mechanism.delta(epsilon) < max(4 * exact, 1e-3)
    shrunk = replace(mechanism, noise=(Block("gaussian", Fraction(variance) * 2, 2),))
    assert shrunk.delta(epsilon) < exact


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["kary", "histogram", "sqrt", "circulant"])
def test_no_record_moves_more_measurements_than_are_said_to_be_touched(
    name: str, relation: str
) -> None:
    if name == "circulant" and relation == "add-remove":
        return
    strategy = plan(9, relation, APPROXIMATE, mechanism=name).strategy
    moved = [
        np.count_nonzero(strategy.measure(a) - strategy.measure(b))
        for a, b in neighbours(9, relation)
    ]
    said = strategy.touched(strategy.setting.change)
    assert max(moved) <= said
    if name in ("kary", "histogram"):
        assert max(moved) == said


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("idle", [1, 2])
def test_noise_that_no_neighbour_shifts_costs_no_delta(epsilon: float, idle: int) -> None:
    # The claim behind `variation`: further numbers with any law, the same on both sides, leave
    # the exact delta as it is.
    alone = exact_delta([6.25], [2], epsilon)
    assert exact_delta([6.25, *[2.0] * idle], [2, *[0] * idle], epsilon) == pytest.approx(alone)


@pytest.mark.parametrize("name", ["kary", "thesis", "sqrt"])
def test_variation_of_a_joint_release_counts_the_noise_of_both_curves_once(name: str) -> None:
    single = plan(16, "replace-one", APPROXIMATE, mechanism=name, change="joint")
    joined = join(single, "joint", True)
    assert joined.variation == single.variation
    both = sum(block.size for block in joined.noise)
    assert joined.strategy.touched("joint") <= both
    if name != "kary":
        assert joined.strategy.touched("joint") == both
    assert 0.99e-6 < joined.delta(1.0) <= 1e-6


@pytest.mark.parametrize("epsilon", [9.9, 10.1, 50.0, 800.0, 1e6])
@pytest.mark.parametrize("relation", RELATIONS)
def test_large_epsilons_with_delta_get_less_noise_not_an_overflow(
    relation: str, epsilon: float
) -> None:
    counts = np.full(64, 10**6)
    for name in ("auto", "kary", "thesis", "sqrt"):
        mechanism = plan(64, relation, Budget(epsilon, 1e-6), mechanism=name)
        assert mechanism.delta(epsilon) <= 1e-6
        released = noisy_counts(mechanism, counts, Randomness.seeded(0))
        # Deviations at epsilon 9.9 are below three; thirty of them never happen.
        assert np.abs(released - np.cumsum(counts)).max() < 100
        smaller = plan(64, relation, Budget(9.0, 1e-6), mechanism=name)
        assert mechanism.mean_variance < smaller.mean_variance


@pytest.mark.parametrize("relation", RELATIONS)
def test_trees_without_any_noise_left_divide_by_nothing(relation: str) -> None:
    with np.errstate(all="raise"):
        for name in ("kary", "histogram", "thesis"):
            mechanism = plan(40, relation, Budget(1e6), mechanism=name)
            counts = np.arange(40)
            released = noisy_counts(mechanism, counts, Randomness.seeded(1))
            assert np.array_equal(np.rint(released), np.cumsum(counts))
            assert not mechanism.variance.any()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_guarantee_is_within_the_budget_and_uses_it(
    name: str, budget: Budget, relation: str
) -> None:
    mechanism = plan(64, relation, budget, mechanism=name)
    if budget.kind == "pure":
        assert 0.9999 < mechanism.epsilon <= 1.0
    elif budget.kind == "concentrated":
        assert 0.4999 < mechanism.rho <= 0.5
    else:
        assert 0.99e-6 < mechanism.delta(1.0) <= 1e-6


@given(st.floats(0.01, 20), st.integers(2, 200), st.sampled_from(RELATIONS))
@settings(deadline=None, max_examples=40)
def test_pure_guarantees_never_exceed_any_epsilon(epsilon: float, bins: int, relation: str) -> None:
    for name in ("kary", "thesis"):
        mechanism = plan(bins, relation, Budget(epsilon), mechanism=name)
        assert epsilon * 0.999 < mechanism.epsilon <= epsilon


@pytest.mark.parametrize(
    ("name", "budget"), [("thesis", PURE), ("kary", PURE), ("sqrt", APPROXIMATE)]
)
def test_joint_noise_of_two_curves_covers_moves_and_flipped_labels(
    name: str, budget: Budget
) -> None:
    bins = 16
    joint = plan(bins, "replace-one", budget, mechanism=name, change="joint")
    norm = "l1" if budget.kind == "pure" else "l2-squared"
    (suffix, *_), (interval, *_) = (
        joint.strategy.shift(change, norm) for change in ("suffix", "interval")
    )
    (both, *_) = joint.strategy.shift("joint", norm)
    assert both >= interval
    assert both >= 2 * suffix
    assert not joint.setting.total_is_public


# ------------------------------------------------------------------------ accuracy


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("name", "budget"), CASES)
@pytest.mark.parametrize("bins", [2, 3, 10, 64, 75])
def test_without_noise_the_prefix_counts_come_back(
    name: str, budget: Budget, relation: str, bins: int
) -> None:
    mechanism = plan(bins, relation, budget, mechanism=name)
    counts = np.random.default_rng(bins).integers(0, 1000, bins)
    measured = mechanism.strategy.measure(counts)
    assert measured.dtype == np.int64
    back = mechanism.strategy.reconstruct(measured, float(counts.sum()))
    assert np.allclose(back, np.cumsum(counts), rtol=0, atol=1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("name", "budget"), CASES)
@pytest.mark.parametrize("bins", [2, 3, 10, 64, 75])
def test_closed_form_variance_is_that_of_the_linear_read_out(
    name: str, budget: Budget, relation: str, bins: int
) -> None:
    mechanism = plan(bins, relation, budget, mechanism=name)
    matrix = read_out(mechanism)
    blocks = np.repeat(
        [block.variance for block in mechanism.noise], [block.size for block in mechanism.noise]
    )
    covariance = (matrix * blocks) @ matrix.T
    assert np.allclose(mechanism.variance, np.diag(covariance), rtol=1e-6, atol=1e-9)
    assert np.allclose(
        mechanism.total_covariance, covariance[-1], rtol=1e-6, atol=1e-9 * covariance.max() + 1e-9
    )


def test_least_squares_is_not_beaten_by_any_other_unbiased_read_out() -> None:
    mechanism = kary_mechanism(Setting.of(12, "add-remove"), PURE, fanouts=(3, 4))
    strategy = mechanism.strategy
    measure = np.array([strategy.measure(unit) for unit in np.eye(12, dtype=np.int64)]).T
    weights = np.repeat(
        [1 / block.variance for block in mechanism.noise], [b.size for b in mechanism.noise]
    )
    inverse = np.linalg.inv(measure.T @ (weights[:, None] * measure))
    prefix = np.tril(np.ones((12, 12)))
    assert np.allclose(np.diag(prefix @ inverse @ prefix.T), mechanism.variance)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("name", "budget"), [("thesis", PURE), ("kary", PURE), ("sqrt", APPROXIMATE)]
)
def test_released_counts_have_the_stated_variance(name: str, budget: Budget, relation: str) -> None:
    # 1500 releases; the mean squared error over the points, standardised, is a mean of 1500
    # independent numbers of variance below 5 (kurtosis of a sum of Laplace numbers <= 6), so
    # its deviation is below 0.058. Six of them: false alarm below 1e-8.
    mechanism = plan(32, relation, budget, mechanism=name)
    rng = Randomness.seeded(11)
    counts = np.arange(32)
    points = mechanism.setting.points
    errors = np.array([noisy_counts(mechanism, counts, rng) for _ in range(1500)]) - np.cumsum(
        counts
    )
    standardised = (errors[:, :points] ** 2 / mechanism.variance[:points]).mean()
    assert abs(standardised - 1) < 0.35
    centre = errors[:, :points].mean(0) / np.sqrt(mechanism.variance[:points] / 1500)
    assert np.abs(centre).max() < 6


@pytest.mark.parametrize(
    ("name", "budget"), [("thesis", PURE), ("kary", PURE), ("sqrt", APPROXIMATE)]
)
def test_simulated_noise_has_the_law_of_released_noise(name: str, budget: Budget) -> None:
    mechanism = plan(32, "replace-one", budget, mechanism=name)
    noise = mechanism.simulate(np.random.default_rng(5), 4000)[:, :-1]
    ratio = (noise**2).mean(0) / mechanism.variance[:-1]
    # Deviation of each at most sqrt(5 / 4000) = 0.035; 31 points, seven deviations.
    assert np.abs(ratio - 1).max() < 0.25
    assert abs(ratio.mean() - 1) < 0.15


# Best rows of an independent table of published mechanisms: mean variance of a count.
BEST_KNOWN = {
    ("pure", "add-remove", 10): 118.5,
    ("pure", "replace-one", 10): 323.5,
    ("pure", "add-remove", 15): 348.5,
    ("pure", "replace-one", 15): 1028.5,
    ("concentrated", "add-remove", 10): 9.7,
    ("concentrated", "replace-one", 10): 16.0,
    ("concentrated", "add-remove", 15): 17.8,
    ("concentrated", "replace-one", 15): 31.0,
}


@pytest.mark.parametrize(("kind", "relation", "height"), list(BEST_KNOWN))
def test_automatic_choice_is_no_worse_than_the_best_published_variance(
    kind: str, relation: str, height: int
) -> None:
    budget = PURE if kind == "pure" else CONCENTRATED
    mechanism = plan(2**height, relation, budget)
    assert mechanism.mean_variance <= BEST_KNOWN[kind, relation, height]
    assert "least mean variance" in mechanism.reason


@pytest.mark.parametrize(
    ("relation", "square_root"), [("add-remove", 10.71), ("replace-one", 17.74)]
)
def test_scaled_ends_beat_the_square_root_in_the_largest_variance(
    relation: str, square_root: float
) -> None:
    mechanism = plan(1024, relation, CONCENTRATED, mechanism="sqrt", objective="max")
    assert mechanism.max_variance < 0.86 * square_root


def test_automatic_choice_follows_the_objective() -> None:
    for relation in RELATIONS:
        for budget in (PURE, APPROXIMATE):
            mean = plan(256, relation, budget, objective="mean")
            largest = plan(256, relation, budget, objective="max")
            assert mean.mean_variance <= largest.mean_variance * (1 + 1e-9)
            assert largest.max_variance <= mean.max_variance * (1 + 1e-9)


# --------------------------------------------------------------------------- errors


def test_gaussian_mechanisms_refuse_a_pure_budget() -> None:
    with pytest.raises(ValueError, match="delta > 0"):
        plan(64, "replace-one", PURE, mechanism="sqrt")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="mechanism must be one of"):
        plan(64, "replace-one", PURE, mechanism="magic")
    with pytest.raises(ValueError, match="objective"):
        plan(64, "replace-one", PURE, objective="median")  # type: ignore[arg-type]


def test_counts_of_the_wrong_shape_are_refused_before_noise_is_drawn() -> None:
    mechanism = plan(8, "replace-one", PURE)
    with pytest.raises(ValueError, match="counts must be 8 integers"):
        noisy_counts(mechanism, np.ones(7, np.int64), Randomness.seeded(0))
    with pytest.raises(ValueError, match="counts must be 8 integers"):
        noisy_counts(mechanism, np.ones(8), Randomness.seeded(0))


def test_too_many_records_for_64_bits_are_refused() -> None:
    mechanism = plan(64, "replace-one", APPROXIMATE, mechanism="sqrt")
    counts = np.zeros(64, np.int64)
    counts[3] = 2**45
    with pytest.raises(OverflowError):
        noisy_counts(mechanism, counts, Randomness.seeded(0))


def test_every_processor_finds_the_same_tree():
    """Kernels for other processors differ in last bits; a seeded curve must not depend on them."""
    code = (
        "from noisewise.ecdf.mechanisms.kary import choose_tree\n"
        "for bins in (32, 1024):\n"
        "    for kind in ('laplace', 'gaussian'):\n"
        "        for goal in ('mean', 'max'):\n"
        "            print(choose_tree(bins, False, 1, kind, goal))"
    )
    older = {
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    }
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for environment in ({}, older)
    ]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 8
