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
