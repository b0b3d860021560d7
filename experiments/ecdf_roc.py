"""Private ROC curves (Figures 6.5.1-6.5.3) and their error (Figure 6.6.4): ``python ecdf_roc.py``.

    python ecdf_roc.py --figure curves     Figures 6.5.1, 6.5.2, 6.5.3
    python ecdf_roc.py --figure errors     Figure 6.6.4, 100 runs

Writes docs/images/ecdf_roc_<dataset>.png, docs/images/ecdf_roc_error.png and .csv.
"""

from __future__ import annotations

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from ecdf_predictions import DATASETS, predictions, published_thesis_roc
from ecdf_tables import IMAGES, Parts, add_seconds, save_table
from sklearn.metrics import roc_auc_score, roc_curve

from noisewise.ecdf.roc import PrivateROC, private_roc

GRID = np.linspace(0, 1, 20_001)


def height(fpr: np.ndarray, tpr: np.ndarray) -> np.ndarray:
    """A ROC curve as a function of the false positive rate."""
    return np.interp(GRID, fpr, tpr)


def area_between(roc: PrivateROC, truth: np.ndarray) -> float:
    return float(np.abs(height(roc.fpr, roc.tpr) - truth).mean())


def methods(y: np.ndarray, p: np.ndarray, bins: int):  # type: ignore[no-untyped-def]
    def thesis(smooth):  # type: ignore[no-untyped-def]
        return lambda eps, seed: published_thesis_roc(
            y, p, epsilon=eps, bins=bins, smooth=smooth, rng=seed
        )

    def ours(**options):  # type: ignore[no-untyped-def]
        return lambda eps, seed: private_roc(
            y, p, epsilon=eps, bins=bins, rng=seed, relation="replace-one", **options
        )

    return {
        "thesis, 1-norm": thesis("l1"),
        "thesis, 2-norm": thesis("l2"),
        "joint scale, thesis tree": ours(mechanism="thesis", smooth="l2"),
        "noisewise": ours(),
        "noisewise, delta 1e-6": ours(delta=1e-6),
    }


def draw_curves(bins: int) -> None:
    for name, (_, epsilon) in DATASETS.items():
        y, p = predictions(name)
        fpr, tpr, _ = roc_curve(y, p)
        figure, axes = plt.subplots(1, 2, figsize=(9.4, 4.6), layout="constrained")
        raw = published_thesis_roc(y, p, epsilon=epsilon, bins=bins, smooth=None, rng=0)
        smooth = published_thesis_roc(y, p, epsilon=epsilon, bins=bins, smooth="l2", rng=0)
        ours = private_roc(y, p, epsilon=epsilon, bins=bins, rng=0, relation="replace-one")
        axes[0].plot(raw.fpr, raw.tpr, color="0.7", linewidth=0.8, label="thesis, as released")
        axes[0].plot(smooth.fpr, smooth.tpr, label=f"thesis, smoothed (AUC {smooth.auc:.3f})")
        axes[0].set(title=f"thesis: epsilon / 2 for each class, epsilon = {epsilon}")
        low, high = ours.auc_interval(0.95)
        ours.plot(axes[1], label=f"noisewise (AUC {ours.auc:.3f}, {low:.3f} to {high:.3f})")
        axes[1].set(title=f"noisewise: one joint scale, epsilon = {epsilon}")
        for ax in axes:
            truth = f"true (AUC {roc_auc_score(y, p):.3f})"
            ax.plot(fpr, tpr, "k:", linewidth=1.2, label=truth)
            ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
            ax.set(xlabel="false positive rate", ylabel="true positive rate")
            ax.legend(loc="lower right", fontsize="small")
            ax.title.set_fontsize("medium")
        figure.suptitle(f"{name}: {y.size} records, {y.mean():.1%} positive", fontsize="medium")
        figure.savefig(IMAGES / f"ecdf_roc_{name}.png", dpi=110)
        plt.close(figure)
        print(
            f"{name}: n = {y.size}, positives {y.mean():.3f}, epsilon {epsilon}, "
            f"AUC {roc_auc_score(y, p):.4f}; thesis {smooth.auc:.4f}, ours {ours.auc:.4f} "
            f"({low:.4f} to {high:.4f})",
            flush=True,
        )


def draw_errors(bins: int, runs: int, seconds: float) -> None:
    parts = Parts(f"ecdf-roc-{bins}-{runs}", seconds)
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4.0), layout="constrained", sharey=True)
    epsilons = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    rows: list[list[object]] = []
    for ax, name in zip(axes, DATASETS, strict=True):
        y, p = predictions(name)
        truth = height(*roc_curve(y, p)[:2])
        for label, release in methods(y, p, bins).items():
            errors = []
            for epsilon in epsilons:

                def mean_error(epsilon: float = epsilon, release=release, truth=truth) -> float:  # type: ignore[no-untyped-def]
                    found = [area_between(release(epsilon, seed), truth) for seed in range(runs)]
                    return float(np.nanmean(found))

                errors.append(parts.get(f"{name} {label} {epsilon}", mean_error))
            ax.loglog(epsilons, errors, marker=".", label=label)
            rows.append([name, label, *errors])
            shown = "  ".join(f"{error:.5f}" for error in errors)
            print(f"{name:9s} {label:26s} {shown}", flush=True)
        ax.set(title=f"{name} ({y.size} records)", xlabel="epsilon")
        ax.grid(alpha=0.3)
    axes[0].set(ylabel="area between private and true ROC")
    axes[0].legend(fontsize="small")
    figure.savefig(IMAGES / "ecdf_roc_error.png", dpi=110)
    parts.done()
    save_table("ecdf_roc_error", ["dataset", "method", *map(str, epsilons)], rows)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--figure", choices=["curves", "errors", "all"], default="all")
    add_seconds(parser)
    arguments = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    np.seterr(all="ignore")
    import warnings

    # With very little budget a class may seem empty; its runs are left out of the means.
    warnings.filterwarnings("ignore", "the private number", RuntimeWarning)
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
    if arguments.figure != "errors":
        draw_curves(arguments.bins)
    if arguments.figure != "curves":
        draw_errors(arguments.bins, arguments.runs, arguments.seconds)


if __name__ == "__main__":
    main()
