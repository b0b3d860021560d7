"""Exponential random numbers that are exact: drawn digit by digit, as far as needed.

Von Neumann's method (1951). Draw uniform X and then uniforms U1, U2, ... until one is
not below its predecessor. The number of descents is even with probability exp(-X);
then X is the fractional part. Otherwise X is refused and the whole part grows by one.
The only operation is the comparison of uniform numbers, which needs their leading
digits only: 64 binary digits are drawn at once for all numbers in numpy, and where two
numbers agree in all of them (once in 2^64), further digits are drawn until they differ.
So no comparison is ever decided wrongly and the law is exactly the exponential one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy.randomness.generator import Randomness

__all__ = ["Exponentials", "exponentials"]

Words: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.bool_]
_ONE = np.uint64(1)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
# V t + floor(X t) < 2^63 if the numerator t is below 2^56 and the whole part V below 2^7.
_NARROW_NUMERATOR = 2**56
_NARROW_WHOLE = 2**7
# A remainder below 2^52 can be shifted by 12 bits within 64.
_NARROW_DENOMINATOR = 2**52


@dataclass
class Exponentials:
    """Exponential numbers of mean one: ``whole + 0.word further...`` in binary digits.

    Parameters
    ----------
    whole, word : array of uint64
        The whole part, and the first `bits` binary digits after the point.
    further : dict of int to list of int
        More digits, `bits` each, of the few numbers for which they were needed.
    source : Randomness
        Where further digits come from.
    bits : int
        Digits per word: 64. Tests use fewer, to make the rare cases frequent.
    """

    whole: Words
    word: Words
    further: dict[int, list[int]]
    source: Randomness
    bits: int = 64

    def floor_times(self, factor: Fraction) -> NDArray[np.int64]:
        """Return floor(factor * E): a geometric number of ratio exp(-1 / factor)."""
        top, bottom = factor.numerator, factor.denominator
        narrow = self.bits == 64 and top < _NARROW_NUMERATOR and bottom < 2**63
        if not narrow or (self.whole.size and self.whole.max() >= _NARROW_WHOLE):
            return _to_int64([self._floor(i, factor) for i in range(self.whole.size)])
        times = np.uint64(top)
        floor = _high_product(self.word, times)
        floor += self.whole * times
        if bottom > 1:
            floor //= np.uint64(bottom)
        result = floor.astype(np.int64)
        # The digits that are not drawn yet add less than `top` to the low half of the
        # product; only where that may carry can they matter.
        carry = self.word * times > np.uint64(2**64 - top)
        for index in np.flatnonzero(carry):
            result[index] = _to_int64([self._floor(int(index), factor)])[0]
        return result

    def at_least(self, bound: Fraction) -> Flags:
        """Return whether E >= bound: events of probability exp(-bound)."""
        scaled = (bound.numerator << self.bits) // bound.denominator
        whole, word = scaled >> self.bits, scaled & (2**self.bits - 1)
        if whole >= 2**63:
            return np.zeros(self.whole.shape, np.bool_)
        same = self.whole == np.uint64(whole)
        result: Flags = (self.whole > np.uint64(whole)) | (same & (self.word > np.uint64(word)))
        for index in np.flatnonzero(same & (self.word == np.uint64(word))):
            result[index] = self._at_least(int(index), bound)
        return result

    def at_least_ratios(self, top: NDArray[Any], bottom: int) -> Flags:
        """Return whether E >= top / bottom, for nonnegative integers `top`.

        `top` is an array of uint64 or, where numbers may be larger, of Python integers.
        """
        if top.dtype == object or bottom >= _NARROW_DENOMINATOR:
            return self._at_least_wide(top.astype(object), bottom)
        divisor = np.uint64(bottom)
        whole: Words = top // divisor
        result: Flags = self.whole > whole
        open_ = np.flatnonzero(self.whole == whole)
        rest = (top - whole * divisor)[open_]
        word = self.word[open_]
        step, left = 64 - bottom.bit_length(), self.bits
        while open_.size and left:
            shift = min(step, left)
            left -= shift
            rest <<= np.uint64(shift)
            digit = rest // divisor
            rest -= digit * divisor
            mine = (word >> np.uint64(left)) & np.uint64(2**shift - 1)
            result[open_] = mine > digit
            same = mine == digit
            open_, rest, word = open_[same], rest[same], word[same]
        for index in open_:
            result[index] = self._at_least(int(index), Fraction(int(top[index]), bottom))
        return result

    def _at_least_wide(self, top: NDArray[Any], bottom: int) -> Flags:
        """Compare as :meth:`at_least_ratios` does, in Python's unbounded integers."""
        mine = self.whole.astype(object) * 2**self.bits + self.word
        bound = top * 2**self.bits // bottom
        result = np.asarray(mine > bound, np.bool_)
        for index in np.flatnonzero(mine == bound):
            result[index] = self._at_least(int(index), Fraction(int(top[index]), bottom))
        return result

    def _lower(self, index: int) -> tuple[int, int]:
        """Return the number as far as it is known: an integer and its binary places."""
        value = (int(self.whole[index]) << self.bits) + int(self.word[index])
        more = self.further.get(index, [])
        for digit in more:
            value = (value << self.bits) + digit
        return value, self.bits * (1 + len(more))

    def _extend(self, index: int) -> None:
        self.further.setdefault(index, []).append(_digit(self.source, self.bits))

    def _floor(self, index: int, factor: Fraction) -> int:
        while True:
            value, places = self._lower(index)
            low = value * factor.numerator
            bottom = factor.denominator << places
            if low // bottom == (low + factor.numerator - 1) // bottom:
                return low // bottom
            self._extend(index)

    def _at_least(self, index: int, bound: Fraction) -> bool:
        while True:
            value, places = self._lower(index)
            if value * bound.denominator >= bound.numerator << places:
                return True
            if (value + 1) * bound.denominator <= bound.numerator << places:
                return False
            self._extend(index)


def exponentials(source: Randomness, count: int, bits: int = 64) -> Exponentials:
    """Draw `count` exponential numbers of mean one."""
    whole = np.zeros(count, np.uint64)
    word = np.empty(count, np.uint64)
    further: dict[int, list[int]] = {}
    todo = np.arange(count)
    while todo.size:
        trial = _trial(source, todo.size, bits)
        kept = trial.even
        word[todo[kept]] = trial.first[kept]
        for place, digits in trial.further.items():
            if kept[place]:
                further[int(todo[place])] = digits
        todo = todo[~kept]
        whole[todo] += _ONE
    return Exponentials(whole, word, further, source, bits)


@dataclass
class _Trials:
    first: Words
    even: Flags
    further: dict[int, list[int]] = field(default_factory=dict)


def _trial(source: Randomness, count: int, bits: int) -> _Trials:
    """Draw X and the parity of the descents after it, for `count` numbers."""
    first = _words(source, count, bits)
    trial = _Trials(first, np.ones(count, np.bool_))
    alive, previous, descents = np.arange(count), first, 0
    while alive.size:
        current = _words(source, alive.size, bits)
        for place in np.flatnonzero(current == previous):
            _settle(source, trial, int(alive[place]), int(previous[place]), descents, bits)
        down = current < previous
        descents += 1
        alive, previous = alive[down], current[down]
        trial.even[alive] = descents % 2 == 0
    return trial


def _settle(
    source: Randomness, trial: _Trials, index: int, word: int, descents: int, bits: int
) -> None:
    """Finish the one trial in which two numbers agree in their first word."""
    previous, current = [word], [word]
    # The first number keeps the digits that a comparison with it has drawn.
    first = previous if descents == 0 else [int(trial.first[index])]
    while _below(source, current, previous, bits):
        descents += 1
        previous, current = current, [_digit(source, bits)]
    trial.even[index] = descents % 2 == 0
    if len(first) > 1:
        trial.further[index] = first[1:]


def _below(source: Randomness, left: list[int], right: list[int], bits: int) -> bool:
    """Compare two uniform numbers, drawing digits that both of them keep."""
    place = 0
    while True:
        for number in (left, right):
            if len(number) == place:
                number.append(_digit(source, bits))
        if left[place] != right[place]:
            return left[place] < right[place]
        place += 1


def _words(source: Randomness, count: int, bits: int) -> Words:
    words = source.uint64(count)
    return words if bits == 64 else words >> np.uint64(64 - bits)


def _digit(source: Randomness, bits: int) -> int:
    return int(source.uint64(1)[0]) >> (64 - bits)


def _high_product(words: Words, factor: np.uint64) -> Words:
    """Return the upper 64 bits of the 128-bit products."""
    high, low = words >> _HALF, words & _LOW
    above, below = factor >> _HALF, factor & _LOW
    middle: Words = high * below + (low * below >> _HALF)
    upper: Words = middle >> _HALF
    if above:
        upper = high * above + upper + ((low * above + (middle & _LOW)) >> _HALF)
    return upper


def _to_int64(numbers: list[int]) -> NDArray[np.int64]:
    if any(number >= 2**63 for number in numbers):
        raise OverflowError(
            "a noise value exceeds 64 bits: the scale is too large for integers of this size. "
            "Count in larger units, so that a scale below 2^53 suffices."
        )
    return np.array(numbers, np.int64)
