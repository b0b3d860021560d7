"""Calibration measures against hand-computed cases, slow references and other libraries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss

from noisewise.analysis import calibration
from noisewise.analysis.calibration import measure
from noisewise.analysis.calibration.metrics import group


def drawn(seed, records=200, classes=4, sharpness=2.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, sharpness, (records, classes))
    labels = np.where(
        generator.random(records) < 0.5, logits.argmax(1), generator.integers(0, classes, records)
    )
    return logits, labels


def slow_errors(predicted, outcome, bins):
    """ECE and MCE over bins of equal width, by their definition."""
    gaps, weights = [], []
    for k in range(bins):
        low, high = k / bins, (k + 1) / bins
        inside = [
            (p, o)
            for p, o in zip(predicted, outcome, strict=True)
            if (low < p or k == 0) and p <= high
        ]
        if inside:
            gaps.append(abs(sum(o for _, o in inside) - sum(p for p, _ in inside)) / len(inside))
            weights.append(len(inside) / len(predicted))
    return sum(w * g for w, g in zip(weights, gaps, strict=True)), max(gaps)


def test_a_tiny_case_by_hand():
    # Confidences 0.9 (right), 0.7 (wrong), 0.6 (right), 0.55 (right), five bins.
    p = np.array([[0.1, 0.9], [0.7, 0.3], [0.4, 0.6], [0.55, 0.45]])
    found = measure(p, [1, 1, 1, 0], bins=5)
    # bin (0.4, 0.6]: confidences 0.6, 0.55, accuracy 1: gap 0.425, two records
    # bin (0.6, 0.8]: 0.7, accuracy 0: gap 0.7; bin (0.8, 1]: 0.9, accuracy 1: gap 0.1
    assert found.ece == pytest.approx((2 * 0.425 + 0.7 + 0.1) / 4)
    assert found.mce == pytest.approx(0.7)
    assert found.accuracy == 0.75
    assert found.confidence == pytest.approx((0.9 + 0.7 + 0.6 + 0.55) / 4)
    assert found.nll == pytest.approx(-np.log([0.9, 0.3, 0.6, 0.55]).mean())
    assert found.brier == pytest.approx(2 * np.mean([0.01, 0.49, 0.16, 0.2025]))
    assert list(found.bins.counts) == [0, 0, 2, 1, 1]
    assert found.overconfidence == pytest.approx(found.confidence - 0.75)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(2, 6))
def test_errors_follow_their_definition(seed, bins, classes):
    logits, labels = drawn(seed, records=60, classes=classes)
    p = softmax(logits, axis=1)
    found = measure(p, labels, bins=bins)
    correct = (p.argmax(1) == labels).astype(float)
    ece, mce = slow_errors(p.max(1), correct, bins)
    assert found.ece == pytest.approx(ece, abs=1e-12)
    assert found.mce == pytest.approx(mce, abs=1e-12)
    by_class = [slow_errors(p[:, k], (labels == k).astype(float), bins)[0] for k in range(classes)]
    assert found.classwise_ece == pytest.approx(np.mean(by_class), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.booleans())
def test_bins_of_equal_mass_split_records_evenly_and_keep_ties_together(seed, bins, ties):
    generator = np.random.default_rng(seed)
    predicted = generator.random(97)
    if ties:
        predicted = np.round(predicted, 1)
    outcome = (generator.random(97) < predicted).astype(float)
    found = group(predicted, outcome, bins=bins, strategy="mass")
    assert found.counts.sum() == 97
    if not ties:
        assert found.counts.size == bins
        assert found.counts.max() - found.counts.min() <= 1
    index = np.searchsorted(found.edges[1:-1], predicted, side="left")
    for value in np.unique(predicted):
        assert np.unique(index[predicted == value]).size == 1
    assert found.filled.all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_losses_agree_with_scikit_learn_and_torch(seed, classes):
    logits, labels = drawn(seed, classes=classes)
    p = softmax(logits, axis=1)
    found = measure(logits, labels, logits=True)
    assert found.nll == pytest.approx(log_loss(labels, p, labels=range(classes)), rel=1e-9)
    torch_loss = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels))
    assert found.nll == pytest.approx(float(torch_loss), rel=1e-12)
    if classes == 2:
        expected = 2 * brier_score_loss(labels, p[:, 1], pos_label=1)
        assert found.brier == pytest.approx(expected, rel=1e-9)
    assert found.brier == pytest.approx(calibration.brier_score(p, labels), rel=1e-9)


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize(("norm", "attribute"), [("l1", "ece"), ("max", "mce")])
def test_errors_agree_with_torchmetrics(bins, norm, attribute):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    for seed in range(20):
        logits, labels = drawn(seed, records=500, classes=5, sharpness=1.0)
        theirs = functional.multiclass_calibration_error(
            torch.tensor(softmax(logits, axis=1)),
            torch.tensor(labels),
            num_classes=5,
            n_bins=bins,
            norm=norm,
        )
        ours = getattr(measure(logits, labels, logits=True, bins=bins), attribute)
        assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_a_perfectly_calibrated_model_has_an_error_of_sampling_size_only():
    generator = np.random.default_rng(5)
    p = generator.random(200_000)
    y = (generator.random(p.size) < p).astype(int)
    # Under calibration the ECE is about sum_b sqrt(2/pi * p(1-p) n_b) / n < 15 bins * 0.4/sqrt(n);
    # 0.01 is more than ten deviations away.
    assert calibration.expected_calibration_error(p, y) < 0.01
    # Twice as confident logits are not calibrated.
    assert calibration.expected_calibration_error(2 * np.log(p / (1 - p)), y, logits=True) > 0.05


def test_tensors_arrays_and_binary_scores_mean_the_same():
    logits, labels = drawn(3, classes=2)
    one = measure(logits, labels, logits=True).summary()
    two = measure(torch.tensor(logits), torch.tensor(labels), logits=True).summary()
    three = measure(logits[:, 1] - logits[:, 0], labels, logits=True).summary()
    four = measure(softmax(logits, axis=1)[:, 1], labels).summary()
    for other in (two, three, four):
        assert other == pytest.approx(one)


def test_certain_and_wrong_is_an_infinite_loss_and_logits_keep_large_ones_finite():
    assert calibration.negative_log_likelihood([[1.0, 0.0]], [1]) == math.inf
    assert calibration.negative_log_likelihood([[1000.0, 0.0]], [1], logits=True) == 1000.0
    assert measure([[1.0, 0.0]], [0]).ece == 0.0


def test_the_shorter_names_return_the_same_numbers():
    logits, labels = drawn(8)
    found = measure(logits, labels, logits=True, bins=9, strategy="mass")
    options = {"logits": True, "bins": 9, "strategy": "mass"}
    assert calibration.expected_calibration_error(logits, labels, **options) == found.ece
    assert calibration.maximum_calibration_error(logits, labels, **options) == found.mce
    assert calibration.classwise_calibration_error(logits, labels, **options) == found.classwise_ece
    assert calibration.brier_score(logits, labels, logits=True) == found.brier
    frame = found.to_frame()
    assert frame["count"].sum() == found.records == 200
    assert "9 bins of equal mass" in str(found)


@pytest.mark.parametrize(
    ("scores", "labels", "options", "message"),
    [
        ([[0.5, 0.6]], [0], {}, "sum to 1"),
        ([[2.0, -1.0]], [0], {}, "logits=True"),
        ([[0.5, 0.5]], [2], {}, "labels must lie in 0 ... 1"),
        ([[0.5, 0.5]], [0, 1], {}, "one class index for each"),
        ([[0.5, 0.5]], [0.5], {}, "not whole numbers"),
        ([[math.nan, 0.5]], [0], {"logits": True}, "NaN or infinite"),
        ([[0.5, 0.5]], [0], {"bins": 0}, "bins must be"),
        ([[0.5, 0.5]], [0], {"strategy": "equal"}, "strategy must be one of"),
        (np.zeros((0, 3)), [], {}, "at least one record"),
    ],
)
def test_bad_input_is_refused_with_a_reason(scores, labels, options, message):
    with pytest.raises(ValueError, match=message):
        measure(scores, labels, **options)
