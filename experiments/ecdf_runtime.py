"""Time of smoothing against N (Figure 6.6.7): ``python ecdf_runtime.py``.

Eq. 6.3.6 with p = 1 and p = 2: ours with and without numba, Clarabel, and CVXOPT in the form that
suits it best and in the thesis's own (one variable for each node, one row for each path). Needs
``pip install clarabel cvxopt``; without them only ours is drawn. Every point is the median
processor time over different noise, the solvers in turns; a solver is not asked again at
larger N once a run took longer than --patience seconds. Writes docs/images/ecdf_runtime.png and
.csv.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from ecdf_tables import IMAGES, Parts, add_seconds, save_table

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import ecdf_smoothing as peers

from noisewise.ecdf.smoothing import smooth_tree

Solver = Callable[[np.ndarray, float, int], np.ndarray]


def solvers() -> dict[str, Solver]:
    found: dict[str, Solver] = {
        "noisewise": smooth_tree,
        "noisewise, without numba": lambda f, n, p: smooth_tree(f, n, p, compiled=False),
    }
    if importlib.util.find_spec("clarabel"):
        found["Clarabel"] = peers.with_clarabel
    if importlib.util.find_spec("cvxopt"):
        found["CVXOPT"] = peers.with_cvxopt
        found["CVXOPT, thesis's form"] = peers.with_cvxopt_paths
    return found


def measure(
    asked: dict[str, Solver], height: int, norm: int, runs: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of every run, the solvers in turns on the same problems."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    for solver in asked.values():
        solver(*peers.problem(4), norm)  # compile, import
    for run in range(runs):
        noisy, total = peers.problem(height, run)
        for name, solver in asked.items():
            if sum(times[name]) > seconds:
                continue
            start = time.process_time()
            solver(noisy, total, norm)
            times[name].append(time.process_time() - start)
        if all(sum(values) > seconds for values in times.values()):
            break
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heights", type=int, nargs="+", default=list(range(8, 18)))
    parser.add_argument("--runs", type=int, default=100, help="at most, within --each seconds")
    parser.add_argument("--each", type=float, default=4.0, help="seconds of a solver at one N")
    parser.add_argument("--patience", type=float, default=3.0)
    add_seconds(parser)
    arguments = parser.parse_args()
    parts = Parts(f"ecdf-runtime-{arguments.runs}-{arguments.each}", arguments.seconds)
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.3), layout="constrained", sharey=True)
    rows: list[list[object]] = []
    for ax, norm in zip(axes, (2, 1), strict=True):
        asked = solvers()
        curves: dict[str, list[float]] = {name: [] for name in asked}
        for height in arguments.heights:
            compute = partial(measure, asked, height, norm, arguments.runs, arguments.each)
            for name, values in parts.get(f"{norm} {height}", compute).items():
                median = statistics.median(values)
                curves[name].append(median)
                rows.append([norm, 2**height, name, len(values), median])
                shown = f"p={norm} N=2^{height} {name:26s} {median:.4f} s"
                print(f"{shown} ({len(values)} runs)", flush=True)
                if max(values) > arguments.patience:
                    asked = {other: asked[other] for other in asked if other != name}
        for name, medians in curves.items():
            sizes = [2**height for height in arguments.heights][: len(medians)]
            ax.loglog(sizes, medians, marker=".", label=name)
        ax.set(title=f"smoothing with p = {norm}", xlabel="N")
        ax.grid(alpha=0.3)
    axes[0].set(ylabel="processor seconds")
    axes[0].legend(fontsize="small")
    figure.savefig(IMAGES / "ecdf_runtime.png", dpi=110)
    plt.close(figure)
    parts.done()
    save_table("ecdf_runtime", ["p", "N", "solver", "runs", "median processor seconds"], rows)


if __name__ == "__main__":
    main()
