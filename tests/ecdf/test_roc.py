"""Private ROC curves: exact joint privacy loss by brute force, accuracy, degenerate input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import (
    average_precision_score,
    det_curve,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from noisewise.ecdf.auc import delong_variance, trapezoid
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.labelled import as_labelled, as_positive
from noisewise.ecdf.mechanisms.laminar import run_cost
from noisewise.ecdf.precision_recall import (
    average_precision,
    detection_error,
    dp_average_precision_score,
    dp_det_curve,
    dp_precision_recall_curve,
    precision_recall,
)
from noisewise.ecdf.roc import dp_roc_auc_score, dp_roc_curve, private_roc
from noisewise.ecdf.two_class import count_two_classes, mirrored_grid, two_curve_mechanism
from noisewise.errors import UnsoundError
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness

RELATIONS = ("replace-one", "add-remove")
# Small samples may leave a class without (private) records; that it is said is tested below.
pytestmark = pytest.mark.filterwarnings("ignore:the private number:RuntimeWarning")


def neighbours(bins: int, relation: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of neighbouring two-class histograms, up to what the other records do."""
    units = np.eye(2 * bins, dtype=np.int64)
    if relation == "replace-one":
        for a, b in itertools.permutations(range(2 * bins), 2):
            yield units[a], units[b]  # a move within a class, or a flipped label
    else:
        for a in range(2 * bins):
            yield 0 * units[a], units[a]


# ------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["kary", "histogram"])
@pytest.mark.parametrize("bins", [2, 5, 16, 31])
def test_worst_joint_loss_over_all_neighbours_is_epsilon(
    relation: str, name: str, bins: int
) -> None:
    mechanism = two_curve_mechanism(bins, relation, Budget(1.0), mechanism=name)
    scales = np.concatenate([np.full(b.size // 2, float(b.scale)) for b in mechanism.noise])
    scales = np.tile(scales, 2)  # measurements are sorted by curve

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        difference = mechanism.strategy.measure(a) - mechanism.strategy.measure(b)
        return float((np.abs(difference) / scales).sum())

    worst = max(loss(a, b) for a, b in neighbours(bins, relation))
    assert 0.999 < worst <= 1.0 + 1e-12
    assert mechanism.epsilon == pytest.approx(worst)


@pytest.mark.parametrize("height", [1, 2, 3, 4, 5])
def test_joint_scale_of_the_thesis_tree_is_the_dearest_move_or_flip(height: int) -> None:
    bins = 2**height
    mechanism = two_curve_mechanism(bins, "replace-one", Budget(1.0), mechanism="thesis")
    moves = [run_cost(a, b, 2, height) for a in range(bins) for b in range(a, bins - 1)]
    suffixes = [run_cost(a, bins - 1, 2, height) for a in range(bins)]
    flips = [a + b for a in suffixes for b in suffixes]
    dearest = max([*moves, *flips])
    assert float(mechanism.noise[0].scale) == pytest.approx(dearest, rel=1e-6)
    assert mechanism.noise[0].scale >= dearest
    assert dearest <= max(height, 2 * math.ceil((height + 1) / 2))
    # Two releases with half of epsilon each, at the published scale, have far more noise.
    assert (2 * (height + 1) / dearest) ** 2 >= 2.0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("bins", [2, 9, 24])
def test_no_neighbours_are_further_apart_than_the_gaussian_noise_allows(
    relation: str, bins: int
) -> None:
    mechanism = two_curve_mechanism(bins, relation, Budget(1.0, 1e-6), mechanism="sqrt")
    (block,) = mechanism.noise

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        difference = mechanism.strategy.measure(a) - mechanism.strategy.measure(b)
        return float((difference.astype(float) ** 2).sum() / float(block.scale))

    worst = max(distance(a, b) for a, b in neighbours(bins, relation))
    assert worst <= mechanism.ratio_squared * (1 + 1e-12)
    assert worst > mechanism.ratio_squared * (1 - 2e-3)
    assert mechanism.delta(1.0) <= 1e-6


def test_noise_of_both_curves_is_independent_and_of_the_same_scale() -> None:
    mechanism = two_curve_mechanism(8, "add-remove", Budget(1.0))
    size = sum(mechanism.strategy.blocks)
    matrix = np.asarray(mechanism.strategy.spread(np.eye(size, dtype=np.int64)))
    # Every number of noise enters exactly one of the two curves, and every one is used.
    first, second = np.split(np.abs(matrix), 2, axis=1)
    assert not np.any(first.any(1) & second.any(1))
    assert np.all(first.any(1) | second.any(1))


@pytest.mark.parametrize(("delta", "name"), [(0.0, "auto"), (1e-6, "auto"), (0.0, "thesis")])
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_statement_is_verified_and_within_the_budget(
    delta: float, name: str, relation: str
) -> None:
    roc = private_roc(
        [0, 1, 1], [0.1, 0.5, 0.9], epsilon=0.7, delta=delta, bins=32, relation=relation,
        mechanism=name, rng=1,
    )  # fmt: skip
    statement = roc.statement()
    assert verify(statement).ok
    assert 0.69 < statement.epsilon <= 0.7
    assert statement.delta == delta
    assert "NOT secret" in statement.randomness


# ------------------------------------------------------------------------ accuracy


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("name", "delta"), [("kary", 0.0), ("thesis", 0.0), ("sqrt", 1e-6), ("histogram", 0.0)]
)
def test_closed_form_variance_is_that_of_the_linear_read_out(
    relation: str, name: str, delta: float
) -> None:
    mechanism = two_curve_mechanism(12, relation, Budget(1.0, delta), mechanism=name)
    strategy = mechanism.strategy
    size = sum(strategy.blocks)
    matrix = strategy.reconstruct(strategy.spread(np.eye(size)), 0.0).T
    blocks = np.repeat([b.variance for b in mechanism.noise], [b.size for b in mechanism.noise])
    covariance = (matrix * blocks) @ matrix.T
    assert np.allclose(mechanism.variance, np.diag(covariance), rtol=1e-6)
    assert np.allclose(
        mechanism.total_covariance, covariance[-1], rtol=1e-5, atol=1e-6 * covariance.max()
    )
    counts = np.arange(24)
    back = strategy.reconstruct(strategy.measure(counts), float(counts.sum()))
    assert np.allclose(back, np.concatenate([np.cumsum(counts[:12]), np.cumsum(counts[12:])]))


def test_released_counts_have_the_stated_variance() -> None:
    # 1000 releases; the mean of the standardised squares has deviation below
    # sqrt(5 / 1000) = 0.071; a false alarm at 0.4 is more than five deviations (below 1e-6).
    mechanism = two_curve_mechanism(16, "replace-one", Budget(1.0))
    rng = Randomness.seeded(5)
    counts = np.arange(32)
    truth = np.concatenate([np.cumsum(counts[:16]), np.cumsum(counts[16:])])
    errors = np.array([noisy_counts(mechanism, counts, rng) for _ in range(1000)]) - truth
    assert abs((errors**2 / mechanism.variance).mean() - 1) < 0.4


def test_a_public_number_of_records_makes_the_totals_consistent_and_the_noise_smaller() -> None:
    mechanism = two_curve_mechanism(16, "replace-one", Budget(0.1))
    released = noisy_counts(mechanism, np.arange(32), Randomness.seeded(1))
    assert released[15] + released[31] == pytest.approx(np.arange(32).sum())
    single = mechanism.strategy.single.variance(tuple(b.variance for b in mechanism.noise))
    assert np.all(mechanism.variance[:16] < single)
    assert mechanism.variance[15] == pytest.approx(single[-1] / 2)


def sample(n: int, seed: int, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    return y, 1 / (1 + np.exp(-rng.normal(1.5 * y - 1.5)))


def test_with_hardly_any_noise_the_curves_are_those_of_scikit_learn() -> None:
    y, score = sample(2000, 0)
    score = np.round(score * 64) / 64  # on the grid, so that bins lose nothing
    options = dict(epsilon=300.0, bins=64, rng=1, relation="replace-one")
    roc = private_roc(y, score, **options)
    fpr, tpr, thresholds = roc_curve(y, score, drop_intermediate=False)
    at = {float(t): i for i, t in enumerate(roc.thresholds)}
    index = [at[float(t)] for t in thresholds]
    assert np.allclose(roc.fpr[index], fpr, atol=1e-9)
    assert np.allclose(roc.tpr[index], tpr, atol=1e-9)
    assert roc.auc == pytest.approx(roc_auc_score(y, score))
    assert dp_roc_auc_score(y, score, **options) == pytest.approx(roc_auc_score(y, score))
    precision, recall, cut = precision_recall(roc)
    theirs = precision_recall_curve(y, score)
    place = np.searchsorted(cut, theirs[2])
    assert np.allclose(precision[place], theirs[0][:-1], atol=1e-9)
    assert np.allclose(recall[place], theirs[1][:-1], atol=1e-9)
    assert average_precision(roc) == pytest.approx(average_precision_score(y, score))
    assert dp_average_precision_score(y, score, **options) == pytest.approx(average_precision(roc))
    false_positive, false_negative, _ = det_curve(y, score)
    ours = detection_error(roc)
    assert ours[1][0] == pytest.approx(false_negative[0])
    assert ours[0][-1] == pytest.approx(false_positive[-1])
    assert np.all(np.diff(ours[2]) > 0)
    assert len(dp_det_curve(y, score, **options)) == 3


@given(
    st.integers(0, 60), st.floats(0.05, 5), st.sampled_from(RELATIONS), st.integers(2, 40),
    st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=40)
def test_curves_are_monotone_and_end_in_the_corners_whatever_the_data(
    n: int, epsilon: float, relation: str, bins: int, seed: int
) -> None:
    if n == 0 and relation == "replace-one":
        return
    y, score = sample(n, seed)
    roc = private_roc(y, score, epsilon=epsilon, bins=bins, relation=relation, rng=seed)
    rates = (roc.fpr, roc.tpr)
    assert roc.thresholds[0] == math.inf
    assert np.all(np.diff(roc.thresholds) < 0)
    for rate in rates:
        assert rate.shape == roc.thresholds.shape
        if not np.isnan(rate).any():
            assert rate[0] == 0
            assert rate[-1] == 1
            assert np.all(np.diff(rate) >= 0)
            assert roc.score_quantile(0.5) >= 0


def test_a_move_of_all_scores_within_a_bin_changes_nothing() -> None:
    y, score = sample(200, 3)
    grid = np.floor(score * 32) / 32
    a = dp_roc_curve(y, grid, epsilon=1.0, bins=32, rng=7, relation="replace-one")
    b = dp_roc_curve(
        y, np.clip(grid + 0.9 / 32, 0, 1), epsilon=1.0, bins=32, rng=7, relation="replace-one"
    )
    assert all(np.array_equal(left, right) for left, right in zip(a, b, strict=True))


def test_area_by_counts_is_the_mann_whitney_statistic() -> None:
    y, score = sample(300, 4)
    score = np.round(score * 10) / 10
    grid = mirrored_grid((0, 1), 10)
    negatives = np.cumsum(grid.count(-score[y == 0]))
    positives = np.cumsum(grid.count(-score[y == 1]))
    pairs = score[y == 1][:, None] - score[y == 0][None, :]
    wins = (pairs > 0).sum() + (pairs == 0).sum() / 2
    assert trapezoid(negatives, positives) == pytest.approx(wins)
    wins_by_positive = ((pairs > 0) + (pairs == 0) / 2).mean(1)
    wins_by_negative = ((pairs > 0) + (pairs == 0) / 2).mean(0)
    expected = wins_by_positive.var() / len(wins_by_positive)
    expected += wins_by_negative.var() / len(wins_by_negative)
    assert delong_variance(negatives, positives) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("n", "epsilon", "delta", "share"),
    [(300, 1.0, 0.0, 0.5), (1000, 0.5, 0.0, 0.2), (3000, 1.0, 1e-6, 0.3)],
)
def test_intervals_cover_the_area_at_their_level(
    n: int, epsilon: float, delta: float, share: float
) -> None:
    # 150 releases at level 0.9. If coverage is 0.9, fewer than 114 hits have probability
    # below 1e-6 (binomial), so this alarms falsely less than once in a million.
    y, score = sample(n, 11, share)
    score = np.round(score * 64) / 64
    truth = roc_auc_score(y, score)
    hits, band_hits, widths = 0, 0, []
    for seed in range(150):
        roc = private_roc(
            y, score, epsilon=epsilon, delta=delta, bins=64, rng=seed, relation="replace-one"
        )
        low, high = roc.auc_interval(0.9, draws=200, seed=seed)
        hits += low <= truth <= high
        widths.append(high - low)
        if seed < 20:
            low, high = roc.auc_interval(0.9, method="band", draws=200)
            band_hits += low <= truth <= high
    assert hits >= 114
    assert band_hits >= 10  # at least 0.9 guaranteed: fewer than 10 of 20 below 1e-6
    assert np.median(widths) < 1.0


def test_population_intervals_are_wider() -> None:
    y, score = sample(3000, 2)
    roc = private_roc(y, score, epsilon=5.0, bins=64, rng=1, relation="replace-one")
    narrow, wide = roc.auc_interval(0.95), roc.auc_interval(0.95, target="population")
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


# ------------------------------------------------------------------------ bad input


def test_a_single_class_is_noised_like_any_other_data() -> None:
    for label in (0, 1):
        roc = private_roc(
            [label] * 50, np.linspace(0, 1, 50), epsilon=1.0, bins=16, rng=2, relation="replace-one"
        )
        low, high = roc.auc_interval()
        assert 0 <= low < 0.1
        assert 0.9 < high <= 1
        assert roc.statement().epsilon <= 1.0


def test_an_empty_class_gives_nan_and_says_so() -> None:
    roc = private_roc(
        [0] * 5000, np.full(5000, 0.5), epsilon=50.0, bins=16, rng=1, relation="replace-one"
    )
    with pytest.warns(RuntimeWarning, match="positive"):
        rate = roc.tpr
    assert np.isnan(rate).all()
    assert math.isnan(roc.auc)


def test_constant_scores_have_half_the_area() -> None:
    y, _ = sample(4000, 1)
    roc = private_roc(y, np.full(4000, 0.5), epsilon=5.0, bins=32, rng=1, relation="replace-one")
    assert abs(roc.auc - 0.5) < 0.05


def test_one_record_and_no_record() -> None:
    roc = private_roc([1], [0.5], epsilon=1.0, bins=8, rng=1, relation="replace-one")
    assert roc.auc_interval()[0] <= roc.auc_interval()[1]
    with pytest.raises(ValueError, match="empty"):
        private_roc([], [], epsilon=1.0, relation="replace-one")
    private_roc([], [], epsilon=1.0, relation="add-remove", bins=8, rng=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(epsilon=0.0), "epsilon"),
        (dict(epsilon=-1.0), "epsilon"),
        (dict(epsilon=math.nan), "epsilon"),
        (dict(delta=1.0), "delta"),
        (dict(bounds=(1, 0)), "increase"),
        (dict(bounds=(0, math.inf)), "finite"),
        (dict(bins=1), "bins"),
        (dict(relation="friends"), "relation"),
        (dict(mechanism="magic"), "mechanism"),
        (dict(mechanism="sqrt"), "delta"),
        (dict(smooth="l1"), "thesis"),
        (dict(smooth="never"), "smooth"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        private_roc([0, 1], [0.2, 0.8], **{"epsilon": 1.0, **change})


def test_bounds_must_be_given_without_looking_at_the_data() -> None:
    with pytest.raises(UnsoundError, match="without looking"):
        private_roc([0, 1], [0.2, 0.8], epsilon=1.0, bounds=None, relation="replace-one")


def test_wrong_records_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        private_roc([0, 1], [0.2, math.nan], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="NaN"):
        private_roc([0.0, math.nan], [0.2, 0.1], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="missing"):
        private_roc(
            np.array(["a", None], object),
            [0.2, 0.1],
            epsilon=1.0,
            pos_label="a",
            relation="replace-one",
        )
    with pytest.raises(ValueError, match="2 labels"):
        private_roc([0, 1], [0.2, 0.1, 0.3], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="pos_label"):
        private_roc(["no", "yes"], [0.2, 0.1], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="pos_label"):
        private_roc([0, 1, 2], [0.2, 0.1, 0.4], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="pos_label"):
        private_roc([-1, 0, 1], [0.2, 0.1, 0.4], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="one-dimensional"):
        private_roc([[0], [1]], [0.2, 0.1], epsilon=1.0, relation="replace-one")
    # Infinite scores lie outside the bounds and are moved to them.
    private_roc([0, 1], [-math.inf, math.inf], epsilon=1.0, bins=8, rng=1, relation="replace-one")


def test_labels_of_every_usual_kind_mean_the_same() -> None:
    kinds = ([0, 1, 1], [-1, 1, 1], [False, True, True], np.array([0.0, 1.0, 1.0]))
    for kind in kinds:
        assert as_positive(kind).tolist() == [False, True, True]
    assert as_positive(["n", "y", "y"], "y").tolist() == [False, True, True]
    assert as_positive([2, 1, 1], 1).tolist() == [False, True, True]
    assert as_labelled([0, 1], [0.25, 0.5]).tolist() == [[0.0, 0.25], [1.0, 0.5]]


def test_secure_noise_is_the_default_and_differs_between_calls() -> None:
    y, score = sample(200, 5)
    first, second = (
        count_two_classes(y, score, epsilon=1.0, bins=16, relation="replace-one") for _ in range(2)
    )
    assert not np.array_equal(first.noisy, second.noisy)
    assert "operating system" in first.statement().randomness


def test_parties_give_the_same_release_as_their_union() -> None:
    class Parties:
        def count(self, data: list[np.ndarray]) -> int:
            return sum(map(len, data))

        def noisy_sum(self, data, statistic, noise, rng):  # type: ignore[no-untyped-def]
            return sum(statistic(part) for part in data) + noise(rng)

    y, score = sample(300, 6)
    whole = private_roc(y, score, epsilon=1.0, bins=32, rng=4, relation="replace-one")
    parts = private_roc(
        np.split(y, 3),
        np.split(score, 3),
        epsilon=1.0,
        bins=32,
        rng=4,
        aggregator=Parties(),
        relation="replace-one",
    )
    assert np.array_equal(whole.release.noisy, parts.release.noisy)


def test_precision_and_recall_have_the_shape_of_scikit_learn() -> None:
    y, score = sample(500, 8)
    precision, recall, thresholds = dp_precision_recall_curve(
        y, score, epsilon=1.0, bins=32, rng=1, relation="replace-one"
    )
    assert precision.size == recall.size == thresholds.size + 1
    assert np.all((precision >= 0) & (precision <= 1))
    assert np.all(np.diff(recall) <= 0)
    assert np.all(np.diff(thresholds) > 0)


def test_frames_plots_and_bands() -> None:
    import matplotlib

    matplotlib.use("Agg")
    y, score = sample(2000, 9)
    roc = private_roc(y, score, epsilon=1.0, bins=64, rng=1, relation="replace-one")
    assert len(roc.to_frame()) == 65
    band = roc.confidence_band(0.9, draws=100)
    fpr, tpr, _ = roc_curve(y, np.floor(score * 64) / 64, drop_intermediate=False)
    assert band.auc[0] < roc.auc < band.auc[1]
    assert np.all(band.fpr_low <= band.fpr_high)
    assert roc.plot().get_xlabel() == "false positive rate"
    assert "PrivateROC" in repr(roc)
    assert fpr.size == tpr.size
    with pytest.raises(ValueError, match="draws"):
        roc.auc_interval(0.999, draws=10)
    with pytest.raises(ValueError, match="sample"):
        roc.auc_interval(method="band", target="population")
    with pytest.raises(ValueError, match="q must"):
        roc.score_quantile(1.5)


def test_the_band_holds_both_true_rates_at_all_thresholds() -> None:
    # 60 bands at level 0.8, guaranteed; 27 hits or fewer would have probability below 1e-6.
    y, score = sample(1500, 12)
    grid = mirrored_grid((0, 1), 32)
    truth = [np.cumsum(grid.count(-score[y == label])) / (y == label).sum() for label in (0, 1)]
    hits, hits_of_one_threshold = 0, 0
    for seed in range(60):
        roc = private_roc(y, score, epsilon=0.5, bins=32, rng=seed, relation="replace-one")
        band = roc.confidence_band(0.8, draws=100)
        inside = (
            (band.fpr_low[1:] <= truth[0])
            & (truth[0] <= band.fpr_high[1:])
            & (band.tpr_low[1:] <= truth[1])
            & (truth[1] <= band.tpr_high[1:])
        )
        hits += inside.all()
        hits_of_one_threshold += inside[10]
    assert hits > 27
    assert hits <= hits_of_one_threshold
