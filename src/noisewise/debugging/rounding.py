"""Whether an update was rounded after its noise, or what it is made of was rounded before.

Both leave few digits. A noisy gradient that is rounded at last is post-processing and harmless;
a sum that is rounded before its noise is added can be read off the result. What tells them apart
is a record much smaller than a digit: rounded at last, it moves some numbers over the edge to the
next one, in proportion to its size; rounded before, it is lost in all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.statistics import Vector

__all__ = ["rounded_afterwards"]

#: How many numbers are expected to move before anything is said.
_ENOUGH = 8


def rounded_afterwards(bench: Bench, gradient: Callable[[int, float, int], Vector]) -> bool:
    """Return whether few digits are left, and a record below them still moves some numbers.

    `gradient` returns the update of one of two datasets at a noise multiplier and a seed, in
    gradient units and to all its digits.
    """
    dtypes = {bench.init[name].dtype for name in bench.box.names}
    if bench.adam or bench.reach < 1 or dtypes != {torch.float32}:
        return False
    first = gradient(0, SIGMA, 92)
    if not np.isfinite(first).all() or _grid(bench, first) is None:
        return False
    if bench.known.random:
        # Rounded up or down by chance, which differs between seeds even without noise. What was
        # rounded before Gaussian noise lies on no grid after it.
        return _grid(bench, gradient(0, 0.0, 92)) is not None
    silent = [gradient(which, 0.0, 92) for which in (0, 1)]
    expected, moved = 0.0, 0
    for sigma in (4 * SIGMA, 16 * SIGMA, 64 * SIGMA, 256 * SIGMA):
        for seed in (93, 94):
            here, there = (gradient(which, sigma, seed) for which in (0, 1))
            grid = _grid(bench, here)
            if grid is None or not (np.isfinite(here).all() and np.isfinite(there).all()):
                continue
            apart = np.abs(silent[0] - silent[1])
            below = np.maximum(np.abs(silent[0]), np.abs(silent[1])) < 0.35 * grid
            used = below & (apart < 0.25 * grid) & (apart > 0.01 * grid)
            expected += float(np.sum(apart[used] / grid[used]))
            moved += int(np.count_nonzero(np.abs(here - there)[used] > 0.5 * grid[used]))
    return expected >= _ENOUGH and moved > 0.4 * expected


def _grid(bench: Bench, values: Vector) -> Vector | None:
    """Return the distance to the next number that each could be, or nothing if there is no grid."""
    some = values[values != 0]
    if some.size < 60:
        return None
    digits, _ = np.frexp(some)
    for bits in (8, 11):
        scaled = digits * 2.0**bits
        if float(np.mean(np.abs(scaled - np.round(scaled)) < 1e-3)) > 0.97:
            _, exponents = np.frexp(values)
            return np.asarray(np.ldexp(1.0, exponents - bits), dtype=np.float64)
    grid = np.full(values.size, np.inf)
    seen = 0
    for part in bench.box.slices.values():
        sizes = np.sort(np.abs(values[part]))
        largest = float(sizes[-1])
        if sizes.size < 32 or largest == 0:
            continue
        gaps = np.diff(sizes)
        steps = gaps[gaps > 1e-4 * largest]
        if steps.size == 0 or np.count_nonzero(gaps <= 1e-4 * largest) < 0.25 * gaps.size:
            return None
        step = float(np.min(steps))
        if float(np.mean(np.abs(steps / step - np.round(steps / step)) < 0.1)) < 0.9:
            return None
        grid[part] = step
        seen += sizes.size
    return grid if seen >= 0.5 * values.size else None
