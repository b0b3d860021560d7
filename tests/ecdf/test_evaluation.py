"""One budget for a whole report: composition, agreement with the parts, degenerate input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from noisewise.ecdf.evaluation import private_evaluation
from noisewise.privacy import verify

pytestmark = pytest.mark.filterwarnings("ignore:the private number:RuntimeWarning")


def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, n)
    return (rng.random(n) < p).astype(int), p


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_all_releases_together_stay_within_the_budget(delta: float, relation: str) -> None:
    y, p = sample(3000)
    found = private_evaluation(y, p, epsilon=0.9, delta=delta, bins=128, relation=relation, rng=1)
    statement = found.statement()
    assert verify(statement).ok
    assert statement.epsilon <= 0.9
    assert statement.steps == 2
    if delta == 0:
        assert statement.epsilon > 0.899


def test_with_little_noise_the_numbers_are_the_true_ones() -> None:
    y, p = sample(4000)
    found = private_evaluation(y, p, epsilon=200.0, bins=512, rng=1, relation="replace-one")
    assert found.roc.auc == pytest.approx(roc_auc_score(y, p), abs=1e-3)
    assert np.allclose(found.quantiles([0.25, 0.5]), np.quantile(p, [0.25, 0.5]), atol=4e-3)
    assert found.calibration is not None
    assert np.allclose(found.calibration.counts, 400, atol=25)
    summary = found.summary()
    assert summary["hosmer_lemeshow"]["p_value"] > 1e-3
    assert summary["ece_interval"][0] <= summary["ece"] <= summary["ece_interval"][1]


def test_scores_that_are_no_probabilities_get_the_whole_budget_for_the_curve() -> None:
    y, p = sample(500)
    found = private_evaluation(
        y, 10 * p - 5, epsilon=1.0, bounds=(-5, 5), bins=64, rng=1, relation="replace-one"
    )
    assert found.calibration is None
    assert found.statement().epsilon > 0.999
    assert "ece" not in found.summary()


def test_degenerate_records_give_an_answer_or_a_clear_error() -> None:
    for y, p in (([1], [0.5]), ([0] * 20, [0.3] * 20), ([1] * 20, [1.0] * 20)):
        found = private_evaluation(y, p, epsilon=1.0, bins=32, rng=1, relation="replace-one")
        assert found.statement().epsilon <= 1.0
        found.summary()
    with pytest.raises(ValueError, match="empty"):
        private_evaluation([], [], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="NaN"):
        private_evaluation([1, 0], [0.1, math.nan], epsilon=1.0, relation="replace-one")
    with pytest.raises(ValueError, match="groups"):
        private_evaluation([1, 0], [0.1, 0.2], epsilon=1.0, groups=0, relation="replace-one")


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_limits_at_a_threshold_hold_recall_false_alarms_and_precision_together(
    relation: str,
) -> None:
    """At level 0.8 with 60 seeds: more than 30 misses have probability below 1e-6."""
    y, p = sample(600)
    missed = 0
    for seed in range(60):
        found = private_evaluation(y, p, epsilon=1.0, bins=64, relation=relation, seed=seed)
        yes = p >= found.roc.thresholds[found._place(0.3)]
        right = float((yes & (y == 1)).sum())
        truth = {
            "recall": right / y.sum(),
            "false_positive_rate": float((yes & (y == 0)).sum() / (y == 0).sum()),
            "precision": right / yes.sum(),
        }
        limits = found.at_interval(0.3, 0.8)
        missed += any(not limits[k][0] <= truth[k] <= limits[k][1] for k in truth)
    assert 1 <= missed <= 30  # and they are no wider than they must be


def test_limits_at_a_threshold_are_narrow_without_noise_and_hold_what_is_told() -> None:
    y, p = sample(4000)
    found = private_evaluation(y, p, epsilon=200.0, bins=512, seed=1)
    for name, (low, high) in found.at_interval(0.3).items():
        assert low <= found.at(0.3)[name] <= high
        assert high - low < 0.01
    assert found.summary(threshold=0.3)["recall_interval"] == list(found.at_interval(0.3)["recall"])
    lost = private_evaluation(y[:9], p[:9], epsilon=0.05, bins=64, seed=1)
    assert lost.at_interval(0.3)["precision"][1] > 0.99
