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
# Column scales are constant on runs in which the ideal ones differ by less than this, the more
# the more points there are (fewer runs, less time).
RUN_STEPS = ((1 << 12, 0.002), (1 << 16, 0.01), (1 << 18, 0.02), (1 << 62, 0.05))


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
        step = next(step for most, step in RUN_STEPS if points <= most)
        starts = np.flatnonzero(np.diff(np.floor(logs / step), prepend=np.inf))
        sizes = np.diff(np.append(starts, points))
        scales = np.exp(np.minimum.reduceat(logs, starts))
        whole = np.floor(scales / scales.min() * COLUMN_UNIT).astype(np.int64)
        return np.repeat(whole, sizes)


def stored_profiles(relation: str, objective: str, bins: int) -> list[Profile]:
    """Return the profile of this relation and objective found nearest to `bins`."""
    fitting = [p for p in _STORED if p.name.startswith(f"{relation} {objective} ")]
    return sorted(fitting, key=lambda profile: abs(math.log(profile.bins / bins)))[:1]


def _profile(name: str, *numbers: float) -> Profile:
    exponent, rows, columns = numbers[0], numbers[1 : 1 + KNOTS], numbers[1 + KNOTS :]
    return Profile(name, exponent, rows, columns or None)


# fmt: off
_STORED: tuple[Profile, ...] = (
    _profile(
        "add-remove max 64",
        0.51993,
        -0.17581, -0.0437, 0.09745, 0.23036, 0.33738, 0.35615,
        0.24238, 0.04123, -0.18043, -0.37862, -0.52639,
    ),
    _profile(
        "add-remove mean 64",
        0.51479,
        0.20619, 0.26513, 0.35149, 0.45079, 0.51416, 0.46362,
        0.25869, -0.06233, -0.43841, -0.82292, -1.18642,
    ),
    _profile(
        "replace max 64",
        0.48132,
        -0.98255, -0.87546, -0.71704, -0.53526, -0.37033, -0.21224,
        0.11419, 0.48486, 0.7996, 1.06504, 1.2292,
        0.79824, 0.76875, 0.70556, 0.5933, 0.4895, 0.36928,
        -0.00498, -0.43505, -0.80821, -1.13748, -1.33891,
    ),
    _profile(
        "replace mean 64",
        0.47002,
        -0.79328, -0.77239, -0.73457, -0.64667, -0.48601, -0.25774,
        -0.02559, 0.4308, 0.82352, 1.13016, 1.33176,
        0.76113, 0.74895, 0.72137, 0.65724, 0.54268, 0.37632,
        0.05419, -0.42647, -0.84825, -1.18464, -1.40252,
    ),
    _profile(
        "add-remove max 256",
        0.51217,
        -0.04705, -0.03707, 0.12286, 0.29308, 0.45698, 0.50892,
        0.33144, 0.02295, -0.29758, -0.57879, -0.77573,
    ),
    _profile(
        "add-remove mean 256",
        0.50982,
        0.30043, 0.34141, 0.41987, 0.54125, 0.66508, 0.64356,
        0.37139, -0.07133, -0.57283, -1.08124, -1.55758,
    ),
    _profile(
        "replace max 256",
        0.48865,
        -1.12192, -1.09227, -0.95259, -0.76054, -0.55008, -0.36068,
        0.09709, 0.60076, 1.07239, 1.42689, 1.64096,
        0.98798, 0.97647, 0.93488, 0.82891, 0.68756, 0.54396,
        0.03019, -0.5422, -1.10604, -1.53449, -1.80722,
    ),
    _profile(
        "replace mean 256",
        0.48455,
        -0.96901, -0.93946, -0.91169, -0.84244, -0.68271, -0.41912,
        -0.07004, 0.53838, 1.05671, 1.48524, 1.75414,
        0.94146, 0.93125, 0.91365, 0.86293, 0.74675, 0.54994,
        0.11021, -0.52768, -1.09737, -1.57215, -1.85898,
    ),
    _profile(
        "add-remove max 1024",
        0.5077,
        0.09954, 0.10502, 0.15383, 0.3446, 0.55674, 0.6503,
        0.40201, -0.02011, -0.43617, -0.80322, -1.05253,
    ),
    _profile(
        "add-remove mean 1024",
        0.50688,
        0.42731, 0.45037, 0.50787, 0.62413, 0.79533, 0.8142,
        0.4706, -0.09551, -0.71284, -1.3428, -1.93866,
    ),
    _profile(
        "replace max 1024",
        0.49288,
        -1.22504, -1.19666, -1.11131, -0.94815, -0.70224, -0.48385,
        0.09034, 0.75399, 1.29968, 1.71378, 1.80947,
        1.11623, 1.1118, 1.0873, 1.0059, 0.83754, 0.6704,
        0.03787, -0.708, -1.34707, -1.85379, -1.95818,
    ),
    _profile(
        "replace mean 1024",
        0.49097,
        -1.15733, -1.12442, -1.08657, -1.03577, -0.88485, -0.58527,
        -0.11884, 0.64314, 1.30201, 1.85002, 2.19788,
        1.12742, 1.11888, 1.10299, 1.06574, 0.95335, 0.72393,
        0.16916, -0.62582, -1.3477, -1.95624, -2.3317,
    ),
)
# fmt: on
