"""Smoothing and inverses (Figures 6.6.1-6.6.3, 6.6.7): ``python ecdf_smoothing.py``.

Data as in Section 6.6.2 (a): N = 2^15 values, the number of records of each is Poisson(lambda).
Writes docs/images/ecdf_smoothing.png and docs/images/ecdf_inverse.png and prints the numbers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import smooth_counts
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.smoothing import smooth_tree
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import REPLACE_ONE

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RNG = Randomness.seeded(0)


def poisson_counts(bins: int, rate: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).poisson(rate, bins)


def error_ratios(bins: int, rate: float, epsilon: float, runs: int) -> dict[str, float]:
    """Mean squared error over that of the thesis's curve before smoothing, by method."""
    sums: dict[str, float] = {}
    raw = 0.0
    thesis = plan(bins, "replace", Budget(epsilon), mechanism="thesis")
    ours = plan(bins, "replace", Budget(epsilon))
    for run in range(runs):
        counts = poisson_counts(bins, rate, run)
        truth = np.cumsum(counts)
        noisy = thesis.release(counts, RNG)
        raw += float(((noisy - truth) ** 2).sum())
        found = {
            "thesis, 1-norm": smooth_counts(noisy, thesis, "l1"),
            "thesis, 2-norm": smooth_counts(noisy, thesis, "l2"),
            "noisewise": smooth_counts(ours.release(counts, RNG), ours, "auto"),
        }
        for name, curve in found.items():
            sums[name] = sums.get(name, 0.0) + float(((curve - truth) ** 2).sum())
    return {name: value / raw for name, value in sums.items()}


def draw_smoothing(bins: int, runs: int) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    epsilons = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    rates = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    for ax, values, title in (
        (axes[0], epsilons, "error after smoothing / before, lambda = 3"),
        (axes[1], rates, "error after smoothing / before, epsilon = 1"),
    ):
        first = ax is axes[0]
        found = [
            error_ratios(bins, 3.0 if first else value, value if first else 1.0, runs)
            for value in values
        ]
        for name in found[0]:
            ratios = [each[name] for each in found]
            ax.loglog(values, ratios, marker=".", label=name)
            shown = "  ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"{'epsilon' if first else 'lambda'} {name:16s} {shown}", flush=True)
        ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        ax.set(title=title, xlabel="epsilon" if first else "lambda")
        ax.title.set_fontsize("medium")
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    draw_runtime(axes[2])
    figure.savefig(IMAGES / "ecdf_smoothing.png", dpi=110)
    plt.close(figure)


def draw_runtime(ax) -> None:  # type: ignore[no-untyped-def]
    heights = range(8, 18)
    for norm in (1, 2):
        seconds = []
        smooth_tree(np.arange(15.0), 16.0, norm)  # compile
        for height in heights:
            counts = poisson_counts(2**height, 3.0, 0)
            mechanism = plan(2**height, "replace", Budget(1.0), mechanism="thesis")
            noisy = mechanism.release(counts, RNG)
            start = time.perf_counter()
            smooth_tree(noisy[:-1], float(noisy[-1]), norm)
            seconds.append(time.perf_counter() - start)
        ax.loglog([2**h for h in heights], seconds, marker=".", label=f"{norm}-norm")
        shown = "  ".join(f"{value * 1e3:.1f}" for value in seconds)
        print(f"runtime of {norm}-norm, ms, N = 2^8..2^17: {shown}", flush=True)
    ax.set(title="time of smoothing (Eq. 6.3.6), seconds", xlabel="N")
    ax.title.set_fontsize("medium")
    ax.legend(fontsize="small")
    ax.grid(alpha=0.3)


def as_curve(grid: Grid, noisy: np.ndarray, mechanism, epsilon: float, smooth) -> PrivateECDF:  # type: ignore[no-untyped-def]
    return PrivateECDF(
        grid=grid,
        noisy_counts=noisy,
        counts=smooth_counts(noisy, mechanism, smooth),
        mechanism=mechanism,
        budget=Budget(epsilon),
        relation=REPLACE_ONE,
        smoothing="none" if smooth is None else smooth,
        randomness="seeded",
    )


def draw_inverse(bins: int, runs: int) -> None:
    grid = Grid.of((0.0, 1.0), bins)
    epsilons = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    q = np.linspace(0.005, 0.995, 199)
    errors: dict[str, list[float]] = {}
    for epsilon in epsilons:
        thesis = plan(bins, "replace", Budget(epsilon), mechanism="thesis")
        ours = plan(bins, "replace", Budget(epsilon))
        here: dict[str, list[float]] = {}
        for run in range(runs):
            counts = poisson_counts(bins, 3.0, run)
            truth = np.cumsum(counts) / counts.sum()
            inverse = grid.thresholds[np.searchsorted(truth, q, side="left")]
            noisy = thesis.release(counts, RNG)
            raw = as_curve(grid, noisy, thesis, epsilon, None)
            smooth = as_curve(grid, noisy, thesis, epsilon, "l2")
            best = as_curve(grid, ours.release(counts, RNG), ours, epsilon, "auto")
            found = {
                "thesis: F": raw.probabilities - truth,
                "thesis: inverse, Algorithm 9": raw.quantile(q, method="bisection", raw=True)
                - inverse,
                "thesis: inverse, smoothed": smooth.quantile(q) - inverse,
                "noisewise: F": best.probabilities - truth,
                "noisewise: inverse": best.quantile(q) - inverse,
            }
            for name, error in found.items():
                here.setdefault(name, []).append(float((error**2).mean()))
        for name, values in here.items():
            errors.setdefault(name, []).append(float(np.mean(values)))
    figure, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, values in errors.items():
        style = "--" if name.startswith("thesis") else "-"
        ax.loglog(epsilons, values, style, marker=".", label=name)
        print(f"{name:30s} " + "  ".join(f"{value:.2e}" for value in values), flush=True)
    ax.set(xlabel="epsilon", ylabel="mean squared error", title="ECDF and inverse, lambda = 3")
    ax.legend(fontsize="small")
    ax.grid(alpha=0.3)
    figure.savefig(IMAGES / "ecdf_inverse.png", dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=15, help="N = 2^height")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    draw_smoothing(2**arguments.height, arguments.runs)
    draw_inverse(2**arguments.height, arguments.runs)


if __name__ == "__main__":
    main()
