"""Budgets that nobody can keep, or that protect nobody, are refused in words, whatever releases."""

import numpy as np
import pytest

import noisewise as nw
from noisewise import ecdf, privacy
from noisewise.analysis.calibration import private_reliability

X = np.linspace(0, 100, 50)
Y, P = X > 40, X / 100
RELEASES = {
    "curve": lambda e: ecdf.dp_ecdf(X, bounds=(0, 100), epsilon=e),
    "quantile": lambda e: ecdf.dp_median(X, bounds=(0, 100), epsilon=e),
    "ROC": lambda e: ecdf.dp_roc_curve(Y, P, epsilon=e),
    "Hosmer-Lemeshow": lambda e: ecdf.dp_hosmer_lemeshow(Y, P, epsilon=e),
    "calibration": lambda e: ecdf.dp_calibration_curve(Y, P, epsilon=e),
    "reliability": lambda e: private_reliability(np.stack([1 - P, P], 1), Y.astype(int), epsilon=e),
    "stream": lambda e: ecdf.StreamingCounter(epsilon=e, horizon=8),
    "gaussian": lambda e: privacy.gaussian(3.0, sensitivity=1, epsilon=e, delta=1e-6),
    "laplace": lambda e: privacy.laplace(3.0, sensitivity=1, epsilon=e),
    "discrete laplace": lambda e: privacy.discrete_laplace(3, sensitivity=1, epsilon=e),
    "discrete gaussian": lambda e: privacy.discrete_gaussian(
        3, sensitivity=1, epsilon=e, delta=1e-6
    ),
    "exponential": lambda e: privacy.exponential([1.0, 2.0], sensitivity=1, epsilon=e),
    "noise multiplier": lambda e: privacy.noise_multiplier(
        epsilon=e, delta=1e-5, sample_rate=0.1, steps=10
    ),
    "plan": lambda e: nw.Plan(
        gradients=nw.Clipped(1.0), epsilon=e, delta=1e-5, epochs=1, batch_size=10
    ),
}


@pytest.mark.parametrize("epsilon", [1e-300, 1e-30, 1e15, 1e300])
@pytest.mark.parametrize("name", RELEASES)
def test_an_absurd_epsilon_is_refused_in_words(name, epsilon):
    with pytest.raises(ValueError, match="epsilon must lie between 1e-09 and 1e\\+09"):
        RELEASES[name](epsilon)


@pytest.mark.parametrize("epsilon", [1e-6, 1e6])
@pytest.mark.parametrize("name", RELEASES)
def test_an_odd_epsilon_is_kept(name, epsilon):
    RELEASES[name](epsilon)
