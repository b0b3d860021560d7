"""Distributed comparison functions: shares of "one at and above the record, zero below".

Boyle et al. (2021), Section 3, mirrored so that the sum over records at a threshold t counts the
records x <= t, as a distribution function does. As with point functions a tree of seeds is
grown; every level also adds a value, whose correction is paid out when the threshold leaves
the record's path to the right. For a few thresholds of a large domain: one
evaluation costs two AES blocks a level, whatever the domain's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from noisewise.federated.fss import kernels
from noisewise.federated.fss.hashing import LEFT, RIGHT, SEED_MASK, VALUE, Words, hash_seeds, split
from noisewise.federated.fss.keys import Keys, checked_points, pack_bits
from noisewise.federated.fss.wire import Kind, new_table
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["ComparisonKeys", "generate_comparison"]

ONE = np.uint64(1)


@dataclass(frozen=True, eq=False)
class ComparisonKeys(Keys):
    """Comparison keys of many records, for one server.

    Examples
    --------
    >>> first, second = generate_comparison([2, 2, 5], levels=3, tag=bytes(8))
    >>> (first.sum_at([1, 2, 4, 5, 7]) + second.sum_at([1, 2, 4, 5, 7])).tolist()
    [0, 2, 2, 3, 3]
    """

    kind: ClassVar[Kind] = "comparison"

    def sum_at(self, thresholds: Any, *, compiled: bool | None = None) -> Words:
        """Return this server's shares of the numbers of records x <= t, for each t.

        Parameters
        ----------
        thresholds : array of int
            Cells of the domain.
        compiled : bool, optional
            Whether to use AES instructions through numba; by default if both are there.
        """
        places = checked_points(thresholds, self.levels, "thresholds")
        root, seeds, left, right, last = self.corrections()
        values = np.array(self.table["values"], order="C")
        total = np.zeros(places.size, np.uint64)
        if kernels.use(compiled):
            arguments = (root, seeds, values, left, right, last[:, 0])
            kernels.load().comparison_sum(self.server, *arguments, self.levels, places, total)
        else:
            for index, place in enumerate(places.tolist()):
                shares = self._at(place, root, seeds, values, left, right, last[:, 0])
                total[index] = shares.sum(dtype=np.uint64)
        return total if self.server == 0 else np.uint64(0) - total

    def _at(
        self, place: int, root: Words, seeds: Words, values: Words, left: Any, right: Any, last: Any
    ) -> Words:
        s, t = root, np.full(len(self), self.server, np.uint64)
        total = np.zeros(len(self), np.uint64)
        for level in range(self.levels):
            side = (place >> (self.levels - 1 - level)) & 1
            total += hash_seeds(VALUE, s)[:, side] + t * values[:, level]
            block, bit = split(hash_seeds(RIGHT if side else LEFT, s))
            block ^= seeds[:, level] * t[:, None]
            t, s = bit ^ (t & (right if side else left)[:, level]), block
        total += s[:, 1] + t * last
        return total


def generate_comparison(
    cells: Any,
    levels: int,
    tag: bytes,
    rng: Randomness | int | None = None,
    *,
    compiled: bool | None = None,
) -> tuple[ComparisonKeys, ComparisonKeys]:
    """Make a pair of keys for each record.

    Parameters
    ----------
    cells, levels, tag, rng, compiled
        See :func:`noisewise.federated.fss.generate_point`.
    """
    places = checked_points(cells, levels, "cells")
    source, size = resolve(rng), places.size
    tables = [new_table("comparison", levels, size, server, tag) for server in (0, 1)]
    roots = source.uint64((2, size, 2))
    roots[..., 0] &= SEED_MASK
    identifiers = np.frombuffer(source.bytes(16 * size), "V16")
    seeds = np.empty((size, levels, 2), np.uint64)
    values = np.empty((size, levels), np.uint64)
    left, right = np.empty((2, size, levels), np.uint8)
    last = np.empty(size, np.uint64)
    if kernels.use(compiled):
        kernels.load().comparison_generate(places, levels, roots, seeds, values, left, right, last)
    else:
        _generate(places, levels, roots, seeds, values, left, right, last)
    seeds[..., 0] |= left
    for table, root in zip(tables, roots, strict=True):
        table["identifier"], table["root"], table["seeds"] = identifiers, root, seeds
        table["values"], table["last"], table["right"] = values, last[:, None], pack_bits(right)
    first, second = (ComparisonKeys(table, levels, server) for server, table in enumerate(tables))
    return first, second


def _signed(flip: Words, values: Words) -> Words:
    """Change the sign where `flip` is one."""
    return np.where(flip == 1, np.uint64(0) - values, values)


def _generate(
    places: Words,
    levels: int,
    roots: Words,
    seeds: Words,
    values: Words,
    left: Any,
    right: Any,
    last: Words,
) -> None:
    s = [roots[0].copy(), roots[1].copy()]
    t = [np.zeros(places.size, np.uint64), np.ones(places.size, np.uint64)]
    gap = np.zeros(places.size, np.uint64)
    for level in range(levels):
        bit = (places >> np.uint64(levels - 1 - level)) & ONE
        on_right = bit.astype(np.bool_)
        children = [(split(hash_seeds(LEFT, x)), split(hash_seeds(RIGHT, x))) for x in s]
        (l0, tl0), (r0, tr0) = children[0]
        (l1, tl1), (r1, tr1) = children[1]
        node = [hash_seeds(VALUE, x) for x in s]
        lost = [np.where(on_right, v[:, 0], v[:, 1]) for v in node]
        kept_value = [np.where(on_right, v[:, 1], v[:, 0]) for v in node]
        correction = np.where(on_right[:, None], l0 ^ l1, r0 ^ r1)
        # A threshold that leaves to the right of the record's path counts the record: that is
        # the side left behind where the record goes to the left.
        wanted = ONE - bit
        value = _signed(t[1], lost[1] - lost[0] - gap + wanted)
        gap = gap - kept_value[1] + kept_value[0] + _signed(t[1], value)
        correct_left, correct_right = tl0 ^ tl1 ^ bit ^ ONE, tr0 ^ tr1 ^ bit
        correct_kept = np.where(on_right, correct_right, correct_left)
        for server in (0, 1):
            (ls, lt), (rs, rt) = children[server]
            kept = np.where(on_right[:, None], rs, ls)
            kept_bit = np.where(on_right, rt, lt)
            s[server] = np.ascontiguousarray(kept ^ correction * t[server][:, None])
            t[server] = kept_bit ^ (t[server] & correct_kept)
        seeds[:, level], left[:, level], right[:, level] = correction, correct_left, correct_right
        values[:, level] = value
    # At the record itself the comparison x <= t holds.
    last[:] = _signed(t[1], s[1][:, 1] - s[0][:, 1] - gap + ONE)
