"""Monotone curves by pooling adjacent violators: the nearest in weighted squares."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import isotonic_regression

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["smooth_isotonic"]


def smooth_isotonic(
    noisy: FloatArray, total: float | None, variance: FloatArray | None = None
) -> FloatArray:
    """Return the monotone curve nearest to `noisy` in squares weighted by 1 / `variance`.

    Clipping the unbounded solution to the limits solves the bounded problem.

    Parameters
    ----------
    noisy : array
        Noisy prefix counts.
    total : float or None
        Upper limit of the curve.
    variance : array, optional
        Variances of the counts; equal ones by default.

    Examples
    --------
    >>> smooth_isotonic(np.array([2.0, 1.0, 5.0]), 4.0).tolist()
    [1.5, 1.5, 4.0]
    """
    noisy = np.ascontiguousarray(noisy, np.float64)
    weights = None
    if variance is not None and np.all(variance > 0):
        weights = variance.min() / np.ascontiguousarray(variance, np.float64)
    curve = isotonic_regression(noisy, sample_weight=weights)
    # Pools are equal up to rounding only; make the order exact.
    curve = np.maximum.accumulate(curve)
    return np.clip(curve, 0.0, np.inf if total is None else total)
