"""Floating-point facts that the certificates stand on.

Everything is computed in binary64 with unit roundoff ``UNIT`` = 2^-53, on data that was
first scaled by a power of two so that its largest entry lies in [1/2, 1). Then nothing
overflows, and what underflows is smaller than 2^-1022 an entry, far below one rounding
error of the largest entry; the margins below absorb it.

Bounds used (Higham, *Accuracy and Stability of Numerical Algorithms*, chapters 3 and 10),
valid for every order of summation and with or without fused multiply-add:

* a sum of n terms errs by at most ``(n - 1) UNIT`` relative to the sum of absolute values;
* an inner product of length n by at most ``(n + 1) UNIT``, and by at most twice as much
  for complex numbers.

``relative(n)`` is four times ``n + 4`` roundings, which covers each of them together with
the handful of scalar operations around them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["UNIT", "Scaled", "check_weight", "relative", "scale", "up"]

UNIT = 2.0**-53


def relative(terms: int, unit: float = UNIT) -> float:
    """Relative error, generously rounded up, of sums or inner products of `terms` terms."""
    return 4.0 * (terms + 4) * unit


def up(value: float) -> float:
    """Return a float above `value` by more than the error of a few scalar operations."""
    return math.nextafter(value * (1.0 + 16.0 * UNIT), math.inf)


class Scaled:
    """A weight in binary64 (or as asked), its largest entry brought to [1/2, 1).

    The factor is ``2**-exponent``.
    """

    def __init__(self, values: Tensor, exponent: int) -> None:
        self.values = values
        self.exponent = exponent

    def restore(self, bound: float) -> float:
        """Undo the scaling of a bound, rounding up."""
        try:
            value = math.ldexp(bound, self.exponent)
        except OverflowError:
            value = math.inf
        if math.isinf(value):
            raise ValueError(
                "the norm of this weight exceeds the largest binary64 number, so no finite "
                "bound on it can be stated; rescale or re-initialise the weight"
            )
        return up(value)


def check_weight(weight: Tensor) -> None:
    """Refuse anything but a tensor of real floating-point numbers."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = getattr(weight, "dtype", type(weight).__name__)
        raise TypeError(f"weight must be a real floating-point tensor, got {kind}")


def scale(weight: Tensor, wide: torch.dtype = torch.float64) -> Scaled | None:
    """Bring `weight` to binary64 and to size one; None when it has no entry other than zero.

    In binary32 (`wide`), what underflows is below 2^-126, no rounding error of the largest.

    Raises
    ------
    ValueError
        If an entry is NaN or infinite: then no bound exists.
    """
    values = weight.detach()
    if values.device.type == "mps":  # has no binary64
        values = values.cpu()
    if values.numel() == 0:
        return None
    low, high = (float(end) for end in torch.aminmax(values))  # both NaN if one entry is
    largest = max(-low, high)
    if not math.isfinite(largest):
        count = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"weight of shape {tuple(weight.shape)} has {count} NaN or infinite entries, so it "
            "has no norm; a step with a too large learning rate is the usual cause"
        )
    if largest == 0.0:
        return None
    exponent = math.frexp(largest)[1]
    if abs(exponent) < 100:
        return Scaled(values.to(wide) * math.ldexp(1.0, -exponent), exponent)
    # Two factors, since 2**1074 itself is not a binary64 number.
    half = -exponent // 2
    values = values.to(wide, copy=True)
    values.mul_(math.ldexp(1.0, half)).mul_(math.ldexp(1.0, -exponent - half))
    return Scaled(values, exponent)
