"""How fine the grid of integer measurements must be, and how fine it may be."""

from __future__ import annotations

import math

__all__ = ["check_range", "power_of_two"]


def check_range(records: int, resolution: int) -> None:
    """Raise if a count of `records` in grid units, plus noise, might not fit 64 bits."""
    if records * resolution >= 2**62:
        raise OverflowError(
            f"{records} records on a grid of 1/{resolution} are too many for 64-bit measurements; "
            "use a pure budget (delta=0), which needs no fine grid"
        )


def power_of_two(least: float) -> int:
    """Return the smallest power of two that is at least `least` (and at least 1)."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))
