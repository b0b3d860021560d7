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
    multiply,
)
from noisewise.federated.sharing.field import PRIME as _PRIME

__all__ = [
    "checked_sketch",
    "comparison_generate",
    "comparison_sum",
    "encrypt_rows",
    "point_path",
    "point_sum",
]

ONE = np.uint64(1)
ZERO = np.uint64(0)
MASK = ~ONE
PRIME = np.uint64(_PRIME)
SIXTY_ONE = np.uint64(61)
SUBTREE = 8
BATCH = 32
LANES = 16

_left, _right, _value, _code = hash_block


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def encrypt_rows(rows: Any, times: int) -> None:
    """Encrypt every row `times` times: the measure of what the processor can do at most."""
    for _ in range(times):
        for i in range(rows.shape[0]):
            encrypt(rows, i)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def _above(
    k: int, server: int, root: Any, seeds: Any, left: Any, right: Any, mine: Any, spare: Any
) -> None:
    """Grow the upper levels of one key into `mine`; two buffers in turn, so that it ends there."""
    above = 0
    while (1 << above) < mine.shape[0]:
        above += 1
    source, target = (mine, spare) if above % 2 == 0 else (spare, mine)
    source[0, 0] = root[k, 0] | np.uint64(server)
    source[0, 1] = root[k, 1]
    for level in range(above):
        low = seeds[k, level, 0]
        to_left, to_right = low | np.uint64(left[k, level]), low | np.uint64(right[k, level])
        high = seeds[k, level, 1]
        for j in range(1 << level):
            expand_children(source, j, target, to_left, to_right, high)
        source, target = target, source


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def _below(k: int, above: int, seeds: Any, left: Any, right: Any, a: Any, b: Any) -> Any:
    """Grow the subtree whose root is row 0 of `a` and return the buffer with its leaves."""
    for level in range(above, seeds.shape[1]):
        low = seeds[k, level, 0]
        to_left, to_right = low | np.uint64(left[k, level]), low | np.uint64(right[k, level])
        high = seeds[k, level, 1]
        for j in range(1 << (level - above)):
            expand_children(a, j, b, to_left, to_right, high)
        a, b = b, a
    return a


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def _lifted(word: Any, correction: Any) -> Any:
    """Return 61 bits of a word plus a correction, in the field."""
    found = (word & PRIME) + correction
    return found - PRIME if found >= PRIME else found


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def point_sum(
    server: int, root: Any, seeds: Any, left: Any, right: Any, last: Any, total: Any
) -> None:
    """Add the values of all keys at all cells to `total`, without the sign of server 1.

    Words of a point key (`last` has two of them) are added modulo 2^64, those of a checked key
    (four) in the field.
    """
    keys, down = seeds.shape[0], seeds.shape[1]
    in_field = last.shape[1] == 4
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
            _above(k, server, root, seeds, left, right, mine, spare)
        for place in range(tops):
            for k in range(start, stop):
                first[0, 0] = upper[(k - start) * tops + place, 0]
                first[0, 1] = upper[(k - start) * tops + place, 1]
                a = _below(k, above, seeds, left, right, first, second)
                low, high = last[k, 0], last[k, 1]
                if in_field:
                    for j in range(leaves):
                        on = ZERO - (a[j, 0] & ONE)
                        v0, v1 = _value(a[j, 0], a[j, 1])
                        row = place * leaves + j
                        sums[row, 0] = _lifted(sums[row, 0], _lifted(v0, low & on))
                        sums[row, 1] = _lifted(sums[row, 1], _lifted(v1, high & on))
                else:
                    for j in range(leaves):
                        hash_value(a, j, sums, place * leaves + j, low, high)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def checked_sketch(
    server: int, root: Any, seeds: Any, left: Any, right: Any, last: Any, r: Any, q: Any, out: Any
) -> None:
    """Fill rows of `out` with sum r v and sum (q v + r w) of each key, before server 1's sign."""
    keys, down = seeds.shape[0], seeds.shape[1]
    below = min(down, SUBTREE)
    above = down - below
    tops, leaves = 1 << above, 1 << below
    mine = np.empty((tops, 2), np.uint64)
    spare = np.empty((tops, 2), np.uint64)
    first = np.empty((leaves, 2), np.uint64)
    second = np.empty((leaves, 2), np.uint64)
    for k in range(keys):
        _above(k, server, root, seeds, left, right, mine, spare)
        z, y = ZERO, ZERO
        for place in range(tops):
            first[0, 0] = mine[place, 0]
            first[0, 1] = mine[place, 1]
            a = _below(k, above, seeds, left, right, first, second)
            cell = 2 * place * leaves
            for j in range(leaves):
                on = ZERO - (a[j, 0] & ONE)
                v0, v1 = _value(a[j, 0], a[j, 1])
                w0, w1 = _code(a[j, 0], a[j, 1])
                v0, v1 = _lifted(v0, last[k, 0] & on), _lifted(v1, last[k, 1] & on)
                w0, w1 = _lifted(w0, last[k, 2] & on), _lifted(w1, last[k, 3] & on)
                r0, r1 = r[cell], r[cell + 1]
                # Three numbers below 2^62 fit a word; what stays after folding is below 2^62.
                z += multiply(r0, v0) + multiply(r1, v1)
                z = (z & PRIME) + (z >> SIXTY_ONE)
                y += multiply(q[cell], v0) + multiply(r0, w0)
                y = (y & PRIME) + (y >> SIXTY_ONE)
                y += multiply(q[cell + 1], v1) + multiply(r1, w1)
                y = (y & PRIME) + (y >> SIXTY_ONE)
                cell += 2
        out[k, 0] = _lifted(z, z >> SIXTY_ONE)
        out[k, 1] = _lifted(y, y >> SIXTY_ONE)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
def point_path(
    places: Any, levels: int, roots: Any, seeds: Any, left: Any, right: Any, ends: Any, control: Any
) -> None:
    """Fill in the corrections of point keys, both servers' last seeds, and the second's bit."""
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
        ends[0, k, 0], ends[0, k, 1], ends[1, k, 0], ends[1, k, 1] = a0, a1, b0, b1
        control[k] = t


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
