"""Toeplitz strategies: the square-root factorisation, and a better one with scaled ends.

Prefix sums are ``A x`` with A the lower triangle of ones. Measured is ``z = C x + w`` with an
*integer* matrix ``C = diag(rows) T diag(columns)``, T lower triangular Toeplitz, and discrete
Gaussian w; released is ``A C^-1 z = A x + A C^-1 w``. So rounding the ideal real matrix to
integers costs nothing in privacy and nothing in bias: the sensitivity is that of the rounded
matrix, and the read-out inverts the rounded matrix.

* `rows` = `columns` = 1 and T the coefficients of (1 - q)^-1/2: the square-root factorisation
  (Fichtenberger, Henzinger and Upadhyay 2023; Henzinger, Upadhyay and Upadhyay 2023).
* Scaled rows and columns (profiles of :mod:`noisewise.ecdf.mechanisms.profile`, found by
  ``benchmarks/ecdf_scaled_toeplitz.py``) spend less on the ends of the range. With equal
  rows this is the normalised square root of Henzinger, Kalinin and Upadhyay (2025).

Everything is O(N log N) by fast Fourier transforms.

Proof: docs/proofs/curves.md#factorisations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.calibrating import calibrate
from noisewise.ecdf.mechanisms.convolution import convolve, exact_convolve, series_inverse
from noisewise.ecdf.mechanisms.distance import longest_column, longest_difference
from noisewise.ecdf.mechanisms.profile import Profile, binomial_coefficients, stored_profiles
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
)
from noisewise.ecdf.mechanisms.registry import Counting, Objective, Wanted, register
from noisewise.ecdf.mechanisms.resolution import power_of_two

__all__ = ["ScaledToeplitz", "sqrt_mechanism"]

# Beyond this many bins the search for the longest difference of scaled columns takes seconds,
# and the circulant strategy is better in any case.
MOST_SCALED = 1 << 12


@dataclass(frozen=True, eq=False)
class ScaledToeplitz:
    """Integer measurements ``rows * (T (columns * counts))``.

    Parameters
    ----------
    setting : Setting
        What is public. If the total is, the last bin is not measured.
    coefficients : int array
        First column of T: positive and not increasing.
    rows, columns : int array
        Positive integer scales.
    label : str
        Part of the description.
    """

    setting: Setting
    coefficients: IntArray
    rows: IntArray
    columns: IntArray
    label: str

    @property
    def name(self) -> str:
        """A short name."""
        return "sqrt"

    @property
    def description(self) -> str:
        """One line that says which strategy it is."""
        return self.label

    @property
    def blocks(self) -> tuple[int, ...]:
        """One number of noise for each measurement."""
        return (self.setting.points,)

    @property
    def shares(self) -> tuple[float, ...]:
        """One block takes the whole budget."""
        return (1.0,)

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """Length of the longest column, or of the longest difference of two columns."""
        if norm == "l1":
            raise ValueError("the square-root strategy has no useful l1 sensitivity: use delta > 0")
        column = self._longest_column
        if change == "suffix":
            return (Fraction(column),)
        # With a public total the last bin is the zero column; for a flipped label two curves
        # change by one column each.
        other = column if change == "interval" else 2 * column
        return (Fraction(max(other, self._longest_difference)),)

    @cached_property
    def _longest_column(self) -> float:
        return longest_column(self.coefficients, self.rows, self.columns)

    @cached_property
    def _longest_difference(self) -> float:
        return longest_difference(self.coefficients, self.rows, self.columns)

    def touched(self, change: Change) -> int:
        """One record moves all measurements of a curve, or (a flipped label) of two."""
        return self.setting.points * (2 if change == "joint" else 1)

    def measure(self, counts: IntArray) -> IntArray:
        """Apply the integer matrix exactly."""
        points = self.setting.points
        largest = int(counts.sum()) * int(self.columns.max(initial=1))
        largest *= int(self.coefficients.max(initial=1)) * int(self.rows.max(initial=1))
        if largest >= 2**62:
            raise OverflowError("too many records for 64-bit measurements; use mechanism='kary'")
        scaled = counts[:points] * self.columns
        return exact_convolve(self.coefficients, scaled, points) * self.rows

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each measurement has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Invert the integer matrix and sum up."""
        points = self.setting.points
        unscaled = measurements.astype(np.float64) / self.rows
        counts = convolve(self._inverse, unscaled, points) / self.columns
        prefix = np.cumsum(counts, axis=-1)
        if not self.setting.total_is_public:
            return prefix
        return np.concatenate([prefix, np.full((*prefix.shape[:-1], 1), total)], axis=-1)

    @cached_property
    def _inverse(self) -> FloatArray:
        return series_inverse(self.coefficients.astype(np.float64))

    @cached_property
    def _readout(self) -> FloatArray:
        """Coefficients of the read-out A T^-1."""
        return np.cumsum(self._inverse)

    def _pieces(self) -> list[tuple[int, int, float]]:
        """Find runs of equal column scales: start, end, 1 / scale."""
        points = self.setting.points
        starts = np.flatnonzero(np.diff(self.columns, prepend=0))
        ends = np.append(starts[1:], points)
        scales = 1.0 / self.columns[starts]
        return list(zip(starts.tolist(), ends.tolist(), scales.tolist(), strict=True))

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Squared lengths of the rows of A C^-1.

        Within a run of equal column scale 1/g, row i is ``g b_(i-j) + h_j`` where b are the
        coefficients of A T^-1 and h, by summation by parts, does not depend on i.
        """
        points, readout = self.setting.points, self._readout
        result = np.zeros(self.setting.bins)
        if points == 0:
            return result
        weight = 1.0 / self.rows.astype(np.float64) ** 2
        squares = convolve(readout**2, weight, points)
        past = np.zeros(points)
        tail = _tails(readout)
        for start, end, scale, following in self._runs():
            constant = float((weight * past**2).sum())
            run = scale**2 * squares[start:end] + constant
            if start:
                run += 2 * scale * tail(weight[:start] * past[:start], end)
            result[start:end] = run
            past[:end] += (scale - following) * readout[:end][::-1]
        return np.maximum(result, 0.0) * blocks[0]

    def _runs(self) -> list[tuple[int, int, float, float]]:
        pieces = self._pieces()
        following = [scale for _, _, scale in pieces[1:]] + [0.0]
        return [(*piece, after) for piece, after in zip(pieces, following, strict=True)]

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Inner products of the rows of A C^-1 with the last row."""
        points, readout = self.setting.points, self._readout
        if self.setting.total_is_public:
            return np.zeros(self.setting.bins)
        last = np.zeros(points)
        for _, end, scale, following in self._runs():
            last[:end] += (scale - following) * readout[:end][::-1]
        weighted = last / self.rows.astype(np.float64) ** 2
        products = convolve(readout, weighted, points)
        result, past = np.empty(points), np.zeros(points)
        for start, end, scale, following in self._runs():
            result[start:end] = scale * products[start:end] + float((past * weighted).sum())
            past[:end] += (scale - following) * readout[:end][::-1]
        return result * blocks[0]


def _tails(series: FloatArray) -> Callable[[FloatArray, int], FloatArray]:
    """Return a function for the terms values.size, ..., end - 1 of the product with values."""
    whole = next_fast_len(2 * series.size, real=True)
    spectrum = rfft(series, whole)

    def tail(values: FloatArray, end: int) -> FloatArray:
        start = values.size
        if end - start <= 64:
            backward = values[::-1]
            return np.array([series[i - start + 1 : i + 1] @ backward for i in range(start, end)])
        if 2 * end < series.size:
            return convolve(series[:end], values, end)[start:]
        return np.asarray(irfft(spectrum * rfft(values, whole), whole)[start:end])

    return tail


def build(setting: Setting, profile: Profile | None, extra: int = 1) -> ScaledToeplitz:
    """Round a profile (None: the plain square root) to an integer strategy."""
    points = setting.points
    # Relative rounding error of the smallest coefficient is about 2^-8; `extra` refines it.
    resolution = power_of_two(256 * math.sqrt(max(points, 1))) * extra
    exponent = 0.5 if profile is None else profile.exponent
    real = resolution * binomial_coefficients(points, exponent)
    coefficients = np.minimum.accumulate(np.rint(real)).astype(np.int64)
    ones = np.ones(points, np.int64)
    if profile is None:
        label = "square-root factorisation"
        return ScaledToeplitz(setting, coefficients, ones, ones, label)
    rows = profile.row_scales(points)
    columns = profile.column_scales(points, rows, coefficients)
    label = f"square-root factorisation with scaled ends (profile {profile.name})"
    return ScaledToeplitz(setting, coefficients, rows, columns, label)


@lru_cache(maxsize=32)
def choose_strategy(
    bins: int, total_is_public: bool, change: Change, objective: Objective, extra: int
) -> ScaledToeplitz:
    """Return the Toeplitz strategy of least closed-form variance."""
    setting = Setting(bins, total_is_public)
    options: list[Profile | None] = [None]
    if setting.points >= 4 and (bins <= MOST_SCALED or change != "interval"):
        # A flipped label moves a whole suffix of both curves, as if a record came and one went.
        relation = "replace" if change == "interval" else "add-remove"
        goals: tuple[Objective, ...] = ("mean", "max") if bins <= 4096 else (objective,)
        for goal in goals:
            options += stored_profiles(relation, goal, bins)

    def error(strategy: ScaledToeplitz) -> float:
        (square,) = strategy.shift(change, "l2-squared")
        variance = strategy.variance((float(square),))[: max(setting.points, 1)]
        return float(variance.mean() if objective == "mean" else variance.max())

    return min((build(setting, option, extra) for option in options), key=error)


def sqrt_mechanism(
    setting: Setting,
    budget: Budget,
    *,
    objective: Objective = "mean",
    change: Change | None = None,
) -> Mechanism:
    """Return the Toeplitz strategy with the Gaussian noise that `budget` allows.

    Parameters
    ----------
    setting, budget : Setting, Budget
        What is public and what a release may cost; the budget needs delta > 0 or rho.
    objective : {"mean", "max"}
        Which variance the choice between profiles minimises.
    change : {"suffix", "interval", "joint"}, optional
        What one record may do.
    """
    change = change or setting.change
    if not budget.allows_gaussian:
        raise ValueError(
            f"mechanism 'sqrt' adds Gaussian noise, which is never purely private, but the "
            f"budget is {budget}. Give delta > 0, for example delta=1e-6, or use 'kary'."
        )
    strategy = choose_strategy(setting.bins, setting.total_is_public, change, objective, 1)
    (square,) = strategy.shift(change, "l2-squared")
    # Noise must be large against the grid.
    needed = budget.least_deviation(max(strategy.touched(change), 1)) * budget.ratio
    if math.sqrt(square) < needed:
        extra = power_of_two(needed / math.sqrt(square))
        strategy = choose_strategy(setting.bins, setting.total_is_public, change, objective, extra)
    return calibrate(strategy, budget, "gaussian", change=change)


def _sqrt(setting: Setting, budget: Budget, wanted: Wanted) -> Mechanism:
    return sqrt_mechanism(setting, budget, objective=wanted.objective, change=wanted.change)


register(
    Counting(
        "sqrt",
        "A lower triangular Toeplitz matrix near the square root of the summation matrix, whose "
        "ends are treated differently. Needs delta > 0 (or rho).",
        "proofs/curves.md#factorisations",
        _sqrt,
        lambda setting, budget, wanted: (
            [_sqrt(setting, budget, wanted)] if budget.allows_gaussian else []
        ),
    )
)
