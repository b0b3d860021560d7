"""Confidence bands from the known law of the noise.

The noise of a curve is public, so its quantiles can be simulated as often as one likes.
With m simulated curves and k = ceil((m + 1) level), the real noise, which is one more draw
from the same law, lies within the k-th smallest simulated value with probability at least
`level`, whatever m is: the ranks of exchangeable numbers are uniform. (Simulations use ordinary
floating-point noise. They never see the data and are not released.)

If the number of records is private, a value is a ratio F = p / n of two noisy counts. With
noise e of p and t of n, ``p' - F n' = e - F t = (1 - F) e + F (e - t)``. If |e| <= c s and
|e - t| <= c s', this is at most c ((1 - F) s + F s'), which is linear in F and gives limits for
it in closed form.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from noisewise.ecdf.mechanisms.protocol import FloatArray, Mechanism

__all__ = ["critical_values", "population_margin", "ratio_deviations"]

# Numbers simulated at once.
CHUNK = 1 << 23


def _rank(draws: int, level: float) -> int:
    rank = math.ceil((draws + 1) * level)
    if rank > draws:
        raise ValueError(
            f"level={level!r} needs more than {draws} simulated curves: "
            f"give draws >= {math.ceil(level / (1 - level))}"
        )
    return rank


def ratio_deviations(mechanism: Mechanism) -> FloatArray:
    """Return the deviation of each noisy count less the noisy total."""
    variance, covariance = mechanism.variance, mechanism.total_covariance
    spread = np.maximum(variance - 2 * covariance + variance[-1], 0.0)
    spread[-1] = 0.0
    return np.asarray(np.sqrt(spread))


def critical_values(
    mechanism: Mechanism,
    level: float,
    *,
    simultaneous: bool,
    draws: int = 500,
    seed: int = 0,
) -> FloatArray:
    """Return how many deviations each noisy count may be from the true one.

    If the total is private, they hold at once for each count and for its difference to the
    total, with the deviations of :func:`ratio_deviations`.

    Parameters
    ----------
    mechanism : Mechanism
        Whose noise.
    level : float
        Probability that one count (all counts, if `simultaneous`) is within its limit.
    simultaneous : bool
        One number for all counts.
    draws : int
        Number of simulated curves.
    seed : int
        Of the simulation.
    """
    deviations = np.sqrt(mechanism.variance)
    public = mechanism.setting.total_is_public
    if not simultaneous and public and mechanism.kind == "gaussian":
        return np.full(deviations.shape, norm.ppf((1 + level) / 2))
    first = np.where(deviations > 0, deviations, np.inf)
    second = np.full(deviations.shape, np.inf)
    if not public:
        difference = ratio_deviations(mechanism)
        second = np.where(difference > 0, difference, np.inf)
    generator = np.random.default_rng(seed)
    rank = _rank(draws, level)
    keep = draws - rank + 1
    step = max(1, CHUNK // mechanism.setting.bins)
    largest: list[FloatArray] = []
    tails: FloatArray = np.empty((0, deviations.size))
    for start in range(0, draws, step):
        noise = mechanism.simulate(generator, min(step, draws - start))
        size = np.abs(noise) / first
        if not public:
            size = np.maximum(size, np.abs(noise - noise[:, -1:]) / second)
        if simultaneous:
            largest.append(size.max(1))
            continue
        # Of each count only the values from the rank on upwards are needed.
        tails = np.concatenate([tails, size])
        if tails.shape[0] > keep:
            tails = np.partition(tails, tails.shape[0] - keep, axis=0)[-keep:]
    if simultaneous:
        return np.full(deviations.shape, np.sort(np.concatenate(largest))[rank - 1])
    return np.asarray(tails.min(0))


def population_margin(records: float, level: float) -> float:
    """Return how far an ECDF of independent records may be from their distribution.

    At all points at once, by Dvoretzky, Kiefer and Wolfowitz with Massart's constant.
    """
    return math.sqrt(math.log(2 / (1 - level)) / (2 * max(records, 1.0)))
