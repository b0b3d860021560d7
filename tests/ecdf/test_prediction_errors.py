"""Private confusion matrices, R2 and MAE: right without noise, bounded by one record."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import confusion_matrix, mean_absolute_error, r2_score

from noisewise import ecdf
from noisewise.ecdf import private_confusion, private_regression_errors
from noisewise.ecdf.prediction_errors import confusion_event, regression_event
from noisewise.privacy import Ledger
from noisewise.privacy.relation import Relation

EXACT = 1e7  # an epsilon that leaves no noise to speak of


def test_without_noise_they_are_what_scikit_learn_says():
    rng = np.random.default_rng(0)
    y, guess = rng.integers(0, 3, 500), rng.integers(0, 3, 500)
    found = private_confusion(y, guess, classes=[0, 1, 2], epsilon=EXACT, seed=1)
    np.testing.assert_allclose(found.counts, confusion_matrix(y, guess), atol=1e-3)
    assert found.accuracy == pytest.approx((y == guess).mean(), abs=1e-4)
    y = rng.uniform(-5, 5, 500)
    guess = np.clip(y + rng.normal(size=500), -5, 5)
    errors = private_regression_errors(y, guess, bounds=(-5, 5), epsilon=EXACT, seed=1)
    assert errors.r2 == pytest.approx(r2_score(y, guess), abs=1e-4)
    assert errors.mean_absolute_error == pytest.approx(mean_absolute_error(y, guess), abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    y=st.floats(allow_nan=True, allow_infinity=True),
    guess=st.floats(allow_nan=True, allow_infinity=True),
)
def test_one_record_adds_at_most_one_to_each_sum(y, guess):
    rest = np.linspace(-2, 2, 7)
    sums = [
        private_regression_errors(a, b, bounds=(-1.5, 1.0), epsilon=EXACT, seed=1).sums.columns
        for a, b in ((rest, rest[::-1]), (np.append(rest, y), np.append(rest[::-1], guess)))
    ]
    for name in sums[0]:
        assert -1e-4 <= sums[1][name][0] - sums[0][name][0] <= 1 + 1e-4


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_what_will_be_charged_is_known_before(relation):
    y = np.arange(9) % 3
    found = private_confusion(y, y, classes=[0, 1, 2], epsilon=0.3, relation=relation, seed=1)
    assert found.statement().history == (confusion_event(3, 0.3, Relation.of(relation)),)
    assert found.statement().epsilon <= 0.3
    errors = private_regression_errors(y, y, bounds=(0, 2), epsilon=0.3, relation=relation, seed=1)
    assert errors.statement().history == (regression_event(0.3, Relation.of(relation)),)
    assert errors.statement().epsilon <= 0.3


def test_intervals_hold_what_the_noise_hides():
    """At level 0.9 with 200 seeds: more than 43 misses have probability below 1e-6."""
    rng = np.random.default_rng(0)
    y = rng.uniform(0, 1, 400)
    guess = np.clip(y + rng.normal(0, 0.2, 400), 0, 1)
    classes, said = (y > 0.5).astype(int), (guess > 0.5).astype(int)
    true_r2, true_error = r2_score(y, guess), mean_absolute_error(y, guess)
    true_accuracy = float((classes == said).mean())
    missed = np.zeros(3, int)
    for seed in range(200):
        found = private_regression_errors(y, guess, bounds=(0, 1), epsilon=1.0, seed=seed)
        counted = private_confusion(classes, said, classes=[0, 1], epsilon=0.2, seed=seed)
        spans = (
            (true_r2, found.r2_interval(0.9)),
            (true_error, found.mean_absolute_error_interval(0.9)),
            (true_accuracy, counted.accuracy_interval(0.9)),
        )
        missed += [not low <= truth <= high for truth, (low, high) in spans]
    assert missed.max() <= 43


def test_intervals_are_narrow_where_there_is_little_noise_and_open_where_there_is_much():
    y = np.linspace(0, 100, 5000)
    sure = private_regression_errors(y, y + 3, bounds=(0, 103), epsilon=20.0, seed=1)
    low, high = sure.r2_interval()
    assert 0.97 < low <= sure.r2 <= high <= 1.0
    low, high = sure.mean_absolute_error_interval()
    assert 2.8 < low < 3 < high < 3.2
    few = private_regression_errors(y[:40], y[:40], bounds=(0, 100), epsilon=0.1, seed=1)
    assert few.r2_interval()[0] == -np.inf
    classes = np.repeat([0, 1, 2], 500)
    low, high = private_confusion(classes, classes, classes=[0, 1, 2], epsilon=2.0,
                                  seed=1).accuracy_interval()  # fmt: skip
    assert 0.98 < low < high == 1.0


@pytest.mark.parametrize("classes", [[], [0], [0, 1, 1], [0, True, 1], "ab", b"ab"])
def test_classes_that_would_count_records_nowhere_are_refused_before_a_charge(classes, tmp_path):
    # A record of a class that was listed twice was in two cells, and so in none.
    path = tmp_path / "of.ledger"
    Ledger.create(path, epsilon=1.0).close()
    with pytest.raises(ValueError, match="two or more public classes"):
        ecdf.private_confusion([0, 1], [0, 1], classes=classes, epsilon=0.5, ledger=path)
    with Ledger.open(path) as ledger:
        assert not ledger.charges
