"""Distributed point functions: shares of "one in this cell, zero elsewhere".

Boyle, Gilboa and Ishai (2016), Section 3.2, with early termination: the last block of 128 bits
holds the values of two neighbouring cells. A tree of seeds is grown by both servers; off the
path to the secret cell their seeds and control bits are equal and their values cancel, on it
they differ and the last correction makes the values differ by the unit. One server's key is
a uniform seed and corrections that look uniform to whoever does not have the other seed.

A whole curve needs no comparison keys: shares are additive, so a cumulative sum of shares
of the counts is a share of the cumulative counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise.federated.fss import kernels
from noisewise.federated.fss.hashing import LEFT, RIGHT, SEED_MASK, VALUE, Words, hash_seeds, split
from noisewise.federated.fss.keys import Keys, checked_points, pack_bits
from noisewise.federated.fss.wire import Kind, Table, new_table
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["PointKeys", "chunks", "expand", "generate_point", "grown", "units"]

ONE = np.uint64(1)
# Blocks expanded at once by the fallback.
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class PointKeys(Keys):
    """Point keys of many records, for one server.

    Examples
    --------
    >>> first, second = generate_point([2, 2, 5], levels=3, tag=bytes(8))
    >>> (first.sum_over_domain() + second.sum_over_domain()).tolist()
    [0, 0, 2, 0, 0, 1, 0, 0]
    """

    kind: ClassVar[Kind] = "point"

    def sum_over_domain(self, *, compiled: bool | None = None) -> Words:
        """Return this server's share of the histogram: values at all cells, summed over keys.

        Parameters
        ----------
        compiled : bool, optional
            Whether to use AES instructions through numba; by default if both are there. The
            result is the same.
        """
        root, seeds, left, right, last = self.corrections()
        total = np.zeros(1 << self.levels, np.uint64)
        if kernels.use(compiled):
            kernels.load().point_sum(self.server, root, seeds, left, right, last, total)
        else:
            for part in chunks(len(self), self.levels):
                s, t = expand(self.server, root[part], seeds[part], left[part], right[part])
                values = hash_seeds(VALUE, s) + t[..., None] * last[part, None, :]
                total += values.sum(0, dtype=np.uint64).ravel()
        return total if self.server == 0 else np.uint64(0) - total

    def evaluate(self, points: Any) -> Words:
        """Return this server's shares at some points: one row for each key. For few points."""
        places = checked_points(points, self.levels)
        root, seeds, left, right, last = self.corrections()
        down = self.levels - 1
        result = np.empty((len(self), places.size), np.uint64)
        for column, place in enumerate(places.tolist()):
            s, t = root, np.full(len(self), self.server, np.uint64)
            for level in range(down):
                side = (place >> (self.levels - 1 - level)) & 1
                block, bit = split(hash_seeds(RIGHT if side else LEFT, s))
                block ^= seeds[:, level] * t[:, None]
                t, s = bit ^ (t & (right if side else left)[:, level]), block
            value = hash_seeds(VALUE, s) + last * t[:, None]
            result[:, column] = value[:, place & 1]
        return result if self.server == 0 else np.uint64(0) - result


def generate_point(
    cells: Any,
    levels: int,
    tag: bytes,
    rng: Randomness | int | None = None,
    *,
    compiled: bool | None = None,
) -> tuple[PointKeys, PointKeys]:
    """Make a pair of keys for each record.

    Parameters
    ----------
    cells : array of int
        The secret cell of each record, below 2^levels.
    levels : int
        Binary digits of the domain, 1 to 62.
    tag : bytes
        Of the round; see :func:`noisewise.federated.fss.wire.round_tag`.
    rng : None, int or Randomness
        ``None`` is the secure choice; anything else is for tests.
    compiled : bool, optional
        Whether to use AES instructions through numba; by default if both are there.
    """
    tables, ends, control = grown("point", cells, levels, tag, resolve(rng), compiled=compiled)
    difference = units(cells, np.uint64(1)) - hash_seeds(VALUE, ends[0])
    difference += hash_seeds(VALUE, ends[1])
    last = np.where(control[:, None] == 1, np.uint64(0) - difference, difference)
    for table in tables:
        table["last"] = last
    first, second = (PointKeys(table, levels, server) for server, table in enumerate(tables))
    return first, second


def chunks(keys: int, levels: int) -> Iterator[slice]:
    """Cut so many keys into parts that are expanded at once."""
    step = max(1, CHUNK >> (levels - 1))
    return (slice(start, start + step) for start in range(0, keys, step))


def grown(
    kind: Kind,
    cells: Any,
    levels: int,
    tag: bytes,
    source: Randomness,
    *,
    compiled: bool | None = None,
) -> tuple[list[Table], Words, Words]:
    """Make pairs of keys without their last corrections.

    Returns
    -------
    tables : list
        Of both servers.
    ends : array of shape (2, keys, 2)
        The servers' seeds at the secret cells.
    control : array
        The second server's control bits there; the first one has the others.
    """
    places = checked_points(cells, levels, "cells")
    size, down = places.size, levels - 1
    tables = [new_table(kind, levels, size, server, tag) for server in (0, 1)]
    roots = source.uint64((2, size, 2))
    roots[..., 0] &= SEED_MASK
    identifiers = np.frombuffer(source.bytes(16 * size), "V16")
    seeds = np.empty((size, down, 2), np.uint64)
    left, right = np.empty((2, size, down), np.uint8)
    ends, control = np.empty((2, size, 2), np.uint64), np.empty(size, np.uint64)
    path = kernels.load().point_path if kernels.use(compiled) else _path
    path(places, levels, roots, seeds, left, right, ends, control)
    seeds[..., 0] |= left
    for table, root in zip(tables, roots, strict=True):
        table["identifier"], table["root"], table["seeds"] = identifiers, root, seeds
        table["right"] = pack_bits(right)
    return tables, ends, control


def units(cells: Any, value: Any) -> Words:
    """Return the two values of the block that holds each cell: `value` in it, 0 beside it."""
    places = np.asarray(cells)
    unit = np.zeros((places.size, 2), np.uint64)
    unit[np.arange(places.size), (places & 1).astype(np.intp)] = value
    return unit


def _path(
    places: Words,
    levels: int,
    roots: Words,
    seeds: Words,
    left: Any,
    right: Any,
    ends: Words,
    control: Words,
) -> None:
    s = [roots[0].copy(), roots[1].copy()]
    t = [np.zeros(places.size, np.uint64), np.ones(places.size, np.uint64)]
    for level in range(levels - 1):
        bit = (places >> np.uint64(levels - 1 - level)) & ONE
        on_right = bit.astype(np.bool_)
        children = [(split(hash_seeds(LEFT, x)), split(hash_seeds(RIGHT, x))) for x in s]
        (l0, tl0), (r0, tr0) = children[0]
        (l1, tl1), (r1, tr1) = children[1]
        # The correction makes both servers' seeds equal on the side that is left behind.
        correction = np.where(on_right[:, None], l0 ^ l1, r0 ^ r1)
        correct_left, correct_right = tl0 ^ tl1 ^ bit ^ ONE, tr0 ^ tr1 ^ bit
        correct_kept = np.where(on_right, correct_right, correct_left)
        for server in (0, 1):
            (ls, lt), (rs, rt) = children[server]
            kept = np.where(on_right[:, None], rs, ls)
            kept_bit = np.where(on_right, rt, lt)
            s[server] = np.ascontiguousarray(kept ^ correction * t[server][:, None])
            t[server] = kept_bit ^ (t[server] & correct_kept)
        seeds[:, level], left[:, level], right[:, level] = correction, correct_left, correct_right
    ends[0], ends[1], control[:] = s[0], s[1], t[1]


def expand(
    server: int, root: Words, seeds: Words, left: Any, right: Any
) -> tuple[Words, NDArray[Any]]:
    """Seeds and control bits of some keys in the last block of every pair of cells."""
    size = root.shape[0]
    s, t = root[:, None, :], np.full((size, 1), server, np.uint64)
    for level in range(seeds.shape[1]):
        width = s.shape[1]
        children = np.empty((size, width, 2, 2), np.uint64)
        bits = np.empty((size, width, 2), np.uint64)
        correction = seeds[:, level, None, :] * t[..., None]
        for side, which, control in ((0, LEFT, left), (1, RIGHT, right)):
            block, bit = split(hash_seeds(which, s))
            np.bitwise_xor(block, correction, out=children[:, :, side])
            np.bitwise_xor(bit, t & control[:, level, None], out=bits[:, :, side])
        s, t = children.reshape(size, 2 * width, 2), bits.reshape(size, 2 * width)
    return s, t
