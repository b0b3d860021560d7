"""Time of smoothing (Eq. 6.3.6) against general solvers, in one interleaved run.

    python benchmarks/ecdf_smoothing.py --heights 10 15 --repeats 3
    python benchmarks/ecdf_smoothing.py --heights 20 --alone

Needs ``pip install clarabel cvxopt`` for the comparison. Every solver gets the same problem
in the sparse form that suits it best (cumulative node sums for Clarabel; for CVXOPT also the
thesis's own path form) and its default tolerances. Printed: the median time, the ratio to
ours, the objective reached and the largest violation of a constraint.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sparse

from noisewise.ecdf.smoothing import smooth_tree


def problem(height: int, seed: int = 0) -> tuple[np.ndarray, float]:
    """Poisson(3) records in each bin, the thesis's tree noise at epsilon 0.5."""
    generator = np.random.default_rng(seed)
    leaves = 1 << height
    counts = np.cumsum(generator.poisson(3.0, leaves)).astype(float)
    noise = np.zeros(leaves)
    for level in range(height + 1):
        nodes = generator.laplace(0, height / 0.5, leaves >> level)
        noise += nodes[np.arange(leaves) >> level]
    return counts + noise, float(counts[-1])


def node_differences(height: int) -> sparse.csr_matrix:
    leaves = 1 << height
    starts = np.cumsum([0] + [leaves >> level for level in range(height + 1)])
    count = int(starts[-1])
    parent = np.full(count, -1)
    for level in range(height):
        inside = np.arange(leaves >> level)
        parent[starts[level] : starts[level + 1]] = starts[level + 1] + (inside >> 1)
    child = np.flatnonzero(parent >= 0)
    rows = np.concatenate([np.arange(count), child])
    columns = np.concatenate([np.arange(count), parent[child]])
    values = np.concatenate([np.ones(count), -np.ones(child.size)])
    return sparse.csr_matrix((values, (rows, columns)), (count, count))


def constraints(
    noisy: np.ndarray, total: float, nodes: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    leaves = noisy.size
    first = sparse.csr_matrix(([-1.0], ([0], [0])), (1, leaves))
    steps = sparse.diags([np.ones(leaves - 1), -np.ones(leaves - 1)], [0, 1], (leaves - 1, leaves))
    last = sparse.csr_matrix(([1.0], ([0], [leaves - 1])), (1, leaves))
    matrix = sparse.vstack([first, steps, last])
    padding = sparse.csr_matrix((leaves + 1, nodes - leaves))
    limits = np.concatenate([noisy[:1], np.diff(noisy), [total - noisy[-1]]])
    return sparse.hstack([matrix, padding]).tocsr(), limits


def with_clarabel(noisy: np.ndarray, total: float, norm: int) -> np.ndarray:
    import clarabel

    differences = node_differences(noisy.size.bit_length() - 1)
    nodes = differences.shape[0]
    matrix, limits = constraints(noisy, total, nodes)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    if norm == 2:
        quadratic = sparse.triu(2 * differences.T @ differences).tocsc()
        linear, cone = np.zeros(nodes), limits.size
        matrix = matrix.tocsc()
    else:
        one = sparse.identity(nodes)
        matrix = sparse.bmat([[matrix, None], [differences, -one], [-differences, -one]]).tocsc()
        limits = np.concatenate([limits, np.zeros(2 * nodes)])
        linear, cone = np.concatenate([np.zeros(nodes), np.ones(nodes)]), limits.size
        quadratic = sparse.csc_matrix((2 * nodes, 2 * nodes))
    cones = [clarabel.NonnegativeConeT(cone)]
    solution = clarabel.DefaultSolver(quadratic, linear, matrix, limits, cones, settings).solve()
    return noisy + np.array(solution.x)[: noisy.size]


def with_cvxopt(noisy: np.ndarray, total: float, norm: int) -> np.ndarray:
    from cvxopt import matrix as dense, solvers, spmatrix

    def convert(value: sparse.spmatrix) -> spmatrix:
        coo = value.tocoo()
        return spmatrix(coo.data.tolist(), coo.row.tolist(), coo.col.tolist(), coo.shape)

    solvers.options["show_progress"] = False
    differences = node_differences(noisy.size.bit_length() - 1)
    nodes = differences.shape[0]
    matrix, limits = constraints(noisy, total, nodes)
    if norm == 2:
        quadratic = convert(2 * differences.T @ differences)
        solution = solvers.qp(quadratic, dense(0.0, (nodes, 1)), convert(matrix), dense(limits))
    else:
        one = sparse.identity(nodes)
        matrix = sparse.bmat([[matrix, None], [differences, -one], [-differences, -one]])
        limits = np.concatenate([limits, np.zeros(2 * nodes)])
        linear = np.concatenate([np.zeros(nodes), np.ones(nodes)])
        solution = solvers.lp(dense(linear), convert(matrix), dense(limits))
    return noisy + np.array(solution["x"]).ravel()[: noisy.size]


def with_cvxopt_paths(noisy: np.ndarray, total: float, norm: int) -> np.ndarray:
    from cvxopt import matrix as dense, solvers, spmatrix

    solvers.options["show_progress"] = False
    leaves = noisy.size
    height = leaves.bit_length() - 1
    index, rows, columns, start = np.arange(leaves), [], [], 0
    for level in range(height + 1):
        rows.append(index)
        columns.append(start + (index >> level))
        start += leaves >> level
    ones = np.ones(leaves * (height + 1))
    paths = sparse.csr_matrix((ones, (np.concatenate(rows), np.concatenate(columns))))
    matrix, limits = constraints(noisy, total, leaves)
    matrix = (matrix @ paths).tocoo()
    nodes = paths.shape[1]
    if norm == 1:
        one = sparse.identity(nodes)
        matrix = sparse.bmat([[matrix, None], [one, -one], [-one, -one]]).tocoo()
        limits = np.concatenate([limits, np.zeros(2 * nodes)])
    data = (matrix.data.tolist(), matrix.row.tolist(), matrix.col.tolist(), matrix.shape)
    inequality = spmatrix(*data)
    if norm == 2:
        unit = spmatrix(1.0, range(nodes), range(nodes))
        solution = solvers.qp(unit, dense(0.0, (nodes, 1)), inequality, dense(limits))
    else:
        linear = np.concatenate([np.zeros(nodes), np.ones(nodes)])
        solution = solvers.lp(dense(linear), inequality, dense(limits))
    return noisy + paths @ np.array(solution["x"]).ravel()[:nodes]


def squares(curve: np.ndarray, noisy: np.ndarray) -> float:
    """Least sum of squares of node corrections that lead from `noisy` to `curve` (Haar basis)."""
    rest, total, size = curve - noisy, 0.0, 1
    scale = 1.0
    while rest.size > 1:
        size *= 2
        contrast = (rest[0::2] - rest[1::2]) * scale / np.sqrt(2)
        total += float((contrast**2).sum()) / (size - 1)
        rest = (rest[0::2] + rest[1::2]) / 2
        scale *= np.sqrt(2)
    return total + float((rest[0] * scale) ** 2) / (2 * size - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heights", type=int, nargs="+", default=[10, 15])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="only ours")
    arguments = parser.parse_args()
    solvers: dict[str, Callable[[np.ndarray, float, int], np.ndarray]] = {
        "noisewise": smooth_tree,
        "noisewise, without numba": lambda f, n, p: smooth_tree(f, n, p, compiled=False),
    }
    if not arguments.alone:
        solvers["Clarabel"] = with_clarabel
        solvers["CVXOPT"] = with_cvxopt
        solvers["CVXOPT, thesis's form"] = with_cvxopt_paths
    for norm in (2, 1):
        smooth_tree(*problem(4), norm)  # compile
        for height in arguments.heights:
            noisy, total = problem(height)
            times: dict[str, list[float]] = {name: [] for name in solvers}
            curves = {}
            for _ in range(arguments.repeats):
                for name, solver in solvers.items():
                    start = time.perf_counter()
                    curves[name] = solver(noisy, total, norm)
                    times[name].append(time.perf_counter() - start)
            ours = statistics.median(times["noisewise"])
            for name, values in times.items():
                curve, median = curves[name], statistics.median(values)
                violation = max(0.0, -np.diff(curve).min(), -curve[0], curve[-1] - total)
                print(
                    f"p={norm} N=2^{height} {name:26s} {median:8.3f} s  {median / ours:6.1f}x  "
                    f"squares {squares(curve, noisy):.6g}  violation {violation:.1e}",
                    flush=True,
                )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"largest memory of the process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
