"""Temperature scaling, diagrams, and calibration of private records."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from scipy.special import softmax

from noisewise.analysis.calibration import (
    confidence_histogram,
    fit_temperature,
    measure,
    negative_log_likelihood,
    private_reliability,
    reliability_diagram,
)


def labels_from(logits, seed):
    generator = np.random.default_rng(seed)
    p = softmax(logits, axis=1)
    return (p.cumsum(1) < generator.random((len(p), 1))).sum(1).clip(0, p.shape[1] - 1)


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 8.0))
def test_no_temperature_near_the_fitted_one_is_better(seed, scale):
    logits = np.random.default_rng(seed).normal(0, 1.0, (300, 3))
    labels = labels_from(logits, seed + 1)
    found = fit_temperature(logits * scale, labels)
    best = negative_log_likelihood(logits * scale / found.value, labels, logits=True)
    assert best == pytest.approx(found.nll_after)
    assert found.nll_after <= found.nll_before + 1e-12
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        other = logits * scale / (found.value * factor)
        assert negative_log_likelihood(other, labels, logits=True) >= best - 1e-12


def test_the_temperature_that_made_the_labels_is_found_and_repairs_calibration():
    logits = np.random.default_rng(0).normal(0, 1.5, (50_000, 5))
    labels = labels_from(logits, 1)
    found = fit_temperature(3.0 * logits, labels)
    # Fisher information gives a standard error below 0.02; five of them is 6e-7.
    assert found.value == pytest.approx(3.0, abs=0.1)
    assert measure(3.0 * logits, labels, logits=True).ece > 0.1
    assert measure(found(3.0 * logits), labels, logits=True).ece < 0.01
    assert isinstance(found(torch.ones(2)), torch.Tensor)


def test_records_that_determine_no_temperature_are_said_to():
    with pytest.warns(RuntimeWarning, match="largest logit in every record"):
        assert fit_temperature([[5.0, 0.0], [0.0, 5.0]], [0, 1]).value < 1
    with pytest.warns(RuntimeWarning, match="uniform guess"):
        assert fit_temperature([[5.0, 0.0], [0.0, 5.0]], [1, 0]).value > 1


@pytest.mark.parametrize("strategy", ["width", "mass"])
def test_diagrams_show_the_measured_numbers(strategy):
    logits = np.random.default_rng(2).normal(0, 2, (400, 4))
    found = measure(logits * 2, labels_from(logits, 3), logits=True, strategy=strategy, bins=10)
    axes = Figure().subplots(1, 2)
    reliability_diagram(found, axes[0])
    confidence_histogram(found, axes[1])
    bars, gaps = axes[0].containers
    keep = found.bins.filled
    np.testing.assert_allclose([b.get_height() for b in bars], found.bins.observed[keep])
    tops = np.array([g.get_y() + g.get_height() for g in gaps])
    expected = np.maximum(found.bins.observed, found.bins.predicted)[keep]
    np.testing.assert_allclose(tops, expected)
    area = sum(b.get_height() * (b.get_width() if strategy == "mass" else 1)
               for b in axes[1].containers[0])  # fmt: skip
    assert area == pytest.approx(1.0)
    lines = sorted(line.get_xdata()[0] for line in axes[1].lines)
    assert lines == pytest.approx(sorted([found.accuracy, found.confidence]))
    assert f"ECE {found.ece:.1%}" in axes[0].texts[0].get_text()
    assert found.plot() is not None
    assert found.plot_confidence() is not None


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_private_numbers_approach_the_true_ones_within_the_promise(relation, delta):
    logits = np.random.default_rng(4).normal(0, 1.5, (30_000, 4))
    labels = labels_from(logits, 5)
    true = measure(2 * logits, labels, logits=True).summary()
    found = private_reliability(
        2 * logits, labels, epsilon=4.0, delta=delta, logits=True, relation=relation, rng=6
    )
    # Noise moves each mean by well under 1/1000 at this size; binning by up to half a bin.
    for name in ("accuracy", "confidence", "ece"):
        assert found.summary()[name] == pytest.approx(true[name], abs=0.01)
    assert found.summary()["brier"] == pytest.approx(true["brier"], abs=0.01)
    assert found.summary()["nll"] == pytest.approx(true["nll"], abs=0.03)
    promise = found.statement()
    assert promise.epsilon <= 4.0 * (1 + 1e-9)
    assert promise.delta == delta


def test_more_noise_for_less_epsilon():
    logits = np.random.default_rng(7).normal(0, 1.5, (2_000, 3))
    labels = labels_from(logits, 8)

    def spread(epsilon):
        runs = [
            private_reliability(
                logits, labels, logits=True, epsilon=epsilon, rng=seed, relation="replace-one"
            ).accuracy
            for seed in range(12)
        ]
        return np.std(runs)

    # The deviations differ by a factor of 20: chance of the reverse far below 1e-6.
    assert spread(0.2) > 3 * spread(4.0)


def test_a_class_that_is_always_right_can_be_released():
    found = private_reliability(
        [[0.9, 0.1]] * 50, [0] * 50, epsilon=50.0, rng=1, relation="replace-one"
    )
    assert found.accuracy == pytest.approx(1.0, abs=0.05)


def test_a_bad_budget_is_refused():
    with pytest.raises(ValueError, match="epsilon must be > 0"):
        private_reliability([[0.9, 0.1]], [0], epsilon=0.0, relation="replace-one")
