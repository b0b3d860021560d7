"""Additive noise: Gaussian and Laplace, continuous and discrete (paper 004, 3.1.2 d).

* :func:`gaussian`: deviation by the exact condition of Balle and Wang (2018), for
  every epsilon. Noise is drawn in floating point; the statement says so.
* :func:`laplace`: the value is rounded to a fine public grid and receives exact
  discrete Laplace noise in units of it, so that no bits of the result betray the
  value (Mironov 2012). The rounding is part of the sensitivity.
* :func:`discrete_laplace`, :func:`discrete_gaussian`: exact integer noise on counts
  (Canonne, Kamath, Steinke 2020).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from numpy.typing import NDArray

from noisewise.privacy import _validate, discrete
from noisewise.privacy.accounting import calibrate, epsilon_of
from noisewise.privacy.events import Gaussian, Laplace, ZeroConcentrated
from noisewise.privacy.mechanisms.release import Release, bound_and_relation, integers, reals
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.relation import Relation, Sensitivity
from noisewise.privacy.statement import Statement

__all__ = [
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "gaussian_deviation",
    "laplace",
]

FLOATING_POINT = (
    "noise is drawn in floating point: the guarantee is that of real numbers, and holds for "
    "readers who do not study the last bits of the result"
)
_PUBLIC_SENSITIVITY = "the sensitivity is an upper bound that does not depend on the data"

#: The grid of `laplace` is this many binary digits finer than its noise.
_GRID_BITS = 30


def gaussian_deviation(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Smallest deviation of Gaussian noise that gives (epsilon, delta), for any epsilon.

    Examples
    --------
    >>> round(gaussian_deviation(1.0, 1e-5), 3)
    3.731
    """
    epsilon = _validate.positive("epsilon", epsilon)
    delta = _validate.fraction("delta", delta)
    sensitivity = _validate.positive("sensitivity", sensitivity)
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8) * sensitivity


def gaussian(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    delta: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Release a value with Gaussian noise.

    Parameters
    ----------
    value : number, array or tensor
        The exact result.
    sensitivity : float or Sensitivity
        Largest l2 distance between the results on neighbouring datasets.
    epsilon, delta : float
        What the release may cost.
    relation : {"add-remove", "replace-one"}, optional
        Under which the sensitivity holds; default: that of `sensitivity`, else add-remove.
    unit : str
        What one record stands for.
    rng : Randomness or int, optional
        Default: keyed from the operating system. An int is a seed, and the
        statement will say so.

    Returns
    -------
    Release
        The noisy value, of the kind of `value`, and its statement.

    Examples
    --------
    >>> value, statement = gaussian(41.5, sensitivity=0.1, epsilon=1.0, delta=1e-6)
    >>> statement.epsilon <= 1.0
    True
    """
    bound, relation = bound_and_relation(sensitivity, relation, "l2")
    deviation = gaussian_deviation(epsilon, delta, bound)
    exact, back = reals(value)
    source = resolve(rng)
    noisy = exact + source.normal_numpy(exact.shape, std=deviation)
    statement = Statement.derive(
        Gaussian(deviation / bound),
        delta=delta,
        mechanism="Gaussian mechanism, analytic calibration",
        relation=relation,
        unit=unit,
        randomness=source.description,
        assumptions=(_PUBLIC_SENSITIVITY, FLOATING_POINT),
    )
    return Release(back(noisy), statement)


def laplace(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Release a value with Laplace noise, exactly, on a fine grid.

    With grid g the value a becomes round(a / g), and sensitivity D in l1 over d
    coordinates becomes at most D / g + d in whole units, since rounding adds at
    most one unit to each coordinate's difference. The noise is discrete Laplace
    of that sensitivity over epsilon. Parameters as for :func:`gaussian`, with the
    sensitivity in the l1 norm.
    """
    bound, relation = bound_and_relation(sensitivity, relation, "l1")
    epsilon = _validate.positive("epsilon", epsilon)
    exact, back = reals(value)
    source = resolve(rng)
    grid = 2.0 ** (math.ceil(math.log2(bound / epsilon)) - _GRID_BITS)
    units = math.ceil(bound / grid * (1 + 1e-12)) + exact.size
    scale = discrete.exact_scale(units / epsilon * (1 + 1e-12))
    noise = discrete.discrete_laplace(exact.shape, scale, source)
    noisy = _add_on_grid(exact.ravel(), noise.ravel(), grid)
    statement = Statement.derive(
        Laplace(float(scale) / units * (1 - 1e-15)),
        delta=0.0,
        mechanism=f"Laplace mechanism, exact discrete noise on a grid of {grid:.3g}",
        relation=relation,
        unit=unit,
        randomness=source.description,
        assumptions=(_PUBLIC_SENSITIVITY,),
    )
    return Release(back(noisy.reshape(exact.shape)), statement)


def discrete_laplace(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Release counts with exact integer noise; pure epsilon.

    `sensitivity` is in the l1 norm. Other parameters as for :func:`gaussian`.

    Examples
    --------
    >>> noisy, statement = discrete_laplace(120, sensitivity=1, epsilon=0.5)
    >>> isinstance(noisy, int), statement.delta
    (True, 0.0)
    """
    bound, relation = bound_and_relation(sensitivity, relation, "l1")
    epsilon = _validate.positive("epsilon", epsilon)
    exact, back = integers(value)
    source = resolve(rng)
    scale = discrete.exact_scale(bound / epsilon * (1 + 1e-15))
    noisy = exact + discrete.discrete_laplace(exact.shape, scale, source)
    statement = Statement.derive(
        Laplace(float(scale) / bound * (1 - 1e-15)),
        delta=0.0,
        mechanism="discrete Laplace mechanism, exact sampling",
        relation=relation,
        unit=unit,
        randomness=source.description,
        assumptions=(_PUBLIC_SENSITIVITY,),
    )
    return Release(back(noisy), statement)


def discrete_gaussian(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float | None = None,
    delta: float,
    rho: float | None = None,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Release counts with exact discrete Gaussian noise.

    Give either `epsilon` or the zCDP parameter `rho`. Noise of scale^2 = D^2 / (2 rho)
    is rho-zCDP for l2 sensitivity D (Canonne, Kamath, Steinke 2020, Theorem 14),
    also for vectors. Other parameters as for :func:`gaussian`.
    """
    bound, relation = bound_and_relation(sensitivity, relation, "l2")
    delta = _validate.fraction("delta", delta)
    if (epsilon is None) == (rho is None):
        raise ValueError("give exactly one of epsilon and rho")
    exact, back = integers(value)
    source = resolve(rng)
    concentrated = (
        _validate.positive("rho", rho)
        if epsilon is None
        else _rho(_validate.positive("epsilon", epsilon), delta)
    )
    scale = discrete.exact_scale(Fraction(bound) ** 2 / (2 * Fraction(concentrated)), "sigma2")
    scale = discrete.exact_scale(float(scale) * (1 + 1e-15))  # few digits: fast, never smaller
    noisy = exact + discrete.discrete_gaussian(exact.shape, scale, source)
    statement = Statement.derive(
        ZeroConcentrated(bound**2 / (2 * float(scale)) * (1 + 1e-15)),
        delta=delta,
        mechanism="discrete Gaussian mechanism, exact sampling",
        relation=relation,
        accountant="rdp",
        unit=unit,
        randomness=source.description,
        assumptions=(_PUBLIC_SENSITIVITY,),
    )
    return Release(back(noisy), statement)


def _add_on_grid(
    exact: NDArray[np.float64], noise: NDArray[np.int64], grid: float
) -> NDArray[np.float64]:
    """Round to multiples of a power of two, add the noise there, and come back."""
    if np.abs(exact).max(initial=0.0) < 2.0**61 * grid and np.abs(noise).max(initial=0) < 2**61:
        cells = np.rint(exact / grid).astype(np.int64)  # dividing by a power of two is exact
        return (cells + noise).astype(np.float64) * grid
    step = Fraction(grid)
    cells = np.array([round(Fraction(float(value)) / step) for value in exact], dtype=object)
    return np.array([float(cell * step) for cell in cells + noise.astype(object)])


def _rho(epsilon: float, delta: float) -> float:
    """Largest rho, within the calibration's tolerance, that costs at most epsilon."""

    def cost(inverse: float) -> float:
        return epsilon_of(ZeroConcentrated(1.0 / inverse), delta=delta, accountant="rdp")

    return 1.0 / calibrate(cost, epsilon, "noise", low=1e-6, high=1e30)
