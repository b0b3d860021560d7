"""Confidence bands from the known law of the noise.

The noise of a curve is public, so its quantiles can be simulated as often as one likes.
With m simulated curves and k = ceil((m + 1) level), the real noise, which is one more draw
from the same law, lies within the k-th smallest simulated value with probability at least
`level`, whatever m is: the ranks of exchangeable numbers are uniform. (Simulations use ordinary
floating-point noise. They never see the data and are not released.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from noisewise.ecdf.mechanisms.protocol import FloatArray, Mechanism

__all__ = ["half_widths", "population_margin"]

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


def half_widths(
    mechanism: Mechanism,
    level: float,
    *,
    simultaneous: bool,
    draws: int = 1000,
    seed: int = 0,
) -> FloatArray:
    """Return how far each noisy prefix count may be from the true one.

    Parameters
    ----------
    mechanism : Mechanism
        Whose noise.
    level : float
        Probability that one count (all counts, if `simultaneous`) is within its width.
    simultaneous : bool
        Widths are proportional to the deviations and hold for all counts at once.
    draws : int
        Number of simulated curves.
    seed : int
        Of the simulation.
    """
    deviations = np.sqrt(mechanism.variance)
    noisy = deviations > 0
    if not noisy.any():
        return deviations
    if not simultaneous and mechanism.kind == "gaussian":
        return np.asarray(norm.ppf((1 + level) / 2) * deviations)
    generator = np.random.default_rng(seed)
    rank = _rank(draws, level)
    step = max(1, CHUNK // mechanism.setting.bins)
    largest: list[FloatArray] = []
    tails: FloatArray = np.empty((0, int(noisy.sum())))
    for start in range(0, draws, step):
        noise = mechanism.simulate(generator, min(step, draws - start))[:, noisy]
        size = np.abs(noise) / deviations[noisy]
        if simultaneous:
            largest.append(size.max(1))
            continue
        # Of each count only the values from the rank on upwards are needed.
        tails = np.concatenate([tails, size])
        keep = draws - rank + 1
        if tails.shape[0] > keep:
            tails = np.partition(tails, tails.shape[0] - keep, axis=0)[-keep:]
    if simultaneous:
        factor = float(np.sort(np.concatenate(largest))[rank - 1])
        return np.asarray(factor * deviations)
    widths = np.zeros_like(deviations)
    widths[noisy] = tails.min(0) * deviations[noisy]
    return widths


def population_margin(records: float, level: float) -> float:
    """Return how far an ECDF of independent records may be from their distribution.

    At all points at once, by Dvoretzky, Kiefer and Wolfowitz with Massart's constant.
    """
    return math.sqrt(math.log(2 / (1 - level)) / (2 * max(records, 1.0)))
