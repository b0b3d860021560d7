"""How fine the grid of integer measurements must be."""

from __future__ import annotations

import math

__all__ = ["power_of_two"]


def power_of_two(least: float) -> int:
    """Return the smallest power of two that is at least `least` (and at least 1)."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))
