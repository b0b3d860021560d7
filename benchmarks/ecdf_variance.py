"""Variance of private prefix counts: closed form, measured, and what was published before.

    python benchmarks/ecdf_variance.py --heights 10 15 --releases 20

Rows of the thesis (Barczewski 2025, Theorems 6.3.1 and 6.3.2) and of the plain square root are
computed from their formulas. Ours are planned, and measured on that many releases. Numbers
are variances of counts (n F), mean and maximum over the thresholds; Gaussian noise at
rho = 1/2.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from noisewise.ecdf import Budget, Setting, plan
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.mechanisms.protocol import Mechanism
from noisewise.ecdf.mechanisms.toeplitz import build
from noisewise.privacy.randomness import Randomness


def published(height: int, relation: str, gaussian: bool) -> list[tuple[str, float, float]]:
    bins, half = 2**height, -(-(height + 1) // 2)
    replace = relation == "replace-one"
    rows = []
    if gaussian:
        thesis = (height + 1.0) * (height + 1 if replace else half)
        strategy = build(Setting.of(bins, relation), None)
        (square,) = strategy.shift(strategy.setting.change, "l2-squared")
        variance = strategy.variance((float(square),))[: strategy.setting.points]
        rows.append(("thesis, as published", thesis, thesis))
        rows.append(("square root, as published", variance.mean(), variance.max()))
    else:
        thesis = 2.0 * (height + 1) * (height + 1 if replace else half) ** 2
        rows.append(("thesis, as published", thesis, thesis))
    return rows


def measured(mechanism: Mechanism, releases: int) -> float:
    rng, generator = Randomness.seeded(7), np.random.default_rng(7)
    counts = generator.poisson(3.0, mechanism.setting.bins)
    truth, points = np.cumsum(counts), mechanism.setting.points
    errors = [
        np.mean((noisy_counts(mechanism, counts, rng) - truth)[:points] ** 2)
        for _ in range(releases)
    ]
    return float(np.mean(errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heights", type=int, nargs="+", default=[10, 15])
    parser.add_argument("--releases", type=int, default=20)
    arguments = parser.parse_args()
    for height in arguments.heights:
        for gaussian in (False, True):
            budget = Budget.concentrated(0.5) if gaussian else Budget(1.0)
            for relation in ("add-remove", "replace-one"):
                print(f"\nN=2^{height}, {budget}, {relation}")
                for name, mean, largest in published(height, relation, gaussian):
                    print(f"  {name:34s} mean {mean:9.2f}  max {largest:9.2f}")
                names = ["thesis", "kary", *(["sqrt"] if gaussian else [])]
                if gaussian and relation == "replace-one":
                    names.append("circulant")
                for name in names:
                    for objective in ("mean", "max") if name != "thesis" else ("mean",):
                        start = time.perf_counter()
                        mechanism = plan(
                            2**height, relation, budget, mechanism=name, objective=objective
                        )
                        mean, largest = mechanism.mean_variance, mechanism.max_variance
                        planned = time.perf_counter() - start
                        found = measured(mechanism, arguments.releases)
                        print(
                            f"  {name + ', least ' + objective:34s} mean {mean:9.2f}  "
                            f"max {largest:9.2f}  measured mean {found:9.2f}  plan {planned:.2f} s",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
