"""Figures for reports."""

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.analysis.calibration import private_reliability
from noisewise.analysis.clipping_bias import BiasSeries
from noisewise.analysis.figures import (
    evaluation_figures,
    prediction_histogram,
    training_figures,
)
from noisewise.ecdf import private_calibration
from noisewise.gradients import Clipped


def test_training_shows_calibration_and_bias_and_says_what_is_not_private(tmp_path):
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(200, 3)), generator.integers(0, 3, 200)
    series = BiasSeries(every=1)
    assert training_figures(bias=series) == []
    model = nn.Linear(4, 3)
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    for _ in range(3):
        series.observe(model, nn.CrossEntropyLoss(), x, y, Clipped(0.5), noise_multiplier=1.0)
    figures = training_figures(logits, labels, bias=series, held_out="the test split")
    captions = [caption for _, caption in figures]
    assert len(figures) == 3
    assert "the test split" in captions[0]
    assert "NOT PRIVATE" in captions[2]
    for number, (figure, _) in enumerate(figures):
        figure.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000


def test_evaluation_shows_only_what_was_released():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(3000, 3)), generator.integers(0, 3, 3000)
    found = private_reliability(
        logits, labels, epsilon=2.0, logits=True, rng=0, relation="replace-one"
    )
    (first, caption), (second, _) = evaluation_figures(found)
    assert f"ECE {found.ece:.3f}" in caption
    bars = second.axes[0].containers[0]
    area = sum(bar.get_height() * bar.get_width() for bar in bars)
    assert abs(area - 1) < 1e-9
    lines = sorted(line.get_xdata()[0] for line in second.axes[0].lines)
    np.testing.assert_allclose(lines, sorted([found.accuracy, found.confidence]))
    assert first.axes[0].get_xlabel() == "confidence"


def test_the_histogram_of_predictions_is_read_off_the_calibration():
    generator = np.random.default_rng(2)
    predictions = generator.beta(1, 3, 5000)
    labels = (generator.random(5000) < predictions).astype(int)
    found = private_calibration(labels, predictions, epsilon=5.0, rng=0, relation="replace-one")
    axes = prediction_histogram(found).axes[0]
    bars = axes.containers[0]
    assert abs(sum(bar.get_height() * bar.get_width() for bar in bars) - 1) < 1e-9
    assert [bar.get_x() for bar in bars] == pytest.approx(found.edges[:-1])
    happened, predicted = (line.get_xdata()[0] for line in axes.lines)
    assert happened == pytest.approx(labels.mean(), abs=0.02)
    assert predicted == pytest.approx(predictions.mean(), abs=0.02)
