"""How often AUC intervals hold the true area: ``python -m benchmarks ecdf_auc_coverage``.

Real and made-up score distributions, both relations, Laplace and Gaussian noise, from budgets at
which nothing is left of the curve to budgets at which it is nearly exact. Printed are the coverage
at the level over all runs of a setting, its standard error, and the median width of the interval
beside that of the guaranteed band (over the first few runs). The true scores are made here, so
this is a check of the interval, not a release.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks import table
from noisewise.ecdf.auc import fieller_interval, pivot_covers, trapezoid
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.roc_band import rate_band
from noisewise.ecdf.two_class import TwoClassCounts, mirrored_grid, smooth_both, two_curve_mechanism
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation
from noisewise.release import Promise

# Records, share of positives, distance of the classes in deviations.
DATA = {
    "small, few positives": (4000, 0.15, 0.85),
    "middle, few positives": (45000, 0.12, 1.0),
    "large, balanced": (100000, 0.46, 0.7),
    "middle, nearly separated": (20000, 0.3, 3.0),
    "small, no signal": (3000, 0.5, 0.0),
}


def scores(records: int, share: float, distance: float) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(records)
    y = (generator.random(records) < share).astype(int)
    logit = generator.normal(distance * (y - share), 1.0) + np.log(share / (1 - share))
    return y, 1 / (1 + np.exp(-logit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--bins", type=int, default=256)
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.5, 2.0])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    arguments, _ = parser.parse_known_args()
    rng = Randomness.seeded(0)
    grid = mirrored_grid((0.0, 1.0), arguments.bins)
    rows, hits = [], []
    for name in arguments.data:
        y, p = scores(*DATA[name])
        counts = np.concatenate([grid.count(-p[y == label]) for label in (0, 1)])
        negatives, positives = np.cumsum(counts.reshape(2, -1), axis=1)
        true = float(trapezoid(negatives, positives) / (negatives[-1] * positives[-1]))
        for epsilon in arguments.epsilons:
            for delta, relation in ((0.0, "replace-one"), (1e-6, "add-remove")):
                mechanism = two_curve_mechanism(arguments.bins, relation, Budget(epsilon, delta))
                records = y.size if relation == "replace-one" else None
                covered, widths, bands = [], [], []
                for run in range(arguments.runs):
                    noisy = noisy_counts(mechanism, counts, rng).reshape(2, -1)
                    release = TwoClassCounts(
                        grid=grid,
                        noisy=noisy,
                        counts=smooth_both(noisy, mechanism, "auto", records),
                        mechanism=mechanism,
                        budget=Budget(epsilon, delta),
                        relation=Relation.of(relation),
                        smoothing="auto",
                        records=records,
                        promise=Promise(
                            (mechanism.event,), delta, "experiment", Relation.of(relation), "seeded"
                        ),
                    )
                    draws, level = arguments.draws, arguments.level
                    covered.append(pivot_covers(release, true, level, draws, run))
                    if run < 9:
                        low, high = fieller_interval(
                            release, level, population=False, draws=draws, seed=run
                        )
                        widths.append(high - low)
                        low, high = rate_band(release, level, draws).auc
                        bands.append(min(high, 1.0) - max(low, 0.0))
                hits += covered
                share = float(np.mean(covered))
                rows.append(
                    (
                        name,
                        f"{true:.3f}",
                        f"{epsilon:g}",
                        f"{delta:g}",
                        f"{share:.3f}",
                        f"{np.sqrt(share * (1 - share) / len(covered)):.3f}",
                        f"{np.median(widths):.4f}",
                        f"{np.median(bands):.4f}",
                    )
                )
    title = f"coverage of AUC intervals at level {arguments.level:g}, {arguments.runs} runs each"
    header = ("data", "AUC", "epsilon", "delta", "coverage", "+-", "width", "width of band")
    table(title, header, rows)
    total = float(np.mean(hits))
    print(f"\nall {len(hits)} runs: {total:.4f} +- {np.sqrt(total * (1 - total) / len(hits)):.4f}")


if __name__ == "__main__":
    main()
