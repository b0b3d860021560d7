"""Circulant noise for replaced records: stationary inside, pinned outside.

Under replace-one the prefix counts before the first and after the last bin are known (0 and n),
and one record changes the M = N - 1 counts p between by one on an interval. Put p on a circle of
P > M places, zero on the places that are left over, and measure ``z = G p + w`` with an
*integer* symmetric circulant G and P discrete Gaussian numbers w. The best linear estimate is
``p' = (G'G)^-1 G' z`` over the M places of p, with covariance ``s^2 K^-1``, where K is the M x M
Toeplitz matrix of the circular autocorrelation k of G.

* Sensitivity. An interval of length l changes z by G v with ``|G v|^2 = sum_(i,j < l) k_(i-j)``,
  which depends on l alone: all of them are two cumulative sums of k, in exact integers.
* Accuracy. K^-1 is known from its first column x (Gohberg and Semencul 1972):
  ``x_0 K^-1 = L(x) L(x)' - L(y) L(y)'``, y = (0, x_(M-1), ..., x_1), L lower triangular Toeplitz.
  Its diagonal is one cumulative sum and a product with it takes a few Fourier transforms.
  x comes from conjugate gradients with T. Chan's circulant preconditioner.

The spectrum of G'G is |sin(pi j / P)|, which makes intervals of all lengths about equally
visible; with P = M and a free mean this is the known circulant mechanism, whose variance is flat.
The places left over cost nothing and pin the noise down at both ends: mean *and* largest
variance fall. A few low frequencies are retuned by ``benchmarks/ecdf_circulant.py``. As with all
strategies the guarantee is that of the integer matrix that is used, whatever its spectrum.

Proof: docs/proofs/curves.md#factorisations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.calibrating import calibrate
from noisewise.ecdf.mechanisms.convolution import exact_convolve
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

__all__ = ["PinnedCirculant", "circulant_mechanism", "circulant_spectrum", "inverse_column"]

# Finer kernels would overflow 64 bits in the exact autocorrelation.
FINEST = 1 << 27


@dataclass(frozen=True)
class Tuning:
    """Places for each prefix count, and the logarithms of the factors of frequencies 0, 1, ...

    Frequency 0 would have none; its factor multiplies what frequency 1 has.
    """

    ratio: float
    factors: tuple[float, ...]


# fmt: off
TUNINGS: dict[str, Tuning] = {
    "mean": Tuning(1.25, (
        -5.015, 0.074, 0.333, 0.135, -0.067, 0.017, 0.123,
        0.079, -0.012, -0.008, 0.045, 0.052, 0.020,
    )),
    "max": Tuning(1.125, (
        -1.693, 0.085, -0.028, 0.155, 0.025, 0.023, -0.031,
        0.021, -0.000, 0.014, 0.013, 0.013, 0.006,
    )),
}
# fmt: on


def circulant_spectrum(places: int, factors: tuple[float, ...]) -> FloatArray:
    """Return the spectrum of G'G at the frequencies 0, ..., places // 2."""
    frequencies = np.arange(places // 2 + 1)
    spectrum = 2 * np.sin(np.pi * frequencies / places)
    spectrum[0] = spectrum[1]
    tuned = min(len(factors), spectrum.size)
    spectrum[:tuned] *= np.exp(factors[:tuned])
    return np.asarray(spectrum)


def inverse_column(column: FloatArray, tolerance: float = 1e-13) -> FloatArray:
    """Return the first column of the inverse of a positive definite Toeplitz matrix.

    Examples
    --------
    >>> inverse_column(np.array([2.0, -1.0])).round(6).tolist()
    [0.666667, 0.333333]
    """
    count = column.size
    size = next_fast_len(2 * count, real=True)
    wrapped = np.zeros(size)
    wrapped[:count] = column
    if count > 1:
        wrapped[-(count - 1) :] = column[:0:-1]
    transformed = rfft(wrapped)
    lag = np.arange(count)
    nearest = ((count - lag) * column + lag * np.append(0.0, column[:0:-1])) / count
    eigenvalues = rfft(nearest).real
    eigenvalues = np.maximum(eigenvalues, 1e-12 * eigenvalues.max())

    def precondition(values: FloatArray) -> FloatArray:
        return np.asarray(irfft(rfft(values) / eigenvalues, count))

    solution, residual = np.zeros(count), np.zeros(count)
    residual[0] = 1.0
    step = direction = precondition(residual)
    product = float(residual @ step)
    for _ in range(500):
        image = irfft(transformed * rfft(direction, size), size)[:count]
        length = product / float(direction @ image)
        solution += length * direction
        residual -= length * image
        if float(np.linalg.norm(residual)) <= tolerance:
            break
        step = precondition(residual)
        product, before = float(residual @ step), product
        direction = step + product / before * direction
    return solution


@dataclass(frozen=True, eq=False)
class PinnedCirculant:
    """Integer measurements ``G p`` of the prefix counts on a circle.

    Parameters
    ----------
    setting : Setting
        What is public; the total must be.
    kernel : int array
        First column of G: as many as there are places, symmetric.
    """

    setting: Setting
    kernel: IntArray

    @property
    def name(self) -> str:
        """A short name."""
        return "circulant"

    @property
    def description(self) -> str:
        """One line that says which strategy it is."""
        return f"circulant noise on {self.kernel.size} places, pinned outside the range"

    @property
    def blocks(self) -> tuple[int, ...]:
        """One number of noise for each place."""
        return (self.kernel.size,)

    @property
    def shares(self) -> tuple[float, ...]:
        """One block takes the whole budget."""
        return (1.0,)

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """Largest squared change of the measurements over all intervals, exactly."""
        if norm == "l1" or change != "interval":
            raise ValueError(
                "the circulant strategy hides a replaced record under Gaussian noise: it needs a "
                "public number of records and delta > 0 (or rho)"
            )
        return (Fraction(int(self._interval_squares.max())),)

    @cached_property
    def _autocorrelation(self) -> IntArray:
        """Exact circular autocorrelation of the kernel, lags 0, ..., M - 1."""
        places = self.kernel.size
        line = exact_convolve(self.kernel, self.kernel, 2 * places - 1)
        circle = line[:places].copy()
        circle[: places - 1] += line[places:]
        return np.asarray(circle[: self.setting.points])

    @cached_property
    def _interval_squares(self) -> IntArray:
        """Squared change by the length of the interval, from 1 on."""
        twice = 2 * self._autocorrelation
        twice[0] //= 2
        return np.asarray(np.cumsum(np.cumsum(twice)))

    def touched(self, change: Change) -> int:
        """One record moves the measurements of all places."""
        return self.kernel.size

    def measure(self, counts: IntArray) -> IntArray:
        """Apply the integer matrix exactly."""
        places, points = self.kernel.size, self.setting.points
        prefix = np.cumsum(counts)[:points]
        line = exact_convolve(self.kernel, prefix, places + points - 1)
        circle = line[:places].copy()
        circle[: points - 1] += line[places:]
        return np.asarray(circle)

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each place has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Least squares over the places of the prefix counts; the last one is the total."""
        places, points = self.kernel.size, self.setting.points
        spectrum = rfft(self.kernel.astype(np.float64))
        values = irfft(rfft(measurements.astype(np.float64)) * spectrum.conj(), places)
        prefix = self._solve(values[..., :points])
        return np.concatenate([prefix, np.full((*prefix.shape[:-1], 1), total)], axis=-1)

    @cached_property
    def _column(self) -> FloatArray:
        """First column of K^-1, in units in which the diagonal of K is one."""
        correlation = self._autocorrelation.astype(np.float64)
        return inverse_column(correlation / correlation[0])

    def _solve(self, values: FloatArray) -> FloatArray:
        """Multiply by K^-1 (last axis)."""
        points, column = self.setting.points, self._column
        size = next_fast_len(2 * points, real=True)
        reflected = np.append(0.0, column[:0:-1])
        transformed = rfft(values, size)
        result = np.zeros_like(values)
        for series, sign in ((column, 1.0), (reflected, -1.0)):
            triangle = rfft(series, size)
            # L' cuts off what lies before the first place, L what lies after the last.
            inner = irfft(transformed * triangle.conj(), size)[..., :points]
            result += sign * irfft(rfft(inner, size) * triangle, size)[..., :points]
        return np.asarray(result / (column[0] * float(self._autocorrelation[0])))

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Return the diagonal of K^-1."""
        column = self._column
        squares = column**2 - np.append(0.0, column[:0:-1]) ** 2
        diagonal = np.cumsum(squares) / (column[0] * float(self._autocorrelation[0]))
        return np.append(np.maximum(diagonal, 0.0) * blocks[0], 0.0)

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Nothing: the total is public."""
        return np.zeros(self.setting.bins)


@lru_cache(maxsize=32)
def build(setting: Setting, objective: Objective, extra: int = 1) -> PinnedCirculant:
    """Round the tuned kernel to integers; `extra` refines the grid."""
    tuning = TUNINGS[objective]
    places = next_fast_len(max(math.ceil(tuning.ratio * setting.points), 2), real=True)
    kernel = irfft(np.sqrt(circulant_spectrum(places, tuning.factors)), places)
    # Rounded are sums from the middle outwards: the errors then cancel at low frequencies,
    # where the spectrum is small.
    resolution = min(power_of_two(1024 * math.sqrt(places)) * extra, FINEST)
    half = places // 2
    sums = np.rint(np.cumsum(kernel[: half + 1]) * resolution).astype(np.int64)
    whole = np.zeros(places, np.int64)
    whole[: half + 1] = np.diff(sums, prepend=0)
    whole[places - half :] = whole[half:0:-1]
    return PinnedCirculant(setting, whole)


def circulant_mechanism(
    setting: Setting,
    budget: Budget,
    *,
    objective: Objective = "mean",
    change: Change | None = None,
) -> Mechanism:
    """Return the circulant strategy with the Gaussian noise that `budget` allows.

    Parameters
    ----------
    setting, budget : Setting, Budget
        What is public and what a release may cost; the number of records must be public,
        and the budget needs delta > 0 or rho.
    objective : {"mean", "max"}
        Which variance over the thresholds is made small.
    change : {"suffix", "interval", "joint"}, optional
        What one record may do; only "interval" is possible.
    """
    if not budget.allows_gaussian:
        raise ValueError(
            f"mechanism 'circulant' adds Gaussian noise, which is never purely private, but the "
            f"budget is {budget}. Give delta > 0, for example delta=1e-6, or use 'kary'."
        )
    if (change or setting.change) != "interval" or not setting.total_is_public:
        raise ValueError(
            "mechanism 'circulant' needs one curve and a public number of records "
            "(relation='replace-one'); use 'sqrt' or 'kary' here"
        )
    strategy = build(setting, objective)
    (square,) = strategy.shift("interval", "l2-squared")
    needed = budget.least_deviation(strategy.touched("interval")) * budget.ratio
    if math.sqrt(square) < needed:
        strategy = build(setting, objective, power_of_two(needed / math.sqrt(square)))
    return calibrate(strategy, budget, "gaussian", change="interval")


def _circulant(setting: Setting, budget: Budget, wanted: Wanted) -> Mechanism:
    return circulant_mechanism(setting, budget, objective=wanted.objective, change=wanted.change)


def _where_it_can(setting: Setting, budget: Budget, wanted: Wanted) -> Iterator[Mechanism]:
    fits = setting.total_is_public and wanted.change in (None, "interval")
    if budget.allows_gaussian and fits:
        yield _circulant(setting, budget, wanted)


register(
    Counting(
        "circulant",
        "Stationary noise on a circle, pinned where counts are known to be zero. For replaced "
        "records only; needs delta > 0 (or rho). Least mean variance from 2^10 bins on, least "
        "maximum from 2^13 on.",
        "proofs/curves.md#factorisations",
        _circulant,
        _where_it_can,
    )
)
