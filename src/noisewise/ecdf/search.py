"""Quantiles from few grouped counts: look coarsely, then look where they are.

Where records cannot be ranked (another machine counts them, or several parties do), each look is a
private curve on few thresholds of its own. The first ones, each of a small part of the budget, find
the cells that may hold a quantile, and the next look divides those. Once no cell holds more than
noise can tell apart, the last look takes all that is left. So far too wide bounds cost a look or
two, and all quantiles are looked for at once.

A look's thresholds depend on noisy counts of earlier looks and on nothing else, so what is sent to
a database or to other parties says no more than what is released. What all looks may cost is
charged before the first (:class:`noisewise.release.Envelope`).

Proof: docs/proofs/curves.md#looks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.release import Decimals

__all__ = ["MOST_LOOKS", "MOST_QUANTILES", "Found", "QuantileSearch", "cells_for", "part_of"]

#: Cells for each quantile, and all of them together: an engine compares with each threshold.
CELLS, MOST_CELLS = 64, 2048
#: More quantiles than this leave too few cells for each.
MOST_QUANTILES = 256
# What a look before the last one costs, as a part of epsilon or of rho, and how many of them are
# taken at most: coarse ones first, then closer ones.
COARSE, CLOSE = Fraction(1, 32), Fraction(1, 8)
MOST_COARSE, MOST_CLOSE = 6, 3
#: How often at most, the last time included.
MOST_LOOKS = MOST_COARSE + MOST_CLOSE + 1
# A cell is ruled out by so many deviations of the noise; and one that holds so many is worth
# dividing by such a look.
SURE, ENOUGH = 4.0, 5.0
# The last look is due when cells hold about so many deviations of its noise.
FINE = 0.5
#: So that no cost that is rounded up makes the sum larger than the whole.
WHOLE = 1 - Fraction(1, 1 << 46)

#: A private curve on these thresholds, for this part of the budget.
Look = Callable[[FloatArray, Budget], PrivateECDF]


class Found(NamedTuple):
    """What a search returns.

    Parameters
    ----------
    values : tuple of float
        One for each quantile.
    curve : PrivateECDF
        The last look.
    looks : int
    """

    values: tuple[float, ...]
    curve: PrivateECDF
    looks: int


class _Window(NamedTuple):
    """Codes in (low, high], where so many quantiles may be.

    About so many records are in it, so many of them in one cell; it is divided into cells with
    these ends next.
    """

    low: int
    high: int
    quantiles: int
    records: float
    heaviest: float
    ends: tuple[int, ...]

    @property
    def is_told(self) -> bool:
        """Whether no cell can be divided further."""
        return len(self.ends) == 1 or len(self.ends) >= self.high - self.low


@dataclass(frozen=True)
class QuantileSearch:
    """Looks for quantiles; all of it is public but for what a look sees.

    Parameters
    ----------
    domain : Decimals
    quantiles : tuple of Fraction
        Increasing, in [0, 1].
    """

    domain: Decimals
    quantiles: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if len(self.quantiles) > MOST_QUANTILES:
            raise ValueError(
                f"mechanism='search' looks for {MOST_QUANTILES} quantiles at most, got "
                f"{len(self.quantiles)}: use mechanism='curve', of which all are read"
            )

    def run(self, look: Look, budget: Budget) -> Found:
        """Look until the quantiles are found."""
        lowest, highest = self.domain.ends[0] - 1, self.domain.ends[1]
        windows = [self._window(lowest, highest, len(self.quantiles), math.inf, math.inf)]
        left, taken = Fraction(1), Counter[Fraction]()
        noise = 0.0  # of the look before, if it had cost all of the budget
        while True:
            ends = self._ends(windows)
            part = self._next(windows, noise, left, taken, budget)
            curve = look(self._points(ends), part_of(budget, part))
            taken[part] += 1
            if part == left:
                return Found(self._read(curve, [lowest, *ends]), curve, taken.total())
            left -= part
            noise = math.sqrt(curve.mechanism.mean_variance) * _power(budget, part)
            windows = self._narrowed(curve, [lowest, *ends])

    def _next(
        self,
        windows: list[_Window],
        noise: float,
        left: Fraction,
        taken: Counter[Fraction],
        budget: Budget,
    ) -> Fraction:
        """Return the part of the budget that the next look takes: all that is left for the last."""
        untold = [window for window in windows if not window.is_told]
        heaviest = max((window.heaviest for window in untold), default=0.0)
        is_early = not taken[CLOSE] and taken[COARSE] < MOST_COARSE
        if is_early and heaviest > ENOUGH * noise / _power(budget, COARSE):
            return COARSE
        last = noise / _power(budget, left)
        is_fine = all(w.records / len(w.ends) <= FINE * last for w in untold)
        helps = heaviest > ENOUGH * noise / _power(budget, CLOSE) or not (taken[CLOSE] or is_fine)
        return CLOSE if helps and taken[CLOSE] < MOST_CLOSE else left

    def _window(
        self, low: int, high: int, quantiles: int, records: float, heaviest: float
    ) -> _Window:
        ends = self.domain.cuts(low, high, _each(len(self.quantiles)) * quantiles)
        return _Window(low, high, quantiles, records, heaviest, tuple(ends))

    def _ends(self, windows: list[_Window]) -> list[int]:
        """Return where cells end: those of windows, and one for all that is between two."""
        ends = {end for window in windows for end in (window.low, *window.ends)}
        lower, upper = self.domain.lower, self.domain.upper
        inside = (end for end in sorted(ends) if lower < self.domain.number(end) < upper)
        return [*inside, self.domain.ends[1]]

    def _points(self, ends: list[int]) -> FloatArray:
        return np.array([*map(self.domain.number, ends[:-1]), self.domain.upper])

    def _narrowed(self, curve: PrivateECDF, edges: list[int]) -> list[_Window]:
        """Return where the quantiles may be, as far as one look can tell."""
        counts, noise = curve.noisy_counts, curve.mechanism
        variance, covariance = noise.variance, noise.total_covariance
        found: list[tuple[int, int, int]] = []
        for q in map(float, self.quantiles):
            missing = counts - q * counts[-1]
            spread = variance - 2 * q * covariance + q**2 * variance[-1]
            reach = SURE * np.sqrt(np.maximum(spread, 0.0))
            short, beyond = np.flatnonzero(missing < -reach), np.flatnonzero(missing > reach)
            last = int(beyond[0]) if beyond.size else counts.size - 1
            first = min(int(short[-1]) + 1, last) if short.size else 0
            quantiles = 1
            while found and first <= found[-1][1]:
                before = found.pop()
                first, last = min(first, before[0]), max(last, before[1])
                quantiles += before[2]
            found.append((first, last, quantiles))
        upto = np.concatenate([[0.0], counts])
        return [
            self._window(
                edges[first],
                edges[last + 1],
                quantiles,
                float(upto[last + 1] - upto[first]),
                float(np.diff(upto[first : last + 2]).max()),
            )
            for first, last, quantiles in found
        ]

    def _read(self, curve: PrivateECDF, edges: list[int]) -> tuple[float, ...]:
        """Return the number of fewest digits in the cell in which the curve reaches a quantile."""
        wanted = np.array([float(q) for q in self.quantiles])
        cells = list(pairwise(edges))
        places = np.searchsorted(curve.probabilities, wanted, side="left")
        return tuple(self.domain.number(self.domain.simplest(*cells[place])) for place in places)


def _each(many: int) -> int:
    """Return how many cells each of so many quantiles has."""
    return min(CELLS, MOST_CELLS // many)


def cells_for(many: int) -> int:
    """Return how many cells a look for so many quantiles has, about.

    Examples
    --------
    >>> cells_for(1), cells_for(9), cells_for(200)
    (64, 576, 2000)
    """
    return max(_each(many), 1) * many


def _power(budget: Budget, part: Fraction) -> float:
    """Return by how much noise is smaller for the whole budget than for a part of it."""
    return float(part) if budget.rho is None else math.sqrt(part)


def part_of(budget: Budget, part: Fraction) -> Budget:
    """Return a part of a budget, rounded down."""
    if budget.rho is not None:
        return Budget.concentrated(_below(Fraction(budget.rho) * part * WHOLE))
    return Budget(_below(Fraction(budget.epsilon) * part * WHOLE))


def _below(value: Fraction) -> float:
    number = float(value)
    return number if Fraction(number) <= value else math.nextafter(number, 0.0)
