"""From uniform integers to normal numbers, with full tails: Box and Muller (1958).

A pair of normal numbers is a point in the plane: its squared length is twice an
exponential number E, its direction is uniform. E = -ln(u) is computed from a whole
64-bit integer in such a way that it keeps its relative accuracy at *both* ends:

* u below 1/2 (the tail): -log(u), where u is the integer itself times 2^-64. The
  least u is 2^-65, hence radii up to sqrt(2 * 65 ln 2) = 9.49.
* u above 1/2 (the centre): -log1p(-v), where v = 1 - u is again an integer times
  2^-64, computed without any subtraction of floating-point numbers.

The direction is an angle in (-pi/4, pi/4), where the sine is relatively accurate at
zero, and two random bits that exchange the coordinates and choose a sign. So single
precision suffices for every step, nothing is ever zero, infinite or NaN, and the
error of every number is a few units in its last place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["LARGEST", "pairs_from_integers"]

# No number is larger: sqrt(2 * 65 * ln 2) = 9.4926..., and a little for rounding.
LARGEST = 9.5


def pairs_from_integers(radius: Tensor, angle: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Turn uniform signed integers into two vectors of independent normal numbers."""
    fraction = radius.to(dtype).add_(0.5).mul_(2.0**-64)
    size = fraction.abs()
    exponential = torch.where(fraction > 0, torch.log(size), torch.log1p(-size)).neg_()
    length = exponential.mul_(2.0).sqrt_()
    bits = 32 if angle.dtype == torch.int32 else 64
    sign = torch.where((angle & 1) == 0, 1.0, -1.0).to(dtype)
    turn = (angle & 2) == 0
    theta = (angle >> 2).to(dtype).add_(0.5).mul_(math.pi / 2 * 2.0 ** (2 - bits))
    along, across = torch.cos(theta).mul_(length).mul_(sign), torch.sin(theta).mul_(length)
    return torch.where(turn, along, across), torch.where(turn, across, along)
