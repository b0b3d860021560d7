"""Shapes of the scaled Toeplitz strategy: its coefficients and its stored profiles.

A profile is an exponent a of (1 - q)^-a and, on KNOTS equidistant places of the coordinate
``log(i / (points - i))``, the logarithms of row scales (and, for replace-one, of column
scales; for add-remove the columns are made equally long). The stored numbers are the output
of ``python benchmarks/ecdf_scaled_toeplitz.py --bins B`` for the B in their names. They are
parameters, not guarantees: sensitivity and variance are computed from the integer
matrix that they lead to, whatever they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray

__all__ = ["KNOTS", "Profile", "binomial_coefficients", "interpolation", "stored_profiles"]

KNOTS = 11
# Smallest integer that a scale is rounded to.
ROW_UNIT = 32
COLUMN_UNIT = 256
# Column scales are constant on runs in which the ideal ones differ by less than this: up to
# 4096 points, and beyond (fewer runs, less time).
RUN_STEPS = (0.002, 0.01)


def interpolation(points: int) -> FloatArray:
    """Weights (points x KNOTS) of piecewise linear interpolation in log(i / (points - i))."""
    index = np.arange(points) + 0.5
    position = np.log(index / (points - index)) / math.log(2 * points + 1)
    place = (position + 1) / 2 * (KNOTS - 1)
    left = np.minimum(place.astype(np.int64), KNOTS - 2)
    weights = np.zeros((points, KNOTS))
    rows = np.arange(points)
    weights[rows, left] = 1 - (place - left)
    weights[rows, left + 1] = place - left
    return weights


def binomial_coefficients(points: int, exponent: float) -> FloatArray:
    """First coefficients of (1 - q)^-exponent."""
    steps = np.arange(1, max(points, 1))
    return np.concatenate([[1.0], np.cumprod((steps - 1 + exponent) / steps)])[:points]


@dataclass(frozen=True)
class Profile:
    """Parameters of a scaled Toeplitz strategy.

    Parameters
    ----------
    name : str
        Where it was found: relation, objective and number of bins.
    exponent : float
        Exponent of the generating function.
    rows : tuple of float
        Logarithms of the row scales at the knots.
    columns : tuple of float or None
        Logarithms of the column scales; None: what makes all columns equally long.
    """

    name: str
    exponent: float
    rows: tuple[float, ...]
    columns: tuple[float, ...] | None

    @property
    def bins(self) -> int:
        """Number of bins it was found at."""
        return int(self.name.rsplit(" ", 1)[1])

    def row_scales(self, points: int) -> IntArray:
        """Positive integers proportional to the row scales, nearly."""
        scales = np.exp(interpolation(points) @ np.array(self.rows))
        return np.asarray(np.rint(scales / scales.min() * ROW_UNIT), np.int64)

    def column_scales(self, points: int, rows: IntArray, coefficients: IntArray) -> IntArray:
        """Positive integers proportional to the column scales, constant on few runs."""
        if self.columns is None:
            size = next_fast_len(2 * points, real=True)
            weights = rfft(rows.astype(np.float64) ** 2, size)
            squares = rfft(coefficients.astype(np.float64) ** 2, size)
            logs = -0.5 * np.log(irfft(weights * squares.conj(), size)[:points])
        else:
            logs = interpolation(points) @ np.array(self.columns)
        step = RUN_STEPS[0 if points <= 4096 else 1]
        starts = np.flatnonzero(np.diff(np.floor(logs / step), prepend=np.inf))
        sizes = np.diff(np.append(starts, points))
        scales = np.exp(np.minimum.reduceat(logs, starts))
        whole = np.floor(scales / scales.min() * COLUMN_UNIT).astype(np.int64)
        return np.repeat(whole, sizes)


def stored_profiles(relation: str, objective: str, bins: int) -> list[Profile]:
    """Return the two profiles of this relation and objective found nearest to `bins`."""
    fitting = [p for p in _STORED if p.name.startswith(f"{relation} {objective} ")]
    return sorted(fitting, key=lambda profile: abs(math.log(profile.bins / bins)))[:2]


def _profile(name: str, *numbers: float) -> Profile:
    exponent, rows, columns = numbers[0], numbers[1 : 1 + KNOTS], numbers[1 + KNOTS :]
    return Profile(name, exponent, rows, columns or None)


_STORED: tuple[Profile, ...] = ()
