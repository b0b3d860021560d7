"""From uniform integers to normal numbers, with full tails: Box and Muller (1958).

A pair of independent normal numbers is a point in the plane: half its squared length is
an exponential number E, and its direction is uniform. Both are built from integers in
such a way that single precision suffices for single-precision results:

* E = K ln 2 + T, because the exponential law has no memory: K is the number of trailing
  zeros of a random integer (a geometric number, *exact*, and continued in a further
  integer when all bits are zero, so that the tail has no end), and T = -log1p(-v) with
  v uniform in (0, 1/2) keeps its relative accuracy down to the centre.
* The direction is an angle in (-pi/4, pi/4), where the sine keeps its relative accuracy,
  a random sign of the longer coordinate, and a random exchange of the two. The longer
  coordinate is sqrt(2E - shorter^2), without cancellation because shorter^2 <= E.

So no number is ever zero, infinite or NaN, and each is wrong by a few units in its
last place. numpy is used and not torch, whose threads wait for each other after every
small operation. The three integers of a pair have 32 bits for float32, 64 for float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy.randomness.keystream import SLACK, Keystream

__all__ = ["BLOCK_PAIRS", "LARGEST", "MANY", "Normals", "PairMaker"]

# Large enough that the cost of a call vanishes, small enough to stay in the cache.
BLOCK_PAIRS = 32768
# Numbers after which compiling is paid for, and how many are drawn at a time then.
MANY = 1 << 25
_LARGE = 1 << 16
#: A secret generator draws so many at a time for those who want less than `_FEW`: most of what a
#: few numbers cost is the same for one and for thousands.
_AHEAD = 1 << 13
_FEW = 1 << 10
# A larger number needs 141 trailing zeros: probability 2^-141.
LARGEST = 14.0

Numbers: TypeAlias = NDArray[Any]

# Minimax fits, from the highest power down: -4 artanh(s) / s in s^2 for |s| <= 1/3, relative
# error 4.5e-9, and sin(x) / x in x^2 for |x| <= pi/4, relative error 3.8e-9. Single precision
# has 6e-8. Only sums, products, quotients and square roots are used, which are the same on
# every processor, so that a seed gives the same float32 numbers everywhere.
_ARTANH = tuple(
    np.float32(number)
    for number in (
        -0.5602401492670535,
        -0.5600360202267355,
        -0.8004305502506378,
        -1.333328325606841,
        -4.0,
    )
)
_SINE = tuple(
    np.float32(number)
    for number in (-0.00019515281278089, 0.008332160745871744, -0.16666654609241444, 1.0)
)


class PairMaker:
    """The transformation for one precision, with buffers that are used again.

    Parameters
    ----------
    double : bool
        Whether numbers are float64 made of 64-bit integers, or float32 of 32-bit ones.
    pairs : int
        How many pairs a call makes at most.
    """

    def __init__(self, double: bool, pairs: int = BLOCK_PAIRS) -> None:
        self.pairs = pairs
        self.integer = np.dtype(np.int64 if double else np.int32)
        self.real = np.dtype(np.float64 if double else np.float32)
        self.bits = 8 * self.integer.itemsize
        self._point = 2.0**52 if double else 2.0**23
        self._bias = self._point * (1023 if double else 127)
        self._scratch = [np.empty(pairs, self.real) for _ in range(4)]
        #: A compiled function that gives the same bits, where many numbers are drawn.
        self.compiled: Callable[..., bool] | None = None
        self.buffer = np.empty(3 * self.integer.itemsize * pairs + 2 * SLACK, np.uint8)

    def __call__(
        self, words: Numbers, first: Numbers, second: Numbers, more_zeros: Callable[[], int]
    ) -> None:
        """Fill `first` and `second` from three rows of uniform integers.

        Parameters
        ----------
        words : array of shape (3, pairs)
            Uniform signed integers: for K, for v and the exchange, for angle and sign.
        first, second : arrays of length `pairs`
            Where the two numbers of each pair go.
        more_zeros : callable
            Trailing zeros of a further random integer, without an upper limit.
        """
        if self.compiled is not None and self._at_once(words, first, second):
            return
        zeros, centre, angle = words
        length, longer, shorter, spare = (part[: zeros.size] for part in self._scratch)
        bits = spare.view(self.integer)

        # K ln 2, doubled. The lowest set bit is a power of two, so its conversion is
        # exact and its exponent field is K; where no bit is set, or only the sign, K is
        # continued by hand.
        np.negative(zeros, out=bits)
        np.bitwise_and(bits, zeros, out=bits)
        runs = np.flatnonzero(bits <= 0) if bits.min(initial=1) <= 0 else ()
        np.copyto(length, bits, casting="unsafe")
        np.copyto(spare, length.view(self.integer), casting="unsafe")
        np.subtract(spare, self.real.type(self._bias), out=length)
        for index in runs:
            length[index] = (self.bits - 1 + more_zeros()) * self._point
        np.multiply(length, self.real.type(2 * math.log(2) / self._point), out=length)

        # 2T = -2 log1p(-v); setting the sign bit leaves one bit less and -v < 0.
        np.bitwise_or(centre, self.integer.type(-(2 ** (self.bits - 1))), out=bits)
        np.copyto(shorter, bits, casting="unsafe")
        np.add(shorter, self.real.type(0.5), out=shorter)
        np.multiply(shorter, self.real.type(2.0**-self.bits), out=shorter)
        self._minus_twice_log1p(shorter, spare, longer)
        np.add(length, shorter, out=length)

        # The shorter coordinate, sqrt(2E) sin(angle), and the longer one.
        np.right_shift(angle, 1, out=bits)
        np.copyto(shorter, bits, casting="unsafe")
        np.add(shorter, self.real.type(0.5), out=shorter)
        np.multiply(shorter, self.real.type(math.pi / 2 * 2.0 ** (1 - self.bits)), out=shorter)
        self._sine(shorter, spare, longer)
        np.sqrt(length, out=longer)
        np.multiply(shorter, longer, out=shorter)
        np.multiply(shorter, shorter, out=longer)
        np.subtract(length, longer, out=longer)
        np.sqrt(longer, out=longer)

        # Sign and exchange, by bits: a choice element by element costs ten times as much.
        minus = length.view(self.integer)
        np.left_shift(angle, self.bits - 1, out=minus)
        signed, other = longer.view(self.integer), shorter.view(self.integer)
        np.bitwise_xor(signed, minus, out=signed)
        np.bitwise_xor(signed, other, out=minus)
        np.right_shift(centre, self.bits - 1, out=bits)
        np.bitwise_and(minus, bits, out=minus)
        np.bitwise_xor(signed, minus, out=first.view(self.integer))
        np.bitwise_xor(other, minus, out=second.view(self.integer))

    def _at_once(self, words: Numbers, first: Numbers, second: Numbers) -> bool:
        """Whether one pass of compiled code did all of it."""
        assert self.compiled is not None
        scratch = [part[: words.shape[1]] for part in self._scratch[:3]]
        bits = [part.view(self.integer) for part in scratch]
        return self.compiled(
            *words,
            *scratch[:2],
            *bits[:2],
            (scratch[2], bits[2]),
            first.view(self.integer),
            second.view(self.integer),
        )

    def _minus_twice_log1p(self, x: Numbers, square: Numbers, series: Numbers) -> None:
        """Replace x in [-1/2, 0) by -2 log(1 + x) = -4 artanh(x / (2 + x))."""
        if self.bits == 64:
            np.log1p(x, out=x)
            np.multiply(x, -2.0, out=x)
            return
        np.add(x, np.float32(2), out=square)
        np.divide(x, square, out=x)
        _odd_series(x, square, series, _ARTANH)

    def _sine(self, x: Numbers, square: Numbers, series: Numbers) -> None:
        """Replace x in [-pi/4, pi/4] by its sine."""
        if self.bits == 64:
            np.sin(x, out=x)
        else:
            _odd_series(x, square, series, _SINE)


def _odd_series(
    x: Numbers, square: Numbers, series: Numbers, coefficients: Sequence[np.float32]
) -> None:
    """Replace x by x times a polynomial in x^2, from the highest coefficient down."""
    np.multiply(x, x, out=square)
    np.multiply(square, coefficients[0], out=series)
    for coefficient in coefficients[1:-1]:
        np.add(series, coefficient, out=series)
        np.multiply(series, square, out=series)
    np.add(series, coefficients[-1], out=series)
    np.multiply(x, series, out=x)


@functools.cache
def _compiled() -> Callable[..., bool] | None:
    """The transformation in one pass, if numba is installed."""
    try:
        from noisewise.privacy.randomness.compiled import pairs
    except ImportError:
        return None
    found: Callable[..., bool] = pairs
    return found


class _Reserve:
    """Numbers that a process has drawn and nobody has seen."""

    __slots__ = ("left", "process")

    def __init__(self, process: object, left: Numbers) -> None:
        self.process, self.left = process, left


class Normals:
    """Normal numbers from a cipher stream, whose lock the caller holds."""

    def __init__(self, stream: Keystream) -> None:
        self._stream = stream
        self._makers: dict[bool, PairMaker] = {}
        self._drawn = 0
        self._reserves: dict[bool, _Reserve] = {}

    def fill(self, flat: Numbers, std: float, hardened: bool) -> None:
        """Fill a contiguous vector of float32 or float64 with deviation `std`."""
        if not hardened:
            if flat.size < _FEW and self._stream.root is None:
                self._take(flat, std)
            else:
                self._fill(flat, std)
            return
        self._fill(flat, std / 2)
        part = np.empty_like(flat)
        for _ in range(3):
            self._fill(part, std / 2)
            flat += part

    def _take(self, flat: Numbers, std: float) -> None:
        """Fill a short vector with numbers that were drawn before, each of them once.

        Only where nobody could draw the same numbers again: a seeded stream gives what it gives.
        """
        process, double = self._stream.process, flat.dtype == np.float64
        reserve = self._reserves.get(double)
        if reserve is None or reserve.process is not process or len(reserve.left) < flat.size:
            numbers = np.empty(_AHEAD, flat.dtype)
            self._fill(numbers, 1.0)
            reserve = self._reserves[double] = _Reserve(process, numbers)
        # Given away before they are used: an interrupt wastes numbers instead of repeating them.
        taken, reserve.left = reserve.left[: flat.size], reserve.left[flat.size :]
        if std == 1:
            flat[:] = taken
        else:
            np.multiply(taken, flat.dtype.type(std), out=flat)
        taken[:] = 0

    def _fill(self, flat: Numbers, std: float) -> None:
        double = flat.dtype == np.float64
        make = self._maker(double, -(-flat.size // 2))
        self._drawn += flat.size
        if make.compiled is None and not double and self._drawn >= MANY and flat.size >= _LARGE:
            make.compiled = _compiled()
        for start in range(0, flat.size, 2 * BLOCK_PAIRS):
            block = flat[start : start + 2 * BLOCK_PAIRS]
            pairs = -(-block.size // 2)
            size = 3 * make.integer.itemsize * pairs
            self._stream.fill(make.buffer, size)
            words = make.buffer[:size].view(make.integer).reshape(3, pairs)
            if block.size == 2 * pairs:
                make(words, block[:pairs], block[pairs:], self._zeros)
            else:
                second = np.empty(pairs, flat.dtype)
                make(words, block[:pairs], second, self._zeros)
                block[pairs:] = second[:-1]
            if std != 1:
                np.multiply(block, flat.dtype.type(std), out=block)

    def _maker(self, double: bool, pairs: int) -> PairMaker:
        """Return buffers that are large enough, and no larger than a small caller needs."""
        pairs = min(BLOCK_PAIRS, 1 << pairs.bit_length())
        make = self._makers.get(double)
        if make is None or make.pairs < pairs:
            make = self._makers[double] = PairMaker(double, pairs)
        return make

    def _zeros(self) -> int:
        """Return the number of zeros before the first one in a stream of bits."""
        zeros = 0
        word = np.empty(8 + 2 * SLACK, np.uint8)
        while True:
            self._stream.fill(word, 8)
            if number := int(word[:8].view(np.uint64)[0]):
                return zeros + (number & -number).bit_length() - 1
            zeros += 64
