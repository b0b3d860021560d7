"""The float32 transformation of :mod:`noisewise.privacy.randomness.gaussian`, compiled by numba.

The same operations in the same order, so the same bits, but in one pass over each number. Imported
only if numba is installed (the extra ``fast``), and only by generators that have drawn so many
numbers that compiling is paid for.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["pairs"]

_HALF, _TWO, _SCALE = np.float32(0.5), np.float32(2), np.float32(2.0**-32)
_ZEROS = np.float32(2 * math.log(2) / 2.0**23)
_POINT = np.float32(2.0**23)
_ANGLE = np.float32(math.pi / 2 * 2.0**-31)
_A0, _A1, _A2, _A3, _A4 = (
    np.float32(number)
    for number in (
        -0.5602401492670535,
        -0.5600360202267355,
        -0.8004305502506378,
        -1.333328325606841,
        -4.0,
    )
)
_S0, _S1, _S2, _S3 = (
    np.float32(number)
    for number in (-0.00019515281278089, 0.008332160745871744, -0.16666654609241444, 1.0)
)
_TOP = np.int32(-(2**31))
_ONE, _SIGN = np.int32(1), np.int32(31)


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def pairs(  # type: ignore[no-untyped-def]
    zeros, centre, angle, longer, shorter, longer_bits, shorter_bits, lengths, first, second
):
    """Fill the bits of `first` and `second`; False if some number of zeros must be continued.

    `longer_bits` and `shorter_bits` are `longer` and `shorter` seen as integers; `lengths` is
    scratch for zeros as float32, and its bits.
    """
    scratch, scratch_bits = lengths
    least = np.int32(1)
    for i in range(zeros.size):
        low = np.int32(zeros[i] & np.int32(-zeros[i]))
        least = min(least, low)
        scratch[i] = np.float32(low)
    if least <= 0:
        return False
    for i in range(zeros.size):
        exponent = (scratch_bits[i] >> np.int32(23)) - np.int32(127)
        length = np.float32(np.float32(exponent) * _POINT) * _ZEROS
        x = (np.float32(centre[i] | _TOP) + _HALF) * _SCALE
        x = x / (x + _TWO)
        square = x * x
        series = square * _A0
        series = (series + _A1) * square
        series = (series + _A2) * square
        series = (series + _A3) * square
        series = series + _A4
        length = length + x * series
        x = (np.float32(angle[i] >> _ONE) + _HALF) * _ANGLE
        square = x * x
        series = square * _S0
        series = (series + _S1) * square
        series = (series + _S2) * square
        series = series + _S3
        x = (x * series) * np.sqrt(length)
        shorter[i] = x
        longer[i] = np.sqrt(length - x * x)
    for i in range(zeros.size):
        signed = longer_bits[i] ^ np.int32(angle[i] << _SIGN)
        other = shorter_bits[i]
        exchange = (signed ^ other) & (centre[i] >> _SIGN)
        first[i] = signed ^ exchange
        second[i] = other ^ exchange
    return True
