"""Quantiles from few grouped counts: look coarsely, then look where they are.

Where records cannot be ranked (another machine counts them, or several parties do), each look is a
private curve on few thresholds of its own. The first ones, each of a small part of the budget, find
the cells that may hold a quantile, and the next look divides those; what a look has ruled out stays
so. How much of the budget an early look takes follows from how many records were seen: enough to
tell the outer quantiles from the ends. Once no cell holds more than noise can tell apart, the last
look takes all that is left. So far too wide bounds cost a look or two, and all quantiles are looked
for at once.

A look's thresholds depend on noisy counts of earlier looks and on nothing else, so what is sent to
a database or to other parties says no more than what is released. What all looks may cost is
charged before the first (:class:`noisewise.release.Envelope`).

Proof: docs/proofs/curves.md#looks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
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
#: Cells of each window of an early look at least: few, whose noise is small.
FEW = 16
#: More quantiles than this leave too few cells for each.
MOST_QUANTILES = 256
# What a look before the last one costs, as a part of epsilon or of rho, and how many of them are
# taken at most: early ones first, of few cells, then closer ones. So much is kept for the last.
EARLY, CLOSE = tuple(Fraction(1, power) for power in (32, 16, 8, 4)), Fraction(1, 8)
MOST_EARLY, MOST_CLOSE = 6, 3
KEPT = Fraction(1, 3)
#: How often at most, the last time included.
MOST_LOOKS = MOST_EARLY + MOST_CLOSE + 1
# A cell is ruled out by so many deviations of the noise; a look is nearly enough if outer quantiles
# are so many of them from the ends; and a cell that holds so many is worth
# dividing by such a look.
SURE, NEARLY, ENOUGH = 4.0, 1.5, 5.0
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


class _Range(NamedTuple):
    """Codes in (low, high]."""

    low: int
    high: int


class _Window(NamedTuple):
    """Codes in (low, high], where so many quantiles may be.

    About so many records are in it, so many of them in one cell; it can be divided into cells with
    these ends.
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
        ranges = [_Range(lowest, highest)] * len(self.quantiles)
        windows = [self._window(lowest, highest, len(self.quantiles), math.inf, math.inf)]
        left, early, close = Fraction(1), 0, 0
        part, is_close = EARLY[0], False
        while True:
            edges = [lowest, *self._ends(windows, is_close)]
            curve = look(self._points(edges[1:]), part_of(budget, part))
            early, close = early + (not is_close), close + is_close
            if part == left:
                return Found(self._read(curve, edges), curve, early + close)
            left -= part
            # Of this look, if it had cost all of the budget.
            noise = math.sqrt(curve.mechanism.mean_variance) * _power(budget, part)
            ranges = self._narrowed(curve, edges, ranges)
            windows = self._windows(curve, edges, ranges)
            total = float(curve.noisy_counts[-1])
            sooner = self._early(windows, noise, total, left, budget)
            if sooner is not None and not close and early < MOST_EARLY:
                part = sooner
            else:
                part, is_close = self._close(windows, noise, left, close, budget), True

    def _early(
        self, windows: list[_Window], noise: float, total: float, left: Fraction, budget: Budget
    ) -> Fraction | None:
        """Return the part of the budget that an early look takes, if one is of use.

        The least that tells the outer quantiles from the ends; or else the largest if it nearly
        does, and the least if there is no hope of it.
        """
        outer = total * float(min(self.quantiles[0], 1 - self.quantiles[-1]))
        allowed = [part for part in EARLY if left - part >= KEPT]
        if not allowed:
            return None
        deviation = {part: noise / _power(budget, part) for part in allowed}
        tells = [part for part in allowed if SURE * deviation[part] < outer]
        nearly = NEARLY * deviation[allowed[-1]] < outer
        part = tells[0] if tells else allowed[-1] if nearly else allowed[0]
        return part if _heaviest(windows) > ENOUGH * deviation[part] else None

    def _close(
        self, windows: list[_Window], noise: float, left: Fraction, close: int, budget: Budget
    ) -> Fraction:
        """Return the part of the budget that a close look takes: all of it for the last."""
        last = noise / _power(budget, left)
        is_fine = all(w.records / len(w.ends) <= FINE * last for w in windows if not w.is_told)
        helps = _heaviest(windows) > ENOUGH * noise / _power(budget, CLOSE)
        is_next = helps or not (close or is_fine)
        return CLOSE if is_next and close < MOST_CLOSE and left - CLOSE >= KEPT else left

    def _window(
        self, low: int, high: int, quantiles: int, records: float, heaviest: float
    ) -> _Window:
        ends = self.domain.cuts(low, high, _each(len(self.quantiles)) * quantiles)
        return _Window(low, high, quantiles, records, heaviest, tuple(ends))

    def _ends(self, windows: list[_Window], is_close: bool) -> list[int]:
        """Return where cells end: those of windows, and one for all that is between two."""
        few = max(CELLS // len(windows), min(FEW, MOST_CELLS // len(windows)))
        ends = {window.low for window in windows}
        for low, high, *_, cells in windows:
            ends.update(cells if is_close else self.domain.cuts(low, high, few, of_range=False))
        lower, upper = self.domain.lower, self.domain.upper
        inside = (end for end in sorted(ends) if lower < self.domain.number(end) < upper)
        return [*inside, self.domain.ends[1]]

    def _points(self, ends: list[int]) -> FloatArray:
        return np.array([*map(self.domain.number, ends[:-1]), self.domain.upper])

    def _narrowed(self, curve: PrivateECDF, edges: list[int], ranges: list[_Range]) -> list[_Range]:
        """Return where each quantile may be, as far as this look and earlier ones can tell."""
        counts, noise = curve.noisy_counts, curve.mechanism
        variance, covariance = noise.variance, noise.total_covariance
        found = []
        for q, before in zip(map(float, self.quantiles), ranges, strict=True):
            missing = counts - q * counts[-1]
            spread = variance - 2 * q * covariance + q**2 * variance[-1]
            reach = SURE * np.sqrt(np.maximum(spread, 0.0))
            short, beyond = np.flatnonzero(missing < -reach), np.flatnonzero(missing > reach)
            low = max(edges[int(short[-1]) + 1] if short.size else edges[0], before.low)
            high = min(edges[int(beyond[0]) + 1] if beyond.size else edges[-1], before.high)
            found.append(_Range(low, high) if low < high else before)
        return found

    def _windows(self, curve: PrivateECDF, edges: list[int], ranges: list[_Range]) -> list[_Window]:
        """Return where quantiles may be, those together whose ranges overlap."""
        joined: list[tuple[int, int, int]] = []
        for low, high in ranges:
            quantiles = 1
            while joined and low < joined[-1][1]:
                first, last, number = joined.pop()
                low, high, quantiles = min(low, first), max(high, last), quantiles + number
            joined.append((low, high, quantiles))
        upto = np.concatenate([[0.0], curve.noisy_counts])
        found = []
        for low, high, quantiles in joined:
            held = np.diff(upto[bisect_right(edges, low) - 1 : bisect_left(edges, high) + 1])
            found.append(self._window(low, high, quantiles, float(held.sum()), float(held.max())))
        return found

    def _read(self, curve: PrivateECDF, edges: list[int]) -> tuple[float, ...]:
        """Return the number of fewest digits in the cell in which the curve reaches a quantile."""
        wanted = np.array([float(q) for q in self.quantiles])
        cells = list(pairwise(edges))
        places = np.searchsorted(curve.probabilities, wanted, side="left")
        return tuple(self.domain.number(self.domain.simplest(*cells[place])) for place in places)


def _heaviest(windows: list[_Window]) -> float:
    """Return how many records a cell holds that can be divided."""
    return max((window.heaviest for window in windows if not window.is_told), default=0.0)


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
