"""Private Hosmer-Lemeshow statistics (Figure 6.6.5): ``python ecdf_hosmer_lemeshow.py``.

Relative mean (and median) squared error over epsilon on the three datasets. "as printed" is
Algorithm 10's noise level, epsilon / (L + 9), with independent noise: with the shared noise that
is printed there would be no privacy. Writes docs/images/ecdf_hosmer_lemeshow.png and .csv.
"""

from __future__ import annotations

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from ecdf_predictions import DATASETS, predictions
from ecdf_tables import IMAGES, Parts, add_seconds, save_table

from noisewise.ecdf.group_sums import group_of
from noisewise.ecdf.hosmer_lemeshow import dp_hosmer_lemeshow


def classic(y: np.ndarray, p: np.ndarray, groups: int = 10) -> float:
    cuts = np.unique(np.quantile(p, np.arange(1, groups) / groups))
    group = group_of(p, cuts)
    one = np.bincount(group, p)
    zero = np.bincount(group, 1 - p)
    residual = np.bincount(group, y - p)
    return float((residual**2 / one + residual**2 / zero).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=100)
    add_seconds(parser)
    arguments = parser.parse_args()
    parts = Parts(f"ecdf-hosmer-lemeshow-{arguments.bins}-{arguments.runs}", arguments.seconds)
    IMAGES.mkdir(parents=True, exist_ok=True)
    epsilons = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    level = int(np.log2(arguments.bins))
    methods = {
        "thesis, as printed (independent noise)": ("thesis", (level + 5) / (level + 9)),
        "thesis, corrected": ("thesis", 1.0),
        "noisewise: residuals": ("residual", 1.0),
        "noisewise: statistic only": ("statistic", 1.0),
    }
    rows: list[list[object]] = []
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4.2), layout="constrained")
    for ax, name in zip(axes, DATASETS, strict=True):
        y, p = predictions(name)
        truth = classic(y, p)
        print(f"{name}: H = {truth:.2f}")
        for label, (method, factor) in methods.items():
            mean, median = [], []
            for epsilon in epsilons:

                def errors(
                    epsilon: float = epsilon,
                    method: str = method,
                    factor: float = factor,
                    y: np.ndarray = y,
                    p: np.ndarray = p,
                    truth: float = truth,
                ) -> list[float]:
                    found = np.array(
                        [
                            dp_hosmer_lemeshow(
                                y, p, epsilon=epsilon * factor, method=method,  # type: ignore[arg-type]
                                bins=arguments.bins, rng=seed, draws=1, relation="replace-one",
                            ).statistic
                            for seed in range(arguments.runs)
                        ]
                    )  # fmt: skip
                    squares = (found - truth) ** 2 / truth**2
                    return [float(squares.mean()), float(np.median(squares))]

                for values, value in zip(
                    (mean, median), parts.get(f"{name} {label} {epsilon}", errors), strict=True
                ):
                    values.append(value)
            ax.loglog(epsilons, mean, marker=".", label=label)
            rows.append([name, label, "mean", *mean])
            rows.append([name, label, "median", *median])
            print(f"  {label:40s} mean   " + "  ".join(f"{v:.3g}" for v in mean), flush=True)
            print(f"  {'':40s} median " + "  ".join(f"{v:.3g}" for v in median), flush=True)
        ax.set(title=f"{name} ({y.size} records), H = {truth:.1f}", xlabel="epsilon")
        ax.grid(alpha=0.3)
    axes[0].set(ylabel="relative mean squared error of H")
    axes[0].legend(fontsize="small")
    figure.savefig(IMAGES / "ecdf_hosmer_lemeshow.png", dpi=110)
    parts.done()
    save_table("ecdf_hosmer_lemeshow", ["dataset", "method", "of", *map(str, epsilons)], rows)
    plt.close(figure)


if __name__ == "__main__":
    main()
