"""Numbers of fifteen decimal digits as a public domain, and a public measure on it.

A record is rounded to fifteen digits and becomes an integer, its code, in the order of the numbers:
nine times 10^14 codes for each power of ten, zero in the middle, negative numbers below it.

Where nothing is known but the bounds, which numbers are plausible? The measure says: half of it is
spread evenly over multiples of powers of ten, from as coarse as the bounds to as fine as the codes;
half is spread over powers of ten, the more the nearer they are to one, within each about evenly in
logarithms (from 1 to 2 to 5 to 10), and there over numbers of few and of many digits; zero has a
part of its own. So round numbers, where records like to be, are likelier than others, and bounds
that are a million times too wide cost the logarithm of a small number, not of a million. Nowhere
does the measure change so fast that a choice is drawn far along. It depends on the bounds alone and
on no record.

Records become codes by comparisons, products and roundings of IEEE arithmetic alone, whose results
depend on the record and not on its place in an array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coarse", "Decimals", "code_of", "number_of"]

IntArray = NDArray[np.int64]

DIGITS = 15
_LEAST = 10 ** (DIGITS - 1)
_CODES = 9 * _LEAST  # of one power of ten
_FIRST, _LAST = -290, 290  # powers of ten
_POWERS = np.array([float(f"1e{power}") for power in range(_FIRST, _LAST + 1)])
# Digits of round numbers, and how many powers of ten finer than the bounds.
_ROUND = (1, 2, 3, 4, 6, DIGITS)
# How much of the measure numbers of so many digits have: ten numbers of one digit, if they had as
# much as all others, would draw quantiles to themselves that are many records away.
_PARTS = (1, 8, 24, 24, 24, 24)
# A power of ten in three pieces: codes before each, its width in units of the first digit, and the
# part of the measure, which is about log 2, log 5/2 and log 2.
_PIECES = ((0, 1, 3), (_LEAST, 3, 4), (4 * _LEAST, 5, 3))
_STARTS = np.array([start for start, _, _ in _PIECES])
_FINER = (0, 1, 2, 3, 5, DIGITS)
#: Codes below that of 10^-270 are not told from zero where numbers are thresholds.
_TINY = (-270 - _FIRST) * _CODES + 1
#: Steps between round numbers, in units of the last digit.
_ROUNDER: list[int] = [
    *(10**power // part for power in range(DIGITS - 1, 0, -1) for part in (1, 2, 5)),
    1,
]
#: All of the measure, up to rounding.
_TOTAL = 1 << 90


def code_of(numbers: Any) -> IntArray:
    """Return the code of each number; those below 10^-290 are zero.

    Examples
    --------
    >>> code_of([0.0, -1.0, 1.0]).tolist()[0]
    0
    >>> number_of(int(code_of([0.1 + 0.2])[0]))
    0.3
    """
    values = np.asarray(numbers, np.float64)
    size = np.minimum(np.abs(values), _POWERS[-1])
    power = np.searchsorted(_POWERS, size, side="right") - 1
    small = power < 0
    power = np.maximum(power, 0)
    shift = DIGITS - 1 - (power + _FIRST)
    # In two factors, neither of which leaves the range of doubles.
    first = np.clip(shift, -200, 200)
    digits = np.rint(size * _power(first) * _power(shift - first)).astype(np.int64)
    digits = np.clip(digits, _LEAST, 10 * _LEAST)
    code = power * np.int64(_CODES) + (digits - _LEAST) + 1
    return np.where(small, 0, np.sign(values).astype(np.int64) * code)


def _power(exponents: IntArray) -> NDArray[np.float64]:
    return np.asarray(_POWERS[exponents - _FIRST])


def number_of(code: int) -> float:
    """Return the number with this code."""
    if code == 0:
        return 0.0
    power, place = divmod(abs(code) - 1, _CODES)
    digits = place + _LEAST
    value = float(f"{digits}e{power + _FIRST - DIGITS + 1}")
    return value if code > 0 else -value


@dataclass(frozen=True)
class Decimals:
    """The domain between two bounds, with its measure in whole numbers.

    Parameters
    ----------
    lower, upper : float
        Public.

    Examples
    --------
    >>> domain = Decimals(0.0, 120.0)
    >>> low, high = domain.ends
    >>> number_of(low), number_of(high)
    (0.0, 120.0)
    >>> domain.upto([high])[0] == domain.total
    True
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        low, high = self.ends
        if high - low < 1000:
            raise ValueError(
                f"bounds ({self.lower!r}, {self.upper!r}) are too close together for their size: "
                "numbers between them differ in the last of fifteen digits only. Move the zero of "
                "the scale nearer to the data."
            )

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Codes of the bounds."""
        low, high = code_of([self.lower, self.upper]).tolist()
        return low, high

    def place(self, records: NDArray[np.float64]) -> IntArray:
        """Return the codes of records, those outside moved to the nearest bound."""
        return np.clip(code_of(records), *self.ends)

    @cached_property
    def _even(self) -> list[tuple[int, int]]:
        """Multiples of powers of ten: (weight of each, power)."""
        low, high = self.ends
        top = (max(abs(low), abs(high)) - 1) // _CODES + _FIRST
        width = math.floor(math.log10(self.upper - self.lower))
        least = max(top, width) - DIGITS + 1
        powers = sorted({max(width - finer, least) for finer in _FINER})
        ends = np.array([low - 1, high], np.int64)
        found = []
        for power in powers:
            before, upto = _multiples(ends, power).tolist()
            if upto > before:
                found.append((max(_TOTAL // (2 * len(powers) * (upto - before)), 1), power))
        return found

    @cached_property
    def _round(self) -> tuple[list[int], list[list[int]], list[int]]:
        """Numbers of few digits, by pieces: measure below each, weights, and steps of codes."""
        low, high = self.ends
        top = (max(abs(low), abs(high)) - 1) // _CODES + 1
        likely = [_TOTAL // (4 + abs(power + _FIRST)) ** 2 for power in range(top)]
        whole = 8 * sum(_PARTS) * sum(part for _, _, part in _PIECES) * sum(likely)
        below, weights = [0], []
        for power in likely:
            for _, width, part in _PIECES:
                numbers = [width * 10 ** (digits - 1) for digits in _ROUND]
                shares = [3 * _TOTAL * digits * part * power for digits in _PARTS]
                each = [max(s // (whole * n), 1) for s, n in zip(shares, numbers, strict=True)]
                weights.append(each)
                below.append(below[-1] + sum(w * n for w, n in zip(each, numbers, strict=True)))
        return below, weights, [10 ** (DIGITS - digits) for digits in _ROUND]

    def _sizes(self, sizes: IntArray) -> list[int]:
        """Measure of round numbers above zero, up to these sizes."""
        below, weights, steps = self._round
        power, place = np.divmod(np.maximum(sizes - 1, 0), _CODES)
        third = np.searchsorted(_STARTS, place, side="right") - 1
        place, piece = place - _STARTS[third], len(_PIECES) * power + third
        counts = [(place // step + 1).tolist() for step in steps]
        return [
            below[p] + sum(w * c for w, c in zip(weights[p], each, strict=True)) if size > 0 else 0
            for size, p, each in zip(
                sizes.tolist(), piece.tolist(), zip(*counts, strict=True), strict=True
            )
        ]

    def upto(self, codes: Any) -> list[int]:
        """Return the measure of everything from the lower bound up to each code, exactly."""
        wanted = np.append(np.asarray(codes, np.int64), self.ends[0] - 1)
        negative = wanted < 0
        of_size = self._sizes(np.where(negative, -wanted - 1, wanted))
        zero = _TOTAL // 8
        # Both sides of zero alike: up to -5 is all that is at least 5.
        total = [
            -size if minus else zero + size
            for minus, size in zip(negative.tolist(), of_size, strict=True)
        ]
        for weight, power in self._even:
            counts = _multiples(wanted, power).tolist()
            total = [whole + weight * count for whole, count in zip(total, counts, strict=True)]
        return [whole - total[-1] for whole in total[:-1]]

    def _at(self, code: int) -> int:
        """Return what :meth:`upto` does for one code, without arrays, up to a constant."""
        below, weights, steps = self._round
        size = -code - 1 if code < 0 else code
        total = 0
        if size > 0:
            power, place = divmod(size - 1, _CODES)
            third = sum(place >= start for start, _, _ in _PIECES) - 1
            piece, place = len(_PIECES) * power + third, place - _PIECES[third][0]
            total = below[piece]
            for weight, step in zip(weights[piece], steps, strict=True):
                total += weight * (place // step + 1)
        total = -total if code < 0 else total + _TOTAL // 8
        power, place = divmod(max(abs(code) - 1, 0), _CODES)
        digits = place + _LEAST if code else 0
        for weight, unit in self._even:
            shift = unit - (power + _FIRST - DIGITS + 1)
            whole, rest = divmod(digits, 10 ** min(max(shift, 0), 17))
            whole *= 10 ** min(max(-shift, 0), 17)
            total += weight * (-whole - (rest > 0) if code < 0 else whole)
        return total

    @cached_property
    def total(self) -> int:
        """Measure of the whole domain."""
        return self.upto([self.ends[1]])[0]

    def find(self, mass: int, low: int, high: int) -> int:
        """Return the code in (low, high] in which so much measure is reached."""
        mass += self._at(self.ends[0] - 1)
        while high - low > 1:
            middle = (low + high) // 2
            if self._at(middle) > mass:
                high = middle
            else:
                low = middle
        return high

    def number(self, code: int) -> float:
        """Return the number with this code."""
        return min(max(number_of(code), self.lower), self.upper)

    def cuts(self, low: int, high: int, parts: int, of_range: bool = True) -> list[int]:
        """Divide the codes in (low, high] into at most so many parts.

        Cuts divide the measure evenly, and numbers that have much of it, as round ones do, get a
        part of their own. With `of_range` a third of the cuts divides the range instead.

        Returns
        -------
        list of int
            Where parts end, increasing; the last is `high`.
        """
        third = max(parts // 3, 1) if of_range else max(parts // 2, 1)
        if high - low <= parts:
            cuts = np.arange(low + 1, high, dtype=np.int64)
        else:
            evenly = np.linspace(number_of(low), number_of(high), third + 1)[1:-1]
            codes = self._candidates(low, high, 4 * parts)
            upto = self.upto(np.concatenate([[low], codes, [high]]))
            measure = np.array([float(whole - upto[0]) for whole in upto[1:]])
            ends = measure[-1] * np.arange(1, third) / third
            places = np.unique(np.searchsorted(measure[:-1], ends, side="left"))
            round_ = codes[places[places < codes.size]]
            before, own = self.upto(round_ - 1), self.upto(round_)
            much = [
                float(after - first) * 2 * third > measure[-1]
                for first, after in zip(before, own, strict=True)
            ]
            even = code_of(evenly if of_range else [])
            cuts = np.concatenate([even, round_, (round_ - 1)[np.array(much, bool)]])
        # Beside zero numbers are told from it from 10^-270 on.
        near = np.abs(cuts) < _TINY
        cuts = np.where(near & (cuts != 0), np.where(cuts < 0, -_TINY, _TINY), cuts)
        return [*np.unique(cuts[(cuts > low) & (cuts < high)]).tolist(), high]

    def _candidates(self, low: int, high: int, many: int) -> IntArray:
        """Return codes between two: evenly spaced ones, numbers that are, and powers of ten."""
        steps = [low + (high - low) * step // many for step in range(1, many)]
        start, end = number_of(low), number_of(high)
        unit = 10.0 ** max(math.floor(math.log10((end - start) / many)), _FIRST)
        even = np.rint(np.linspace(start, end, many) / unit) * unit
        near = (max(abs(low), abs(high)) - 1) // _CODES
        powers = np.arange(max(near - 600, 0), near + 1, dtype=np.int64) * _CODES + 1
        found = np.unique(
            np.concatenate([np.array(steps, np.int64), code_of(even), powers, -powers, [0]])
        )
        return found[(found > low) & (found < high)]

    def simplest(self, low: int, high: int) -> int:
        """Return the code in (low, high] whose number is the roundest: of fewest digits.

        Halves and fifths of a digit are rounder than tenths.

        Examples
        --------
        >>> domain = Decimals(-10.0, 10.0)
        >>> low, high = code_of([2.96, 3.12]).tolist()
        >>> number_of(domain.simplest(low, high))
        3.0
        """
        if low < 0 <= high:
            return 0
        if high < 0:
            return -self.simplest(-high - 1, -low - 1)
        (first, start), (last, end) = divmod(low, _CODES), divmod(high - 1, _CODES)
        if first < last:  # between powers of ten
            return int((first + last + 1) // 2 * _CODES + 1)
        start, end = start + _LEAST, end + _LEAST
        for step in _ROUNDER:
            least, most = -(-start // step), end // step
            if least <= most:
                break
        return int(first * _CODES + (least + most) // 2 * step - _LEAST + 1)


@dataclass(frozen=True)
class Coarse:
    """Numbers of three digits, for limits, which are rounded outwards.

    Parameters
    ----------
    lower : float
        What the lowest code stands for.
    low, high : int
        Codes: 900 for each of nine powers of ten, zero in the middle; and the lowest one.
    smallest : int
        The smallest power of ten.
    """

    lower: float
    low: int
    high: int
    smallest: int

    @classmethod
    def of(cls, domain: Decimals, mirrored: bool) -> Coarse:
        """Return the domain of lower limits, or that of negated upper ones."""
        lower, upper = (-domain.upper, -domain.lower) if mirrored else (domain.lower, domain.upper)
        top = (int(np.abs(code_of([lower, upper])).max()) - 1) // _CODES
        empty = cls(lower, 0, 0, max(top - 8, 0))
        low, high = empty._floor(code_of([lower, upper])).tolist()
        return cls(lower, low, high, empty.smallest)

    def _floor(self, codes: IntArray) -> IntArray:
        step = 10 ** (DIGITS - 3)
        size = np.abs(codes)
        power, place = np.divmod(np.maximum(size - 1, 0), _CODES)
        inside = (power - self.smallest) * 900
        # Towards zero above it and away from zero below it.
        up = inside + np.where(codes < 0, -(-place // step), place // step) + 1
        tiny = power < self.smallest
        return np.where(codes < 0, np.where(tiny, -1, -up), np.where(tiny | (codes == 0), 0, up))

    def place(self, records: NDArray[np.float64]) -> IntArray:
        """Return the code of the largest number that is at most each record."""
        return np.clip(self._floor(code_of(records)), self.low, self.high)

    def upto(self, codes: Any) -> list[int]:
        """Return how many codes there are up to each."""
        return [int(code) - self.low + 1 for code in codes]

    def find(self, mass: int, low: int, high: int) -> int:
        """Return the code in (low, high] in which so much measure is reached."""
        return mass + self.low

    def number(self, code: int) -> float:
        """Return the number with this code; the lowest one is the bound."""
        if code <= self.low:
            return self.lower
        if code == 0:
            return 0.0
        power, place = divmod(abs(code) - 1, 900)
        size = (power + self.smallest) * _CODES + place * 10 ** (DIGITS - 3) + 1
        return max(number_of(size if code > 0 else -size), self.lower)


def _multiples(codes: IntArray, power: int) -> IntArray:
    """How many multiples of 10^power are above zero and at most each number (less than 0 below)."""
    size = np.abs(codes)
    decade, place = np.divmod(np.maximum(size - 1, 0), _CODES)
    digits = np.where(size > 0, place + _LEAST, 0)
    shift = power - (decade + _FIRST - DIGITS + 1)
    divisor = 10 ** np.clip(shift, 0, 17)
    whole = digits // divisor * 10 ** np.clip(-shift, 0, 17)
    exact = digits % divisor == 0
    counted: IntArray = np.where(codes < 0, -whole - ~exact, whole)
    return counted
