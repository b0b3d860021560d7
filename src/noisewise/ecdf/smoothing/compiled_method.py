"""The interior-point methods of :mod:`noisewise.ecdf.smoothing.interior_point`, compiled.

The same iterations, with all vector operations of a step fused into single loops. Imported
only if numba is installed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.smoothing.compiled import factor, solve

__all__ = ["least_absolute", "least_squares", "solve_tree"]

_SHORTEN = 0.995


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _edges(height, s, out):  # type: ignore[no-untyped-def]
    start = 0
    count = 1 << height
    for _ in range(height):
        above = start + count
        for j in range(count):
            out[start + j] = s[start + j] - s[above + (j >> 1)]
        start = above
        count >>= 1
    out[start] = s[start]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _edges_transposed(height, y, out):  # type: ignore[no-untyped-def]
    start = 0
    count = 1 << height
    for j in range(count):
        out[j] = y[j]
    for _ in range(height):
        above = start + count
        for j in range(count >> 1):
            out[above + j] = y[above + j] - y[start + 2 * j] - y[start + 2 * j + 1]
        start = above
        count >>= 1


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _add_chain_transposed(leaves, rows, y, sign, out):  # type: ignore[no-untyped-def]
    out[0] -= sign * y[0]
    for i in range(1, min(rows, leaves)):
        out[i - 1] += sign * y[i]
        out[i] -= sign * y[i]
    if rows > leaves:
        out[leaves - 1] += sign * y[leaves]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _chain_row(leaves, s, i):  # type: ignore[no-untyped-def]
    if i == 0:
        return -s[0]
    if i == leaves:
        return s[leaves - 1]
    return s[i - 1] - s[i]


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _shortest(step, value, change):  # type: ignore[no-untyped-def]
    # The comparison without division is true for few values, the division rarely needed.
    if -_SHORTEN * value > step * change:
        return -_SHORTEN * value / change
    return step


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _residuals(leaves, rows, s, slack, dual, limits, primal, ratio):  # type: ignore[no-untyped-def]
    gap = 0.0
    worst = 0.0
    for i in range(rows):
        primal[i] = _chain_row(leaves, s, i) + slack[i] - limits[i]
        gap += slack[i] * dual[i]
        ratio[i] = dual[i] / slack[i]
        worst = max(worst, abs(primal[i]))
    return gap, worst


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def least_squares(height, weights, limits, most, tolerance):  # type: ignore[no-untyped-def]
    """Minimise half the weighted sum of squared edge differences, chain(s) <= limits."""
    leaves = 1 << height
    nodes = 2 * leaves - 1
    rows = limits.size
    reduced, kept = np.empty((leaves - 1, 3)), np.empty((leaves - 1, 14))
    rest, change = np.empty((leaves - 1, 3)), np.empty(nodes)
    s, differences, stationary = np.zeros(nodes), np.empty(nodes), np.empty(nodes)
    right = np.empty(nodes)
    slack, dual, primal = np.maximum(limits, 1.0), np.ones(rows), np.empty(rows)
    target, work, ratio = np.empty(rows), np.empty(rows), np.zeros(leaves + 1)
    d_slack, d_dual = np.empty(rows), np.empty(rows)
    size = 1.0 + np.abs(limits).max()
    for _ in range(most):
        _edges(height, s, differences)
        objective = 0.0
        for v in range(nodes):
            weighted = weights[v] * differences[v]
            objective += 0.5 * weighted * differences[v]
            differences[v] = weighted
        _edges_transposed(height, differences, stationary)
        _add_chain_transposed(leaves, rows, dual, 1.0, stationary)
        gap, worst = _residuals(leaves, rows, s, slack, dual, limits, primal, ratio)
        for v in range(nodes):
            worst = max(worst, abs(stationary[v]))
        if gap <= tolerance * max(1.0, objective) and worst <= 1e-9 * size:
            break
        factor(height, weights, ratio, reduced, kept)
        length = 1.0
        for corrector in range(2):
            if corrector == 0:
                for i in range(rows):
                    target[i] = -slack[i] * dual[i]
            else:
                after = 0.0
                one, two = 1.0, 1.0
                for i in range(rows):
                    one = _shortest(one, slack[i], d_slack[i])
                    two = _shortest(two, dual[i], d_dual[i])
                for i in range(rows):
                    after += (slack[i] + one * d_slack[i]) * (dual[i] + two * d_dual[i])
                centre = gap / rows * (after / gap) ** 3
                for i in range(rows):
                    target[i] = centre - slack[i] * dual[i] - d_slack[i] * d_dual[i]
            for i in range(rows):
                work[i] = (target[i] + dual[i] * primal[i]) / slack[i]
            for v in range(nodes):
                right[v] = -stationary[v]
            _add_chain_transposed(leaves, rows, work, -1.0, right)
            solve(height, weights, ratio[0], ratio[leaves], reduced, kept, right, rest, change)
            for i in range(rows):
                d_slack[i] = -primal[i] - _chain_row(leaves, change, i)
                d_dual[i] = (target[i] - dual[i] * d_slack[i]) / slack[i]
        for i in range(rows):
            length = _shortest(length, slack[i], d_slack[i])
            length = _shortest(length, dual[i], d_dual[i])
        for v in range(nodes):
            s[v] += length * change[v]
        for i in range(rows):
            slack[i] += length * d_slack[i]
            dual[i] += length * d_dual[i]
    return s


@njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def least_absolute(height, weights, limits, most, tolerance):  # type: ignore[no-untyped-def]
    """Minimise the sum of absolute edge differences of positive weight, chain(s) <= limits."""
    leaves = 1 << height
    nodes = 2 * leaves - 1
    rows = limits.size
    reduced, kept = np.empty((leaves - 1, 3)), np.empty((leaves - 1, 14))
    rest, change = np.empty((leaves - 1, 3)), np.empty(nodes)
    s, split, stationary = np.zeros(nodes), np.empty(nodes), np.empty(nodes)
    right, shift, edges, work_nodes = (
        np.empty(nodes),
        np.empty(nodes),
        np.zeros(nodes),
        np.empty(nodes),
    )
    slack, dual, primal = np.maximum(limits, 1.0), np.ones(rows), np.empty(rows)
    target, work, ratio = np.empty(rows), np.empty(rows), np.zeros(leaves + 1)
    d_slack, d_dual = np.empty(rows), np.empty(rows)
    size = 1.0 + np.abs(limits).max()
    up, down, y = np.ones(nodes), np.ones(nodes), np.zeros(nodes)
    high, low = np.ones(nodes), np.ones(nodes)
    d_up, d_down, d_y = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)
    d_high, d_low = np.zeros(nodes), np.zeros(nodes)
    held = 0
    for v in range(nodes):
        if weights[v] > 0:
            held += 1
    pairs = rows + 2 * held
    for _ in range(most):
        _edges(height, s, split)
        _edges_transposed(height, y, stationary)
        _add_chain_transposed(leaves, rows, dual, 1.0, stationary)
        gap, worst = _residuals(leaves, rows, s, slack, dual, limits, primal, ratio)
        objective = 0.0
        for v in range(nodes):
            worst = max(worst, abs(stationary[v]))
            if weights[v] > 0:
                split[v] += down[v] - up[v]
                worst = max(worst, abs(split[v]))
                gap += up[v] * high[v] + down[v] * low[v]
                objective += up[v] + down[v]
                edges[v] = 1 / (up[v] / high[v] + down[v] / low[v])
        if gap <= tolerance * max(1.0, objective) and worst <= 1e-8 * size:
            break
        factor(height, edges, ratio, reduced, kept)
        centre = 0.0
        forward, backward = 1.0, 1.0
        for corrector in range(2):
            if corrector == 1:
                after = 0.0
                for i in range(rows):
                    after += (slack[i] + forward * d_slack[i]) * (dual[i] + backward * d_dual[i])
                for v in range(nodes):
                    if weights[v] > 0:
                        after += (up[v] + forward * d_up[v]) * (high[v] + backward * d_high[v])
                        after += (down[v] + forward * d_down[v]) * (low[v] + backward * d_low[v])
                centre = gap / pairs * (after / gap) ** 3
            # In the first pass all changes are zero, and so is the centre.
            for i in range(rows):
                second = d_slack[i] * d_dual[i] if corrector == 1 else 0.0
                target[i] = centre - slack[i] * dual[i] - second
                work[i] = (target[i] + dual[i] * primal[i]) / slack[i]
            for v in range(nodes):
                work_nodes[v] = 0.0
                if weights[v] > 0:
                    up_target = centre - up[v] * high[v] - d_up[v] * d_high[v] * corrector
                    down_target = centre - down[v] * low[v] - d_down[v] * d_low[v] * corrector
                    over, under = 1 - y[v] - high[v], 1 + y[v] - low[v]
                    d_up[v], d_down[v] = up_target, down_target
                    shift[v] = (
                        (up_target - up[v] * over) / high[v]
                        - (down_target - down[v] * under) / low[v]
                        - split[v]
                    )
                    work_nodes[v] = edges[v] * shift[v]
            _edges_transposed(height, work_nodes, right)
            for v in range(nodes):
                right[v] -= stationary[v]
            _add_chain_transposed(leaves, rows, work, -1.0, right)
            solve(height, edges, ratio[0], ratio[leaves], reduced, kept, right, rest, change)
            _edges(height, change, work_nodes)
            forward, backward = 1.0, 1.0
            for v in range(nodes):
                if weights[v] > 0:
                    d_y[v] = edges[v] * (work_nodes[v] - shift[v])
                    d_high[v] = 1 - y[v] - high[v] - d_y[v]
                    d_low[v] = 1 + y[v] - low[v] + d_y[v]
                    d_up[v] = (d_up[v] - up[v] * d_high[v]) / high[v]
                    d_down[v] = (d_down[v] - down[v] * d_low[v]) / low[v]
                    forward = _shortest(forward, up[v], d_up[v])
                    forward = _shortest(forward, down[v], d_down[v])
                    backward = _shortest(backward, high[v], d_high[v])
                    backward = _shortest(backward, low[v], d_low[v])
            for i in range(rows):
                d_slack[i] = -primal[i] - _chain_row(leaves, change, i)
                d_dual[i] = (target[i] - dual[i] * d_slack[i]) / slack[i]
                forward = _shortest(forward, slack[i], d_slack[i])
                backward = _shortest(backward, dual[i], d_dual[i])
        for v in range(nodes):
            s[v] += forward * change[v]
            if weights[v] > 0:
                up[v] += forward * d_up[v]
                down[v] += forward * d_down[v]
                y[v] += backward * d_y[v]
                high[v] += backward * d_high[v]
                low[v] += backward * d_low[v]
        for i in range(rows):
            slack[i] += forward * d_slack[i]
            dual[i] += backward * d_dual[i]
    return s


def solve_tree(
    norm: int, height: int, weights: FloatArray, limits: FloatArray, most: int, tolerance: float
) -> FloatArray:
    """Run the method of this norm."""
    method = least_squares if norm == 2 else least_absolute
    return np.asarray(method(height, weights, limits, most, tolerance))
