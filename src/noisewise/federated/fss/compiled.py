"""The loops of key generation and evaluation, compiled with numba; imported only if it is there.

Full-domain evaluation is limited by memory unless seeds stay in the first-level cache: the upper
levels of a few keys are grown first, then subtrees of at most 2^SUBTREE blocks, one place in the
domain after the other, so that the sums of that place stay in the cache for all those keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from noisewise.federated.fss.instructions import (
    encrypt,
    expand_children,
    hash_block,
    hash_value,
)

__all__ = [
    "comparison_generate",
    "comparison_sum",
    "encrypt_rows",
    "point_generate",
    "point_sum",
]

ONE = np.uint64(1)
ZERO = np.uint64(0)
MASK = ~ONE
SUBTREE = 8
BATCH = 32
LANES = 16

_left, _right, _value = hash_block


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def encrypt_rows(rows: Any, times: int) -> None:
    """Encrypt every row `times` times: the measure of what the processor can do at most."""
    for _ in range(times):
        for i in range(rows.shape[0]):
            encrypt(rows, i)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def point_sum(
    server: int, root: Any, seeds: Any, left: Any, right: Any, last: Any, total: Any
) -> None:
    """Add the values of all keys at all cells to `total`, without the sign of server 1."""
    keys, down = seeds.shape[0], seeds.shape[1]
    below = min(down, SUBTREE)
    above = down - below
    tops, leaves = 1 << above, 1 << below
    sums = total.reshape((-1, 2))
    upper = np.empty((BATCH * tops, 2), np.uint64)
    spare = np.empty((tops, 2), np.uint64)
    first = np.empty((leaves, 2), np.uint64)
    second = np.empty((leaves, 2), np.uint64)
    for start in range(0, keys, BATCH):
        stop = min(keys, start + BATCH)
        for k in range(start, stop):
            mine = upper[(k - start) * tops : (k - start + 1) * tops]
            # Two buffers in turn, so that the last level ends in `mine`.
            source, target = (mine, spare) if above % 2 == 0 else (spare, mine)
            source[0, 0] = root[k, 0] | np.uint64(server)
            source[0, 1] = root[k, 1]
            for level in range(above):
                low = seeds[k, level, 0]
                to_left, to_right = (
                    low | np.uint64(left[k, level]),
                    low | np.uint64(right[k, level]),
                )
                high = seeds[k, level, 1]
                for j in range(1 << level):
                    expand_children(source, j, target, to_left, to_right, high)
                source, target = target, source
        for place in range(tops):
            for k in range(start, stop):
                a, b = first, second
                a[0, 0] = upper[(k - start) * tops + place, 0]
                a[0, 1] = upper[(k - start) * tops + place, 1]
                for level in range(above, down):
                    low = seeds[k, level, 0]
                    to_left = low | np.uint64(left[k, level])
                    to_right = low | np.uint64(right[k, level])
                    high = seeds[k, level, 1]
                    for j in range(1 << (level - above)):
                        expand_children(a, j, b, to_left, to_right, high)
                    a, b = b, a
                low, high = last[k, 0], last[k, 1]
                for j in range(leaves):
                    hash_value(a, j, sums, place * leaves + j, low, high)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def point_generate(
    places: Any, levels: int, roots: Any, seeds: Any, left: Any, right: Any, last: Any
) -> None:
    """Fill in the corrections of point keys."""
    for k in range(places.size):
        a0, a1, b0, b1 = roots[0, k, 0], roots[0, k, 1], roots[1, k, 0], roots[1, k, 1]
        s, t = ZERO, ONE
        for level in range(levels - 1):
            bit = (places[k] >> np.uint64(levels - 1 - level)) & ONE
            al0, al1 = _left(a0, a1)
            ar0, ar1 = _right(a0, a1)
            bl0, bl1 = _left(b0, b1)
            br0, br1 = _right(b0, b1)
            on = ZERO - bit  # all ones if the path goes to the right
            low = ((al0 ^ bl0) & on) | ((ar0 ^ br0) & ~on)
            high = ((al1 ^ bl1) & on) | ((ar1 ^ br1) & ~on)
            low &= MASK
            cl = (al0 ^ bl0 ^ bit ^ ONE) & ONE
            cr = (ar0 ^ br0 ^ bit) & ONE
            kept = (cr & on) | (cl & ~on)
            a0, a1 = (ar0 & on) | (al0 & ~on), (ar1 & on) | (al1 & ~on)
            b0, b1 = (br0 & on) | (bl0 & ~on), (br1 & on) | (bl1 & ~on)
            a0, a1 = a0 ^ ((low | kept) & (ZERO - s)), a1 ^ (high & (ZERO - s))
            b0, b1 = b0 ^ ((low | kept) & (ZERO - t)), b1 ^ (high & (ZERO - t))
            s, t = a0 & ONE, b0 & ONE
            a0, b0 = a0 & MASK, b0 & MASK
            seeds[k, level, 0], seeds[k, level, 1] = low, high
            left[k, level], right[k, level] = cl, cr
        va0, va1 = _value(a0, a1)
        vb0, vb1 = _value(b0, b1)
        odd = places[k] & ONE
        d0, d1 = (odd ^ ONE) - va0 + vb0, odd - va1 + vb1
        flip = ZERO - t
        last[k, 0], last[k, 1] = (d0 ^ flip) + t, (d1 ^ flip) + t


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def comparison_generate(
    places: Any, levels: int, roots: Any, seeds: Any, values: Any, left: Any, right: Any, last: Any
) -> None:
    """Fill in the corrections of comparison keys."""
    for k in range(places.size):
        a0, a1, b0, b1 = roots[0, k, 0], roots[0, k, 1], roots[1, k, 0], roots[1, k, 1]
        s, t, gap = ZERO, ONE, ZERO
        for level in range(levels):
            bit = (places[k] >> np.uint64(levels - 1 - level)) & ONE
            al0, al1 = _left(a0, a1)
            ar0, ar1 = _right(a0, a1)
            bl0, bl1 = _left(b0, b1)
            br0, br1 = _right(b0, b1)
            av0, av1 = _value(a0, a1)
            bv0, bv1 = _value(b0, b1)
            on = ZERO - bit
            flip = ZERO - t
            lost = ((bv0 & on) | (bv1 & ~on)) - ((av0 & on) | (av1 & ~on))
            keep = ((av1 & on) | (av0 & ~on)) - ((bv1 & on) | (bv0 & ~on))
            signed = lost - gap + (bit ^ ONE)
            value = (signed ^ flip) + t
            gap = gap + keep + signed
            low = (((al0 ^ bl0) & on) | ((ar0 ^ br0) & ~on)) & MASK
            high = ((al1 ^ bl1) & on) | ((ar1 ^ br1) & ~on)
            cl = (al0 ^ bl0 ^ bit ^ ONE) & ONE
            cr = (ar0 ^ br0 ^ bit) & ONE
            kept = (cr & on) | (cl & ~on)
            a0, a1 = (ar0 & on) | (al0 & ~on), (ar1 & on) | (al1 & ~on)
            b0, b1 = (br0 & on) | (bl0 & ~on), (br1 & on) | (bl1 & ~on)
            a0, a1 = a0 ^ ((low | kept) & (ZERO - s)), a1 ^ (high & (ZERO - s))
            b0, b1 = b0 ^ ((low | kept) & (ZERO - t)), b1 ^ (high & (ZERO - t))
            s, t = a0 & ONE, b0 & ONE
            a0, b0 = a0 & MASK, b0 & MASK
            seeds[k, level, 0], seeds[k, level, 1] = low, high
            left[k, level], right[k, level], values[k, level] = cl, cr, value
        flip = ZERO - t
        last[k] = ((b1 - a1 - gap + ONE) ^ flip) + t


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def comparison_sum(
    server: int,
    root: Any,
    seeds: Any,
    values: Any,
    left: Any,
    right: Any,
    last: Any,
    levels: int,
    places: Any,
    total: Any,
) -> None:
    """Add the values of all keys at some thresholds, without the sign of server 1.

    LANES keys are evaluated side by side, so that one waits for no other.
    """
    state = np.empty((LANES, 2), np.uint64)
    sums = np.empty(LANES, np.uint64)
    for start in range(0, root.shape[0], LANES):
        lanes = min(LANES, root.shape[0] - start)
        for index in range(places.size):
            place = places[index]
            for k in range(lanes):
                state[k, 0] = root[start + k, 0] | np.uint64(server)
                state[k, 1] = root[start + k, 1]
                sums[k] = ZERO
            for level in range(levels):
                side = (place >> np.uint64(levels - 1 - level)) & ONE
                for k in range(lanes):
                    row = start + k
                    on = ZERO - (state[k, 0] & ONE)
                    v0, v1 = _value(state[k, 0], state[k, 1])
                    if side:
                        c0, c1 = _right(state[k, 0], state[k, 1])
                        bit, value = np.uint64(right[row, level]), v1
                    else:
                        c0, c1 = _left(state[k, 0], state[k, 1])
                        bit, value = np.uint64(left[row, level]), v0
                    sums[k] += value + (values[row, level] & on)
                    state[k, 0] = c0 ^ ((seeds[row, level, 0] | bit) & on)
                    state[k, 1] = c1 ^ (seeds[row, level, 1] & on)
            for k in range(lanes):
                on = ZERO - (state[k, 0] & ONE)
                total[index] += sums[k] + state[k, 1] + (last[start + k] & on)
