"""Smoothing and inverses (Figures 6.6.1-6.6.3): ``python ecdf_smoothing.py``.

    python ecdf_smoothing.py --figure epsilon     Figure 6.6.1
    python ecdf_smoothing.py --figure lambda      Figure 6.6.2
    python ecdf_smoothing.py --figure inverse     Figure 6.6.3

Data as in Section 6.6.2 (a): N = 2^15 values, the number of records of each is Poisson(lambda).
Writes docs/images/ecdf_smoothing_epsilon.png, ecdf_smoothing_lambda.png and ecdf_inverse.png,
each with a table (.csv).
"""

from __future__ import annotations

import argparse
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from ecdf_tables import IMAGES, Parts, add_seconds, save_table

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import smooth_counts
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms import plan
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import REPLACE_ONE
from noisewise.release import Promise

RNG = Randomness.seeded(0)


def poisson_counts(bins: int, rate: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).poisson(rate, bins)


def error_ratios(bins: int, rate: float, epsilon: float, runs: int) -> dict[str, float]:
    """Mean squared error over that of the thesis's curve before smoothing, by method."""
    sums: dict[str, float] = {}
    raw = 0.0
    thesis = plan(bins, "replace-one", Budget(epsilon), mechanism="thesis")
    ours = plan(bins, "replace-one", Budget(epsilon))
    for run in range(runs):
        counts = poisson_counts(bins, rate, run)
        truth = np.cumsum(counts)
        noisy = noisy_counts(thesis, counts, RNG)
        raw += float(((noisy - truth) ** 2).sum())
        found = {
            "thesis, 1-norm": smooth_counts(noisy, thesis, "l1"),
            "thesis, 2-norm": smooth_counts(noisy, thesis, "l2"),
            "noisewise": smooth_counts(noisy_counts(ours, counts, RNG), ours, "auto"),
        }
        for name, curve in found.items():
            sums[name] = sums.get(name, 0.0) + float(((curve - truth) ** 2).sum())
    return {name: value / raw for name, value in sums.items()}


def draw_smoothing(bins: int, runs: int, over: str, seconds: float) -> None:
    parts = Parts(f"ecdf-smoothing-{over}-{bins}-{runs}", seconds)
    epsilon_varies = over == "epsilon"
    epsilons = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    rates = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    values = epsilons if epsilon_varies else rates
    found = []
    for value in values:
        rate, epsilon = (3.0, value) if epsilon_varies else (value, 1.0)
        compute = partial(error_ratios, bins, rate, epsilon, runs)
        found.append(parts.get(str(value), compute))
    figure, ax = plt.subplots(figsize=(6.0, 4.2), layout="constrained")
    rows = []
    for name in found[0]:
        ratios = [each[name] for each in found]
        ax.loglog(values, ratios, marker=".", label=name)
        rows.append([name, *ratios])
        print(f"{over} {name:16s} " + "  ".join(f"{ratio:.3f}" for ratio in ratios), flush=True)
    ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
    fixed = "lambda = 3" if epsilon_varies else "epsilon = 1"
    ax.set(title=f"squared error after smoothing / thesis before, {fixed}", xlabel=over)
    ax.title.set_fontsize("medium")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    figure.savefig(IMAGES / f"ecdf_smoothing_{over}.png", dpi=110)
    plt.close(figure)
    parts.done()
    save_table(f"ecdf_smoothing_{over}", ["method", *map(str, values)], rows)


def as_curve(grid: Grid, noisy: np.ndarray, mechanism, epsilon: float, smooth) -> PrivateECDF:  # type: ignore[no-untyped-def]
    return PrivateECDF(
        grid=grid,
        noisy_counts=noisy,
        counts=smooth_counts(noisy, mechanism, smooth),
        mechanism=mechanism,
        budget=Budget(epsilon),
        relation=REPLACE_ONE,
        smoothing="none" if smooth is None else smooth,
        promise=Promise((mechanism.event,), 0.0, "experiment", REPLACE_ONE, "seeded"),
    )


def inverse_errors(bins: int, epsilon: float, runs: int) -> dict[str, float]:
    """Mean squared errors of the curve and of its inverse."""
    grid = Grid.of((0.0, 1.0), bins)
    q = np.linspace(0.005, 0.995, 199)
    thesis = plan(bins, "replace-one", Budget(epsilon), mechanism="thesis")
    ours = plan(bins, "replace-one", Budget(epsilon))
    sums: dict[str, float] = {}
    for run in range(runs):
        counts = poisson_counts(bins, 3.0, run)
        truth = np.cumsum(counts) / counts.sum()
        inverse = grid.thresholds[np.searchsorted(truth, q, side="left")]
        noisy = noisy_counts(thesis, counts, RNG)
        raw = as_curve(grid, noisy, thesis, epsilon, None)
        smooth = as_curve(grid, noisy, thesis, epsilon, "l2")
        best = as_curve(grid, noisy_counts(ours, counts, RNG), ours, epsilon, "auto")
        found = {
            "thesis: F": raw.probabilities - truth,
            "thesis: inverse, Algorithm 9": raw.quantile(q, method="bisection", raw=True) - inverse,
            "thesis: inverse, smoothed": smooth.quantile(q) - inverse,
            "noisewise: F": best.probabilities - truth,
            "noisewise: inverse": best.quantile(q) - inverse,
        }
        for name, error in found.items():
            sums[name] = sums.get(name, 0.0) + float((error**2).mean()) / runs
    return sums


def draw_inverse(bins: int, runs: int, seconds: float) -> None:
    parts = Parts(f"ecdf-inverse-{bins}-{runs}", seconds)
    epsilons = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    found = [
        parts.get(str(epsilon), partial(inverse_errors, bins, epsilon, runs))
        for epsilon in epsilons
    ]
    parts.done()
    errors = {name: [each[name] for each in found] for name in found[0]}
    figure, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, values in errors.items():
        style = "--" if name.startswith("thesis") else "-"
        ax.loglog(epsilons, values, style, marker=".", label=name)
        print(f"{name:30s} " + "  ".join(f"{value:.2e}" for value in values), flush=True)
    ax.set(xlabel="epsilon", ylabel="mean squared error", title="ECDF and inverse, lambda = 3")
    ax.legend(fontsize="small")
    ax.grid(alpha=0.3)
    figure.savefig(IMAGES / "ecdf_inverse.png", dpi=110)
    rows = [[name, *values] for name, values in errors.items()]
    save_table("ecdf_inverse", ["error of", *map(str, epsilons)], rows)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=15, help="N = 2^height")
    parser.add_argument("--runs", type=int, default=100)
    figures = ["epsilon", "lambda", "inverse", "all"]
    parser.add_argument("--figure", choices=figures, default="all")
    add_seconds(parser)
    arguments = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    for over in ("epsilon", "lambda"):
        if arguments.figure in (over, "all"):
            draw_smoothing(2**arguments.height, arguments.runs, over, arguments.seconds)
    if arguments.figure in ("inverse", "all"):
        draw_inverse(2**arguments.height, arguments.runs, arguments.seconds)


if __name__ == "__main__":
    main()
