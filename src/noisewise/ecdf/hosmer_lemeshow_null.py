"""The law of a noisy Hosmer-Lemeshow statistic when the predictions are right.

Sampling: the residual of a group is a sum of independent y - p, nearly normal with variance
sum p (1 - p). Noise: its law is public. Both are simulated around the released numbers (a
parametric bootstrap, so approximate where expected numbers are small against the noise).
If the model was fitted to the same records, its score equations leave two directions
without sampling error: the sum of the residuals, and their sum weighted by the logit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["Groups", "NullResult", "p_values", "statistic_of"]


@dataclass(frozen=True, eq=False)
class Groups:
    """The numbers by group that a statistic is made of.

    Parameters
    ----------
    expected_1, expected_0 : array
        Expected positives and negatives, at least 1.
    residual_1, residual_0 : array
        Observed less expected.
    variance : array
        Sampling variance of the residual.
    residual_scale, expected_scale : float
        Laplace scales of the noise of the observed numbers (or the residual itself) and of
        the expected ones, 0 if the latter do not enter the residual.
    """

    expected_1: FloatArray
    expected_0: FloatArray
    residual_1: FloatArray
    residual_0: FloatArray
    variance: FloatArray
    residual_scale: float
    expected_scale: float

    @property
    def shared(self) -> bool:
        """Whether one residual serves both classes."""
        return self.expected_scale == 0

    def table(self) -> dict[str, FloatArray]:
        """Return the numbers for people."""
        return {
            "expected_1": self.expected_1,
            "observed_1": self.expected_1 + self.residual_1,
            "expected_0": self.expected_0,
            "observed_0": self.expected_0 + self.residual_0,
        }


@dataclass(frozen=True)
class NullResult:
    """p-values of both statistics, and how much noise adds to H on average."""

    plain: float
    noise_aware: float
    noise_inflation: float


def statistic_of(groups: Groups) -> float:
    """Return H."""
    one = groups.residual_1**2 / groups.expected_1
    zero = groups.residual_0**2 / groups.expected_0
    return float((one + zero).sum())


def _sampled(
    groups: Groups, fitted: bool, draws: int, generator: np.random.Generator
) -> FloatArray:
    """Residuals without noise, under the null hypothesis."""
    deviation = np.sqrt(groups.variance)
    normal = generator.standard_normal((draws, deviation.size))
    if fitted:
        logit = np.log(groups.expected_1 / groups.expected_0)
        directions = np.column_stack([deviation, deviation * logit])
        # An orthonormal basis of what the fit removes, in units of the deviations.
        left, size, _ = np.linalg.svd(directions, full_matrices=False)
        basis = left[:, size > 1e-9 * max(float(size[0]), 1e-300)]
        normal = normal - (normal @ basis) @ basis.T
    return np.asarray(normal * deviation)


def p_values(groups: Groups, *, fitted: bool, draws: int, seed: int) -> NullResult:
    """Simulate the null distribution and compare."""
    generator = np.random.default_rng(seed)
    sampled = _sampled(groups, fitted, draws, generator)
    shape = sampled.shape

    def noise(scale: float) -> FloatArray:
        return generator.laplace(0.0, scale, shape) if scale > 0 else np.zeros(shape)

    noise_1 = noise(groups.residual_scale)
    one, zero = groups.expected_1, groups.expected_0
    if groups.shared:
        first, second = sampled + noise_1, -(sampled + noise_1)
        simulated = (first**2 / one + second**2 / zero).sum(1)
        inflation = float((2 * groups.residual_scale**2 * (1 / one + 1 / zero)).sum())
        noise_variance = 2 * groups.residual_scale**2
        observed_combined = groups.residual_1
        combined = first
    else:
        shift_1, shift_0 = noise(groups.expected_scale), noise(groups.expected_scale)
        first = sampled + noise_1 - shift_1
        second = -sampled + noise(groups.residual_scale) - shift_0
        noisy_one, noisy_zero = np.maximum(one + shift_1, 1.0), np.maximum(zero + shift_0, 1.0)
        simulated = (first**2 / noisy_one + second**2 / noisy_zero).sum(1)
        # Noise in the denominators has no useful mean.
        inflation = math.nan
        # Half the difference of both residuals has the least noise.
        combined = (first - second) / 2
        observed_combined = (groups.residual_1 - groups.residual_0) / 2
        noise_variance = groups.residual_scale**2 + groups.expected_scale**2
    weight = 1 / np.maximum(groups.variance + noise_variance, 1e-300)
    aware = (combined**2 * weight).sum(1)
    aware_observed = float((observed_combined**2 * weight).sum())
    return NullResult(
        plain=(1 + int((simulated >= statistic_of(groups)).sum())) / (draws + 1),
        noise_aware=(1 + int((aware >= aware_observed).sum())) / (draws + 1),
        noise_inflation=inflation,
    )
