"""Smoothing: optimal against slow references, feasible exactly, the same with and without numba."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog, nnls

from noisewise.ecdf.smoothing import compiled_available, smooth_isotonic, smooth_tree
from noisewise.ecdf.smoothing.elimination import TreeSystem

VERSIONS = [False, True] if compiled_available() else [False]


def paths(points: int) -> np.ndarray:
    """Points x nodes: 1 where a node of the binary tree lies above a point."""
    height = max(points - 1, 0).bit_length()
    index = np.arange(points)
    blocks = [np.eye(1 << (height - level))[index >> level] for level in range(height + 1)]
    return np.concatenate(blocks, axis=1)


def inequalities(noisy: np.ndarray, total: float | None) -> tuple[np.ndarray, np.ndarray]:
    """G g <= h for a monotone curve g with limits, in terms of the corrections of the curve."""
    points = noisy.size
    rows = [-np.eye(points)[0]]
    limits = [noisy[0]]
    for i in range(points - 1):
        rows.append(np.eye(points)[i] - np.eye(points)[i + 1])
        limits.append(noisy[i + 1] - noisy[i])
    if total is not None:
        rows.append(np.eye(points)[-1])
        limits.append(total - noisy[-1])
    return np.array(rows), np.array(limits)


def least_squares_objective(noisy: np.ndarray, total: float | None) -> float:
    """Least sum of squares of node corrections, by least-distance programming (NNLS)."""
    matrix, limits = inequalities(noisy, total)
    matrix = -(matrix @ paths(noisy.size))
    # min |nu| subject to matrix nu >= -limits (Lawson and Hanson, chapter 23).
    stacked = np.vstack([matrix.T, -limits])
    target = np.zeros(stacked.shape[0])
    target[-1] = 1.0
    weights, norm = nnls(stacked, target, maxiter=20000)
    residual = stacked @ weights - target
    if norm < 1e-12:
        raise AssertionError("infeasible")
    corrections = -residual[:-1] / residual[-1]
    return float(corrections @ corrections)


def least_absolute_objective(noisy: np.ndarray, total: float | None) -> float:
    matrix, limits = inequalities(noisy, total)
    above = paths(noisy.size)
    both = matrix @ np.hstack([above, -above])
    return float(linprog(np.ones(both.shape[1]), A_ub=both, b_ub=limits, method="highs").fun)


def cost(curve: np.ndarray, noisy: np.ndarray, norm: int) -> float:
    """Least cost of node corrections that lead from `noisy` to `curve`."""
    above = paths(noisy.size)
    if norm == 2:
        corrections = np.linalg.lstsq(above, curve - noisy, rcond=None)[0]
        return float(corrections @ corrections)
    both = np.hstack([above, -above])
    found = linprog(np.ones(both.shape[1]), A_eq=both, b_eq=curve - noisy, method="highs")
    return float(found.fun)


def noisy_curve(points: int, seed: int, scale: float) -> tuple[np.ndarray, float]:
    generator = np.random.default_rng(seed)
    counts = np.cumsum(generator.poisson(2.0, points)).astype(float)
    above = paths(points)
    return counts + above @ generator.laplace(0, scale, above.shape[1]), float(counts[-1] + 1)


@pytest.mark.parametrize("compiled", VERSIONS)
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("points", [2, 3, 4, 7, 8, 13, 32, 50])
def test_least_squares_reaches_the_optimum_of_a_dense_reference(
    points: int, limited: bool, compiled: bool
) -> None:
    for seed in range(3):
        noisy, total = noisy_curve(points, seed, 4.0)
        limit = total if limited else None
        best = least_squares_objective(noisy, limit)
        curve = smooth_tree(noisy, limit, 2, compiled=compiled)
        assert cost(curve, noisy, 2) == pytest.approx(best, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("compiled", VERSIONS)
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("points", [2, 3, 4, 7, 8, 13, 32, 50])
def test_least_absolute_reaches_the_optimum_of_highs(
    points: int, limited: bool, compiled: bool
) -> None:
    for seed in range(3):
        noisy, total = noisy_curve(points, seed, 4.0)
        limit = total if limited else None
        best = least_absolute_objective(noisy, limit)
        curve = smooth_tree(noisy, limit, 1, compiled=compiled)
        assert cost(curve, noisy, 1) == pytest.approx(best, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("height", [5, 8])
def test_the_objective_is_that_of_clarabel(norm: int, height: int) -> None:
    pytest.importorskip("clarabel", reason="a peer: pip install clarabel")
    from benchmarks.ecdf_smoothing import problem, with_clarabel

    noisy, total = problem(height, seed=height)
    ours, peers = smooth_tree(noisy, total, norm), with_clarabel(noisy, total, norm)
    assert cost(ours, noisy, norm) == pytest.approx(cost(peers, noisy, norm), rel=1e-5)


def test_the_references_notice_a_worse_curve() -> None:
    noisy, total = noisy_curve(32, 0, 4.0)
    worse = smooth_isotonic(noisy, total)
    assert cost(worse, noisy, 2) > 1.001 * least_squares_objective(noisy, total)
    assert cost(worse, noisy, 1) > 1.001 * least_absolute_objective(noisy, total)


@pytest.mark.parametrize("norm", [1, 2])
@settings(deadline=None, max_examples=40)
@given(points=st.integers(1, 300), seed=st.integers(0, 10**6), exponent=st.floats(-2, 5))
def test_every_curve_is_monotone_and_within_its_limits_exactly(
    norm: int, points: int, seed: int, exponent: float
) -> None:
    noisy, total = noisy_curve(points, seed, 10.0**exponent)
    for limit in (total, None):
        curve = smooth_tree(noisy, limit, norm)
        assert curve.shape == noisy.shape
        assert np.isfinite(curve).all()
        assert np.all(np.diff(curve) >= 0)
        assert curve[0] >= 0
        if limit is not None:
            assert curve[-1] <= limit


@pytest.mark.parametrize("norm", [1, 2])
def test_a_curve_that_is_already_monotone_is_left_alone(norm: int) -> None:
    curve = np.cumsum(np.random.default_rng(0).uniform(1, 3, 100))
    smoothed = smooth_tree(curve, float(curve[-1] + 1), norm)
    assert np.abs(smoothed - curve).max() < 1e-3


@pytest.mark.skipif(not compiled_available(), reason="numba is not installed")
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("points", [2, 3, 100, 1023, 1024])
def test_compiled_and_plain_methods_reach_the_same_cost(norm: int, points: int) -> None:
    noisy, total = noisy_curve(points, 1, 8.0)
    fast = smooth_tree(noisy, total, norm, compiled=True)
    slow = smooth_tree(noisy, total, norm, compiled=False)
    if norm == 2:
        assert np.abs(fast - slow).max() < 1e-6
    else:
        assert cost(fast, noisy, 1) == pytest.approx(cost(slow, noisy, 1), rel=1e-6, abs=1e-6)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_elimination_solves_the_dense_system(height: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    leaves = 1 << height
    nodes = 2 * leaves - 1
    edges = 10 ** generator.uniform(-6, 6, nodes)
    chain = 10 ** generator.uniform(-6, 6, leaves + 1)
    dense = np.zeros((nodes, nodes))
    start, count = 0, leaves
    for _ in range(height):
        for j in range(count):
            i, parent = start + j, start + count + j // 2
            dense[[i, parent], [i, parent]] += edges[i]
            dense[[i, parent], [parent, i]] -= edges[i]
        start, count = start + count, count // 2
    dense[-1, -1] += edges[-1]
    dense[0, 0] += chain[0]
    dense[leaves - 1, leaves - 1] += chain[leaves]
    for i in range(1, leaves):
        dense[[i - 1, i], [i - 1, i]] += chain[i]
        dense[[i - 1, i], [i, i - 1]] -= chain[i]
    right = generator.normal(size=nodes)
    system = TreeSystem(height)
    system.factor(edges, chain)
    solution = system.solve(right)
    scale = np.abs(dense) @ np.abs(solution) + np.abs(right)
    assert np.abs((dense @ solution - right) / scale).max() < 1e-10


@settings(deadline=None)
@given(st.integers(1, 25), st.integers(0, 1000), st.booleans())
def test_isotonic_regression_is_the_minimax_of_means(
    points: int, seed: int, weighted: bool
) -> None:
    generator = np.random.default_rng(seed)
    noisy = np.cumsum(generator.normal(1, 3, points))
    variance = generator.uniform(0.1, 10, points) if weighted else np.ones(points)
    weights = 1 / variance

    def mean(a: int, b: int) -> float:
        return float((noisy[a : b + 1] @ weights[a : b + 1]) / weights[a : b + 1].sum())

    expected = [
        max(min(mean(a, b) for b in range(i, points)) for a in range(i + 1)) for i in range(points)
    ]
    total = float(max(noisy.max() * 0.8, 1.0))
    curve = smooth_isotonic(noisy, total, variance if weighted else None)
    assert np.allclose(curve, np.clip(expected, 0, total), atol=1e-9)
    assert np.all(np.diff(curve) >= 0)
