"""Eq. 6.3.6 of Barczewski (2025): the monotone curve whose tree noise is most plausible.

Given noisy prefix counts f, find node corrections nu of least 1-norm or 2-norm such that the
corrected curve ``g_i = f_i + sum of nu above leaf i`` is monotone with 0 <= g_1 and g_N <= n.
(The printed equation lacks |.| and a factor 1/n.) In cumulative sums s_v = sum of nu from the
root to v the problem is sparse: minimise sum_v |s_v - s_parent(v)|^p, subject to one
inequality for each pair of neighbouring leaves. Mehrotra's predictor-corrector method; every
linear system is that of :mod:`noisewise.ecdf.smoothing.elimination`, so that an iteration costs
O(N) time and memory.
"""

from __future__ import annotations

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.smoothing.elimination import System, TreeSystem

__all__ = ["compiled_available", "smooth_tree"]

MOST_ITERATIONS = 100
# Relative duality gap at which the methods stop.
GAP = 1e-9


def compiled_available() -> bool:
    """Whether numba is installed, which makes smoothing several times faster."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


class _Tree:
    """Differences along the edges of the tree and along the chain of leaves."""

    def __init__(self, height: int, rows: int) -> None:
        self.leaves = 1 << height
        self.nodes = 2 * self.leaves - 1
        self.rows = rows
        self.inner = min(rows, self.leaves)
        self.counts = [self.leaves >> level for level in range(height)]

    def edges(self, s: FloatArray) -> FloatArray:
        """s_v - s_parent(v); the root's parent is 0."""
        out: FloatArray = s.copy()
        start = 0
        for count in self.counts:
            above = s[start + count : start + count + count // 2]
            out[start : start + count] -= np.repeat(above, 2)
            start += count
        return out

    def edges_transposed(self, y: FloatArray) -> FloatArray:
        """Apply the transpose of :meth:`edges`."""
        out: FloatArray = y.copy()
        start = 0
        for count in self.counts:
            pair = y[start : start + count : 2] + y[start + 1 : start + count : 2]
            out[start + count : start + count + count // 2] -= pair
            start += count
        return out

    def chain(self, s: FloatArray) -> FloatArray:
        """Rows -s_0, s_i - s_(i+1), and s_last if there is an upper limit."""
        out = np.empty(self.rows)
        out[0] = -s[0]
        np.subtract(s[: self.inner - 1], s[1 : self.inner], out=out[1 : self.inner])
        if self.rows > self.leaves:
            out[-1] = s[self.leaves - 1]
        return out

    def chain_transposed(self, y: FloatArray) -> FloatArray:
        """Apply the transpose of :meth:`chain`."""
        out = np.zeros(self.nodes)
        between = y[1 : self.inner]
        out[0] = -y[0]
        out[: self.inner - 1] += between
        out[1 : self.inner] -= between
        if self.rows > self.leaves:
            out[self.leaves - 1] += y[-1]
        return out


def smooth_tree(
    noisy: FloatArray,
    total: float | None,
    norm: int = 2,
    *,
    compiled: bool | None = None,
) -> FloatArray:
    """Return the monotone curve of Eq. 6.3.6.

    Parameters
    ----------
    noisy : array
        Noisy prefix counts f.
    total : float or None
        Upper limit n of the curve; None if the number of records is not known.
    norm : {1, 2}
        Least sum of absolute values, or of squares, of the node corrections.
    compiled : bool, optional
        Whether to use numba; by default if it is installed.

    Returns
    -------
    array
        Monotone, not below 0 and not above `total`, exactly.
    """
    noisy = np.asarray(noisy, np.float64)
    points = noisy.size
    if points == 1:
        return np.clip(noisy, 0.0, np.inf if total is None else total)
    height = (points - 1).bit_length()
    leaves = 1 << height
    steps = np.diff(noisy)
    scale = max(float(np.maximum(-steps, 0.0).max()), -float(noisy[0]), 1.0)
    weights = np.ones(2 * leaves - 1)
    limits = np.concatenate([noisy[:1], steps])
    if total is not None:
        # Leaves beyond the last point carry the chain on to the limit. They have no noise to
        # explain, so their own corrections are free.
        weights[points:leaves] = 0.0
        beyond = np.diff(np.full(leaves - points + 1, total), prepend=noisy[-1])
        limits = np.concatenate([limits, beyond])
    limits = limits / scale
    method = _least_squares if norm == 2 else _least_absolute
    s = method(_Tree(height, limits.size), _system(height, compiled), weights, limits)
    curve = np.maximum.accumulate(noisy + scale * s[:points])
    return np.clip(curve, 0.0, np.inf if total is None else total)


def _system(height: int, compiled: bool | None) -> System:
    if compiled_available() if compiled is None else compiled:
        from noisewise.ecdf.smoothing.compiled import CompiledTreeSystem

        return CompiledTreeSystem(height)
    return TreeSystem(height)


def _step(values: FloatArray, changes: FloatArray) -> float:
    """Return the largest step <= 1 that keeps `values` positive, a little shortened."""
    with np.errstate(divide="ignore", invalid="ignore"):
        most = float(np.min(np.where(changes < 0, -values / changes, np.inf), initial=np.inf))
    return min(1.0, 0.995 * most)


def _chain_weights(tree: _Tree, ratio: FloatArray) -> FloatArray:
    return np.append(ratio, np.zeros(tree.leaves + 1 - tree.rows))


def _least_squares(
    tree: _Tree, system: System, weights: FloatArray, limits: FloatArray
) -> FloatArray:
    """Minimise half the weighted sum of squared edge differences, chain(s) <= limits."""
    s = np.zeros(tree.nodes)
    slack, dual = np.maximum(limits, 1.0), np.ones(tree.rows)
    size = 1.0 + float(np.abs(limits).max())
    for _ in range(MOST_ITERATIONS):
        differences = tree.edges(s)
        primal = tree.chain(s) + slack - limits
        stationary = tree.edges_transposed(weights * differences) + tree.chain_transposed(dual)
        gap = float(slack @ dual)
        objective = 0.5 * float(weights @ differences**2)
        residual = max(float(np.abs(primal).max()), float(np.abs(stationary).max()))
        if gap <= GAP * max(1.0, objective) and residual <= 1e-9 * size:
            break
        system.factor(weights, _chain_weights(tree, dual / slack))

        def direction(
            target: FloatArray,
            slack: FloatArray = slack,
            dual: FloatArray = dual,
            primal: FloatArray = primal,
            stationary: FloatArray = stationary,
        ) -> tuple[FloatArray, FloatArray, FloatArray]:
            right = -stationary - tree.chain_transposed((target + dual * primal) / slack)
            change = system.solve(right)
            slack_change = -primal - tree.chain(change)
            return change, slack_change, (target - dual * slack_change) / slack

        _, slack_change, dual_change = direction(-slack * dual)
        after = (slack + _step(slack, slack_change) * slack_change) @ (
            dual + _step(dual, dual_change) * dual_change
        )
        centre = gap / tree.rows * (float(after) / gap) ** 3
        change, slack_change, dual_change = direction(
            centre - slack * dual - slack_change * dual_change
        )
        length = min(_step(slack, slack_change), _step(dual, dual_change))
        s = s + length * change
        slack = slack + length * slack_change
        dual = dual + length * dual_change
    return s


def _least_absolute(
    tree: _Tree, system: System, weights: FloatArray, limits: FloatArray
) -> FloatArray:
    """Minimise the weighted sum of absolute edge differences, chain(s) <= limits.

    Differences of positive weight are written as up - down with up, down >= 0; their
    multipliers y lie between -1 and 1, at distances `low` and `high` from the ends.
    """
    free = weights == 0.0
    held = ~free
    count = int(held.sum())
    s = np.zeros(tree.nodes)
    slack, dual = np.maximum(limits, 1.0), np.ones(tree.rows)
    size = 1.0 + float(np.abs(limits).max())
    up, down, y = np.ones(count), np.ones(count), np.zeros(count)
    high, low = np.ones(count), np.ones(count)
    pairs = tree.rows + 2 * count
    edges = np.zeros(tree.nodes)
    whole = np.zeros(tree.nodes)

    def transposed(values: FloatArray) -> FloatArray:
        whole[held] = values
        return tree.edges_transposed(whole)

    for _ in range(MOST_ITERATIONS):
        split = tree.edges(s)[held] - up + down
        primal = tree.chain(s) + slack - limits
        stationary = transposed(y) + tree.chain_transposed(dual)
        over, under = 1 - y - high, 1 + y - low
        gap = float(slack @ dual + up @ high + down @ low)
        objective = float(up.sum() + down.sum())
        residual = max(float(np.abs(part).max()) for part in (primal, split, stationary))
        if gap <= GAP * max(1.0, objective) and residual <= 1e-8 * size:
            break
        conductance = 1 / (up / high + down / low)
        edges[held] = conductance
        system.factor(edges, _chain_weights(tree, dual / slack))

        def direction(
            slack_target: FloatArray,
            up_target: FloatArray,
            down_target: FloatArray,
            state: tuple[FloatArray, ...] = (slack, dual, up, down, high, low),
            rest: tuple[FloatArray, ...] = (primal, stationary, split, over, under),
            conductance: FloatArray = conductance,
        ) -> tuple[FloatArray, ...]:
            slack, dual, up, down, high, low = state
            primal, stationary, split, over, under = rest
            shift = (up_target - up * over) / high - (down_target - down * under) / low - split
            right = -stationary - tree.chain_transposed((slack_target + dual * primal) / slack)
            change = system.solve(right + transposed(conductance * shift))
            y_change = conductance * (tree.edges(change)[held] - shift)
            slack_change = -primal - tree.chain(change)
            high_change, low_change = over - y_change, under + y_change
            return (
                change,
                y_change,
                slack_change,
                (up_target - up * high_change) / high,
                (down_target - down * low_change) / low,
                (slack_target - dual * slack_change) / slack,
                high_change,
                low_change,
            )

        _, _, dz, du, dw, dl, dh, dg = direction(-slack * dual, -up * high, -down * low)
        forward = min(_step(slack, dz), _step(up, du), _step(down, dw))
        backward = min(_step(dual, dl), _step(high, dh), _step(low, dg))
        after = (slack + forward * dz) @ (dual + backward * dl)
        after += (up + forward * du) @ (high + backward * dh)
        after += (down + forward * dw) @ (low + backward * dg)
        centre = gap / pairs * (float(after) / gap) ** 3
        ds, dy, dz, du, dw, dl, dh, dg = direction(
            centre - slack * dual - dz * dl,
            centre - up * high - du * dh,
            centre - down * low - dw * dg,
        )
        forward = min(_step(slack, dz), _step(up, du), _step(down, dw))
        backward = min(_step(dual, dl), _step(high, dh), _step(low, dg))
        s, slack = s + forward * ds, slack + forward * dz
        up, down = up + forward * du, down + forward * dw
        dual, y = dual + backward * dl, y + backward * dy
        high, low = high + backward * dh, low + backward * dg
    return s
