"""Additive noise: Gaussian and Laplace, continuous and discrete.

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
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from numpy.typing import NDArray

from noisewise import checks
from noisewise.mechanisms.values import integers, reals, sensitivity_in
from noisewise.privacy import (
    Laplace,
    Pure,
    Randomness,
    Relation,
    Sensitivity,
    ZeroConcentrated,
    calibrate,
    epsilon_of,
    tightest,
)
from noisewise.privacy.randomness import exact_scale
from noisewise.release import (
    GaussianNoise,
    GridNoise,
    IntegerNoise,
    LedgerOrPath,
    Noise,
    Query,
    Release,
    ThisProcess,
    one_vocabulary,
    open_account,
    release,
)

__all__ = [
    "PUBLIC_SENSITIVITY",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "gaussian_deviation",
    "laplace",
    "release_value",
]

PUBLIC_SENSITIVITY = "the sensitivity is an upper bound that does not depend on the data"

#: The grid of `laplace` is this many binary digits finer than its noise.
_GRID_BITS = 30


def gaussian_deviation(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Smallest deviation of Gaussian noise that gives (epsilon, delta), for any epsilon.

    Examples
    --------
    >>> round(gaussian_deviation(1.0, 1e-5), 3)
    3.731
    """
    epsilon = checks.budget(epsilon)
    delta = checks.fraction("delta", delta)
    sensitivity = checks.positive("sensitivity", sensitivity)
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8) * sensitivity


@one_vocabulary
def gaussian(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    delta: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
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
    seed : int or Randomness, optional
        Default: noise is keyed from the operating system. With a seed the
        statement will say so.
    ledger : Ledger or path, optional
        Charged before the noise is drawn.

    Returns
    -------
    Release
        The noisy value, of the kind of `value`, and its statement. Whole numbers become floats.

    Examples
    --------
    >>> value, statement = gaussian(41.5, sensitivity=0.1, epsilon=1.0, delta=1e-6)
    >>> statement.epsilon <= 1.0
    True
    """
    bound = sensitivity_in("l2", sensitivity, relation)
    deviation = gaussian_deviation(epsilon, delta, bound.value)
    exact, back = reals(value)
    noise = GaussianNoise(deviation, bound, "Gaussian mechanism, analytic calibration")
    return release_value(
        exact, back, bound, noise, delta=delta, unit=unit, seed=seed, ledger=ledger
    )


@one_vocabulary
def laplace(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
) -> Release:
    """Release a value with Laplace noise, exactly, on a fine grid.

    With grid g the value a becomes round(a / g), and sensitivity D in l1 over d
    coordinates becomes at most D / g + d in whole units, since rounding adds at
    most one unit to each coordinate's difference. The noise is discrete Laplace
    of that sensitivity over epsilon. Parameters as for :func:`gaussian`, with the
    sensitivity in the l1 norm.
    """
    bound = sensitivity_in("l1", sensitivity, relation)
    epsilon = checks.budget(epsilon)
    exact, back = reals(value)
    grid = 2.0 ** (math.ceil(math.log2(bound.value / epsilon)) - _GRID_BITS)
    units = math.ceil(bound.value / grid * (1 + 1e-12)) + exact.size
    scale = exact_scale(units / epsilon * (1 + 1e-12))
    # On a grid it costs as much as continuous noise of a multiplier so much smaller
    # (docs/proofs/events.md#laplace).
    coarser = 1 / (4 * units * float(scale))
    inner = IntegerNoise(
        "laplace",
        scale,
        Sensitivity(units, "l1", bound.relation),
        Laplace(float(scale) / units * (1 - 1e-15 - coarser)),
        f"Laplace mechanism, exact discrete noise on a grid of {grid:.3g}",
    )
    noise = GridNoise(grid, inner, bound)
    return release_value(exact, back, bound, noise, delta=0.0, unit=unit, seed=seed, ledger=ledger)


@one_vocabulary
def discrete_laplace(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
) -> Release:
    """Release counts with exact integer noise; pure epsilon.

    `sensitivity` is in the l1 norm. Other parameters as for :func:`gaussian`.

    Examples
    --------
    >>> noisy, statement = discrete_laplace(120, sensitivity=1, epsilon=0.5)
    >>> isinstance(noisy, int), statement.delta
    (True, 0.0)
    """
    bound = sensitivity_in("l1", sensitivity, relation)
    epsilon = checks.budget(epsilon)
    exact, back = integers(value)
    scale = exact_scale(bound.value / epsilon * (1 + 1e-15))
    # Not Laplace: integer noise on a count is randomised response, which costs more than
    # continuous noise of its scale once releases are composed (docs/proofs/events.md#laplace).
    event = Pure(bound.value / float(scale) * (1 + 1e-15))
    what = "Laplace mechanism on integers, exact sampling"
    noise = IntegerNoise("laplace", scale, bound, event, what)
    return release_value(exact, back, bound, noise, delta=0.0, unit=unit, seed=seed, ledger=ledger)


@one_vocabulary
def discrete_gaussian(
    value: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float | None = None,
    delta: float,
    rho: float | None = None,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
) -> Release:
    """Release counts with exact discrete Gaussian noise.

    Give either `epsilon` or the zCDP parameter `rho`. Noise of scale^2 = D^2 / (2 rho)
    is rho-zCDP for l2 sensitivity D (Canonne, Kamath, Steinke 2020, Theorem 14),
    also for vectors. Other parameters as for :func:`gaussian`.
    """
    bound = sensitivity_in("l2", sensitivity, relation)
    delta = checks.fraction("delta", delta)
    if (epsilon is None) == (rho is None):
        raise ValueError("give exactly one of epsilon and rho")
    exact, back = integers(value)
    concentrated = (
        checks.positive("rho", rho) if epsilon is None else _rho(checks.budget(epsilon), delta)
    )
    scale = exact_scale(Fraction(bound.value) ** 2 / (2 * Fraction(concentrated)), "sigma2")
    scale = exact_scale(float(scale) * (1 + 1e-15))  # few digits: fast, never smaller
    event = ZeroConcentrated(bound.value**2 / (2 * float(scale)) * (1 + 1e-15))
    what = "discrete Gaussian mechanism, exact sampling"
    noise = IntegerNoise("gaussian", scale, bound, event, what)
    return release_value(
        exact, back, bound, noise, delta=delta, unit=unit, seed=seed, ledger=ledger
    )


def release_value(
    exact: NDArray[Any],
    back: Callable[[NDArray[Any]], Any],
    bound: Sensitivity,
    noise: Noise,
    *,
    delta: float,
    unit: str,
    seed: Randomness | int | None,
    ledger: LedgerOrPath,
    what: str = "",
    assumptions: tuple[str, ...] = (PUBLIC_SENSITIVITY,),
) -> Release:
    """Release a value that was computed already, as the kind that `back` makes of it."""
    query = Query.of(lambda records: records, bound, what, unit=unit, assumptions=assumptions)
    accountant = tightest((noise.event,))
    with open_account(
        ledger, relation=bound.relation, delta=delta, unit=unit, accountant=accountant
    ) as account:
        found = release(query, noise, ThisProcess(exact), account, delta=delta, rng=seed)
    return found.seen_as(back)


def _rho(epsilon: float, delta: float) -> float:
    """Largest rho, within the calibration's tolerance, that costs at most epsilon."""

    def cost(inverse: float) -> float:
        return epsilon_of(ZeroConcentrated(1.0 / inverse), delta=delta, accountant="rdp")

    return 1.0 / calibrate(cost, epsilon, "noise", low=1e-6, high=1e30)
