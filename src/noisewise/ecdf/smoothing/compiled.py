"""The elimination of :mod:`noisewise.ecdf.smoothing.elimination`, compiled with numba.

The same formulas in the same order, one node at a time, so that a merge finds all it
needs in one cache line. Imported only if numba is installed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["CompiledTreeSystem"]


class CompiledTreeSystem:
    """Factor and solve, one node at a time.

    Parameters
    ----------
    height : int
        Height of the tree, at least 1.
    """

    def __init__(self, height: int) -> None:
        self.height = height
        inner = (1 << height) - 1
        self._reduced = np.empty((inner, 3))
        self._kept = np.empty((inner, 14))
        self._rest = np.empty((inner, 3))

    def factor(self, edges: FloatArray, chain: FloatArray) -> None:
        """Eliminate; `edges` and `chain` are kept by reference until the next call."""
        self._edges, self._chain = edges, chain
        _factor(self.height, edges, chain, self._reduced, self._kept)

    def solve(self, right_side: FloatArray) -> FloatArray:
        """Return the solution for one right-hand side of 2N - 1 numbers."""
        x = np.empty_like(right_side)
        _solve(
            self.height, self._edges, self._chain[0], self._chain[-1], self._reduced, self._kept,
            right_side, self._rest, x,
        )  # fmt: skip
        return x


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _factor(height, edges, chain, reduced, kept):  # type: ignore[no-untyped-def]
    """Eliminate bottom-up; fills `reduced` and `kept`."""
    leaves = 1 << height
    for j in range(leaves >> 1):
        reduced[j, 0] = edges[2 * j]
        reduced[j, 1] = edges[2 * j + 1]
        reduced[j, 2] = chain[2 * j + 1]
    low = 0
    node = leaves
    below = leaves >> 1
    for level in range(2, height + 1):
        here = below >> 1
        span = 1 << (level - 1)
        for j in range(here):
            left = low + 2 * j
            right = left + 1
            out = low + below + j
            up_left = edges[node + 2 * j]
            a1 = reduced[left, 0]
            b1 = reduced[left, 1]
            s1 = 1 / (up_left + a1 + b1)
            pa = up_left * a1 * s1
            px = up_left * b1 * s1
            ax = reduced[left, 2] + a1 * b1 * s1
            up_right = edges[node + 2 * j + 1]
            a2 = reduced[right, 0]
            b2 = reduced[right, 1]
            s2 = 1 / (up_right + a2 + b2)
            py = up_right * a2 * s2
            pb = up_right * b2 * s2
            yb = reduced[right, 2] + a2 * b2 * s2
            middle = chain[(2 * j + 1) * span]
            sx = 1 / (px + ax + middle)
            pa += px * ax * sx
            yp = py + px * middle * sx
            ya = ax * middle * sx
            sy = 1 / (yp + yb + ya)
            reduced[out, 0] = pa + yp * ya * sy
            reduced[out, 1] = pb + yp * yb * sy
            reduced[out, 2] = ya * yb * sy
            kept[out, 0] = s1
            kept[out, 1] = a1
            kept[out, 2] = b1
            kept[out, 3] = s2
            kept[out, 4] = a2
            kept[out, 5] = b2
            kept[out, 6] = sx
            kept[out, 7] = px
            kept[out, 8] = ax
            kept[out, 9] = middle
            kept[out, 10] = sy
            kept[out, 11] = yp
            kept[out, 12] = yb
            kept[out, 13] = ya
        low += below
        node += below
        below = here


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _solve(height, edges, first, last, reduced, kept, b, rest, x):  # type: ignore[no-untyped-def]
    """Solve for one right-hand side `b` into `x`."""
    leaves = 1 << height
    for j in range(leaves >> 1):
        rest[j, 0] = b[leaves + j]
        rest[j, 1] = b[2 * j]
        rest[j, 2] = b[2 * j + 1]
    low = 0
    node = leaves
    below = leaves >> 1
    for _ in range(2, height + 1):
        here = below >> 1
        for j in range(here):
            left = low + 2 * j
            right = left + 1
            out = low + below + j
            t = rest[left, 0] * kept[out, 0]
            parent = b[node + below + j] + edges[node + 2 * j] * t
            outer_left = rest[left, 1] + kept[out, 1] * t
            inner_left = rest[left, 2] + kept[out, 2] * t
            t = rest[right, 0] * kept[out, 3]
            parent += edges[node + 2 * j + 1] * t
            inner_right = rest[right, 1] + kept[out, 4] * t
            outer_right = rest[right, 2] + kept[out, 5] * t
            t = inner_left * kept[out, 6]
            parent += kept[out, 7] * t
            outer_left += kept[out, 8] * t
            inner_right += kept[out, 9] * t
            rest[left, 2] = inner_left
            rest[right, 1] = inner_right
            t = inner_right * kept[out, 10]
            rest[out, 0] = parent + kept[out, 11] * t
            rest[out, 1] = outer_left + kept[out, 13] * t
            rest[out, 2] = outer_right + kept[out, 12] * t
        low += below
        node += below
        below = here
    ground = edges[2 * leaves - 2]
    ga = reduced[low, 0]
    gb = reduced[low, 1]
    gab = reduced[low, 2]
    s0 = 1 / (ground + ga + gb)
    da = first + ga * ground * s0
    db = last + gb * ground * s0
    between = gab + ga * gb * s0
    y0 = rest[low, 0]
    y1 = rest[low, 1] + ga * s0 * y0
    y2 = rest[low, 2] + gb * s0 * y0
    sa = 1 / (da + between)
    v2 = (y2 + between * sa * y1) / (db + between * da * sa)
    v1 = (y1 + between * v2) * sa
    x[2 * leaves - 2] = (y0 + ga * v1 + gb * v2) * s0
    x[0] = v1
    x[leaves - 1] = v2
    here = 1
    low = leaves - 2
    node = 2 * leaves - 2
    for level in range(height, 1, -1):
        below = here << 1
        child = low - below
        child_node = node - below
        span = 1 << level
        for j in range(here):
            out = low + j
            left = child + 2 * j
            right = left + 1
            parent = x[node + j]
            a = x[j * span]
            z = x[(j + 1) * span - 1]
            middle = j * span + (span >> 1)
            inner_right = (
                rest[right, 1] + kept[out, 11] * parent + kept[out, 12] * z + kept[out, 13] * a
            ) * kept[out, 10]
            inner_left = (
                rest[left, 2]
                + kept[out, 7] * parent
                + kept[out, 8] * a
                + kept[out, 9] * inner_right
            ) * kept[out, 6]
            x[middle - 1] = inner_left
            x[middle] = inner_right
            x[child_node + 2 * j] = (
                rest[left, 0]
                + edges[child_node + 2 * j] * parent
                + kept[out, 1] * a
                + kept[out, 2] * inner_left
            ) * kept[out, 0]
            x[child_node + 2 * j + 1] = (
                rest[right, 0]
                + edges[child_node + 2 * j + 1] * parent
                + kept[out, 4] * inner_right
                + kept[out, 5] * z
            ) * kept[out, 3]
        here = below
        low = child
        node = child_node
