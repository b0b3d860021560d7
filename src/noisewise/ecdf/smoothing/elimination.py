"""Linear systems of a binary tree with a chain through its leaves, solved in O(N).

The matrix is the weighted graph Laplacian of a complete binary tree (edge weights `edges`,
one from each node to its parent, the root's to ground) plus a chain through the leaves
(weights `chain`, N + 1 of them: ground to the first leaf, between neighbours, last leaf to
ground). These are the normal equations of the interior-point method for Eq. 6.3.6.

A subtree touches the rest only through its root and its two outer leaves. So subtrees are
merged bottom-up: of two siblings with parent p, the two roots and the two leaves that
meet in the middle are eliminated. Each elimination is a star-mesh transformation: a node with
conductances g_i to its neighbours is replaced by conductances g_i g_j / sum(g) between
them. No subtraction takes place, so that weights that differ by many orders of
magnitude, as they do towards the end of a linear program, lose no digits.

Nodes are numbered leaves first, then level by level, the root last.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["System", "TreeSystem"]


class System(Protocol):
    """Factors once and solves for several right-hand sides."""

    def factor(self, edges: FloatArray, chain: FloatArray) -> None:
        """Eliminate; both are kept by reference until the next call."""
        ...

    def solve(self, right_side: FloatArray) -> FloatArray:
        """Return the solution for one right-hand side."""
        ...


class TreeSystem:
    """Factor and solve with arrays, one level at a time.

    Parameters
    ----------
    height : int
        Height of the tree, at least 1.
    """

    def __init__(self, height: int) -> None:
        self.height = height
        self.leaves = 1 << height
        # Offset of each level of inner nodes within arrays of inner nodes; number of nodes.
        self._counts = [self.leaves >> level for level in range(height + 1)]
        inner = self.leaves - 1
        self._reduced = np.empty((3, inner))
        self._kept = np.empty((14, inner))
        self._rest = np.empty((3, inner))

    def factor(self, edges: FloatArray, chain: FloatArray) -> None:
        """Eliminate; `edges` and `chain` are kept by reference until the next call."""
        self._edges, self._chain = edges, chain
        leaves, half = self.leaves, self.leaves >> 1
        reduced, kept = self._reduced, self._kept
        reduced[0, :half] = edges[0:leaves:2]
        reduced[1, :half] = edges[1:leaves:2]
        reduced[2, :half] = chain[1:leaves:2]
        low, node = 0, leaves
        for level in range(2, self.height + 1):
            below, here = self._counts[level - 1], self._counts[level]
            span = 1 << (level - 1)
            left = reduced[:, low : low + below : 2]
            right = reduced[:, low + 1 : low + below : 2]
            out = slice(low + below, low + below + here)
            up_left = edges[node : node + below : 2]
            up_right = edges[node + 1 : node + below : 2]
            middle = chain[span : leaves : 2 * span]
            s1 = 1 / (up_left + left[0] + left[1])
            pa = up_left * left[0] * s1
            px = up_left * left[1] * s1
            ax = left[2] + left[0] * left[1] * s1
            s2 = 1 / (up_right + right[0] + right[1])
            py = up_right * right[0] * s2
            pb = up_right * right[1] * s2
            yb = right[2] + right[0] * right[1] * s2
            sx = 1 / (px + ax + middle)
            pa = pa + px * ax * sx
            yp = py + px * middle * sx
            ya = ax * middle * sx
            sy = 1 / (yp + yb + ya)
            reduced[0, out] = pa + yp * ya * sy
            reduced[1, out] = pb + yp * yb * sy
            reduced[2, out] = ya * yb * sy
            kept[:, out] = (
                s1, left[0], left[1], s2, right[0], right[1],
                sx, px, ax, middle, sy, yp, yb, ya,
            )  # fmt: skip
            low, node = low + below, node + below

    def solve(self, right_side: FloatArray) -> FloatArray:
        """Return the solution for one right-hand side of 2N - 1 numbers."""
        leaves, half = self.leaves, self.leaves >> 1
        rest, kept, edges, b = self._rest, self._kept, self._edges, right_side
        rest[0, :half] = b[leaves : leaves + half]
        rest[1, :half] = b[0:leaves:2]
        rest[2, :half] = b[1:leaves:2]
        low, node = 0, leaves
        for level in range(2, self.height + 1):
            below, here = self._counts[level - 1], self._counts[level]
            left, right = slice(low, low + below, 2), slice(low + 1, low + below, 2)
            out = slice(low + below, low + below + here)
            f = kept[:, out]
            t = rest[0, left] * f[0]
            parent = b[node + below : node + below + here] + edges[node : node + below : 2] * t
            outer_left = rest[1, left] + f[1] * t
            inner_left = rest[2, left] + f[2] * t
            t = rest[0, right] * f[3]
            parent = parent + edges[node + 1 : node + below : 2] * t
            inner_right = rest[1, right] + f[4] * t
            outer_right = rest[2, right] + f[5] * t
            t = inner_left * f[6]
            parent = parent + f[7] * t
            outer_left = outer_left + f[8] * t
            inner_right = inner_right + f[9] * t
            rest[2, left], rest[1, right] = inner_left, inner_right
            t = inner_right * f[10]
            rest[0, out] = parent + f[11] * t
            rest[1, out] = outer_left + f[13] * t
            rest[2, out] = outer_right + f[12] * t
            low, node = low + below, node + below
        x = np.empty(2 * leaves - 1)
        self._solve_top(x)
        self._back(x)
        return x

    def _solve_top(self, x: FloatArray) -> None:
        """Solve the last three unknowns: the root and the first and last leaf."""
        leaves = self.leaves
        ground, first, last = self._edges[-1], self._chain[0], self._chain[leaves]
        ga, gb, gab = self._reduced[:, leaves - 2]
        y0, y1, y2 = self._rest[:, leaves - 2]
        s0 = 1 / (ground + ga + gb)
        da, db = first + ga * ground * s0, last + gb * ground * s0
        between = gab + ga * gb * s0
        y1, y2 = y1 + ga * s0 * y0, y2 + gb * s0 * y0
        sa = 1 / (da + between)
        v2 = (y2 + between * sa * y1) / (db + between * da * sa)
        v1 = (y1 + between * v2) * sa
        x[2 * leaves - 2] = (y0 + ga * v1 + gb * v2) * s0
        x[0], x[leaves - 1] = v1, v2

    def _back(self, x: FloatArray) -> None:
        leaves, rest, kept, edges = self.leaves, self._rest, self._kept, self._edges
        low, node = leaves - 2, 2 * leaves - 2
        for level in range(self.height, 1, -1):
            here, below = self._counts[level], self._counts[level - 1]
            span = 1 << level
            child, child_node = low - below, node - below
            left, right = slice(child, low, 2), slice(child + 1, low, 2)
            f = kept[:, low : low + here]
            parent = x[node : node + here]
            first, last = x[0:leaves:span], x[span - 1 : leaves : span]
            inner_right = (rest[1, right] + f[11] * parent + f[12] * last + f[13] * first) * f[10]
            inner_left = (rest[2, left] + f[7] * parent + f[8] * first + f[9] * inner_right) * f[6]
            half = span >> 1
            x[half - 1 : leaves : span] = inner_left
            x[half:leaves:span] = inner_right
            up_left = edges[child_node:node:2]
            up_right = edges[child_node + 1 : node : 2]
            x[child_node:node:2] = (
                rest[0, left] + up_left * parent + f[1] * first + f[2] * inner_left
            ) * f[0]
            x[child_node + 1 : node : 2] = (
                rest[0, right] + up_right * parent + f[4] * inner_right + f[5] * last
            ) * f[3]
            low, node = child, child_node
