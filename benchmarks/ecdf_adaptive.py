"""Where measuring blocks of bins helps, and that it hurts nowhere: many shapes of data.

``python -m benchmarks.ecdf_adaptive`` prints the root mean squared error of a count n F over all
thresholds, divided by that of `dp_ecdf` as it is by default (tree of counts, isotonic least
squares): `smooth="shrink"`, and `mechanism="adaptive"`. 2^15 bins. ``--opendp 10`` adds the ratio
of the adaptive curve to ten runs of OpenDP's b-ary tree as it proposes it (``pip install
opendp``). Shapes: smooth ones, ones with few values, atoms, gaps and rough densities, and scores
and columns of real data. ``--epsilon``, ``--relation``, ``--runs``, ``--only`` (a part of a name).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from experiments.ecdf_predictions import DATASETS, predictions

from benchmarks import table
from benchmarks.ecdf_opendp import opendp_curves
from noisewise.datasets import load_table
from noisewise.ecdf import Budget, Grid, plan
from noisewise.ecdf.adaptive import choose_width
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.estimate import smooth_counts
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation

BINS = 2**15
Draw = Callable[[np.random.Generator], np.ndarray]


def _split(g: np.random.Generator, share: float, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.where(g.random(one.size) < share, one, two)


def _rough(g: np.random.Generator, scale: float) -> np.ndarray:
    """Every bin has a density of its own, exponentially distributed over groups of bins."""
    density = np.repeat(g.exponential(1.0, int(BINS / scale) + 1), int(scale))[:BINS]
    place = g.choice(BINS, 10**6, p=density / density.sum())
    return (place + 0.5) / BINS


N = 10**6
SMOOTH: dict[str, Draw] = {
    "beta (2, 5)": lambda g: g.beta(2, 5, N),
    "beta, n = 10^5": lambda g: g.beta(2, 5, N // 10),
    "beta, n = 10^4": lambda g: g.beta(2, 5, N // 100),
    "beta, n = 10^7": lambda g: g.beta(2, 5, N * 10),
    "uniform": lambda g: g.random(N),
    "normal, deviation 0.1": lambda g: g.normal(0.5, 0.1, N),
    "normal, deviation 0.02": lambda g: g.normal(0.5, 0.02, N),
    "normal, deviation 0.002": lambda g: g.normal(0.5, 0.002, N),
    "lognormal": lambda g: g.lognormal(-3, 1, N),
    "two normals": lambda g: _split(g, 0.3, g.normal(0.2, 0.02, N), g.normal(0.7, 0.1, N)),
    "twenty normals": lambda g: g.normal(g.integers(1, 20, N) / 20, 0.005),
    "arcsine (poles at the ends)": lambda g: g.beta(0.5, 0.5, N),
    "steps and gaps": lambda g: np.floor(g.random(N) * 7) / 7 + g.random(N) / 12,
}
HARD: dict[str, Draw] = {
    "constant": lambda g: np.full(N, 0.3),
    "ten values": lambda g: g.integers(0, 10, N) / 10 + 0.033,
    "whole years, 0 to 99": lambda g: np.floor(np.clip(g.normal(40, 15, N), 0, 99)) / 100,
    "three decimals": lambda g: np.round(g.beta(2, 5, N), 3),
    "four decimals": lambda g: np.round(g.beta(2, 5, N), 4),
    "half rounded to two decimals": lambda g: _split(
        g, 0.5, np.round(g.beta(2, 5, N), 2), g.beta(2, 5, N)
    ),
    "1 % at one value": lambda g: _split(g, 0.01, np.full(N, 0.4), g.beta(2, 5, N)),
    "0.1 % at one value": lambda g: _split(g, 0.001, np.full(N, 0.4), g.beta(2, 5, N)),
    "0.03 % at each of 30 values": lambda g: _split(
        g, 0.01, g.integers(0, 30, N) / 30 + 0.01, g.beta(2, 5, N)
    ),
    "rough density, every bin": lambda g: _rough(g, 1),
    "rough density, 8 bins": lambda g: _rough(g, 8),
    "rough density, 64 bins": lambda g: _rough(g, 64),
}


def _scores(name: str) -> Draw:
    return lambda g: predictions(name)[1]


def _column(dataset: str, column: str, low: float, high: float) -> Draw:
    def draw(g: np.random.Generator) -> np.ndarray:
        values = load_table(dataset).frame[column].dropna().to_numpy(np.float64)
        return (values - low) / (high - low)

    return draw


REAL: dict[str, Draw] = {
    **{f"scores: {name}": _scores(name) for name in DATASETS},
    "framingham: totChol, 0 to 1000": _column("framingham", "totChol", 0, 1000),
    "bank: balance, -1e4 to 1e5": _column("bank_marketing", "balance", -1e4, 1e5),
    "bank: duration, 0 to 5000": _column("bank_marketing", "duration", 0, 5000),
    "adult: fnlwgt, 0 to 1.5e6": _column("adult", "fnlwgt", 0, 1.5e6),
    "default: LIMIT_BAL, 0 to 1e6": _column("default_credit", "LIMIT_BAL", 0, 1e6),
}


# Chosen after the constants of the rule had been fixed on the data above.
FRESH: dict[str, Draw] = {
    "triangle": lambda g: g.triangular(0, 0.3, 1, N),
    "exponential, mean 0.1": lambda g: g.exponential(0.1, N),
    "Laplace, scale 0.03": lambda g: g.laplace(0.6, 0.03, N),
    "Student, 2 degrees": lambda g: 0.5 + 0.05 * g.standard_t(2, N),
    "eight boxes": lambda g: (
        g.choice([0.1, 0.13, 0.3, 0.42, 0.5, 0.71, 0.8, 0.93], N) + g.random(N) * 0.02
    ),
    "half zeros, half exponential": lambda g: _split(g, 0.5, np.zeros(N), g.exponential(0.1, N)),
    "a fifth at multiples of 1/500": lambda g: _split(
        g, 0.2, g.integers(1, 500, N) / 500, g.triangular(0, 0.3, 1, N)
    ),
    "2^12 values": lambda g: (np.floor(g.beta(3, 3, N) * 4096) + 0.5) / 4096,
    "california: MedInc, 0 to 20": _column("california_housing", "MedInc", 0, 20),
    "california: MedHouseVal, 0 to 6": _column("california_housing", "MedHouseVal", 0, 6),
    "default: BILL_AMT1, -2e5 to 1e6": _column("default_credit", "BILL_AMT1", -2e5, 1e6),
    "framingham: BMI, 10 to 60": _column("framingham", "BMI", 10, 60),
    "framingham: sysBP, 50 to 300": _column("framingham", "sysBP", 50, 300),
}


def mean_square(
    release: Callable[[np.ndarray], np.ndarray], counts: np.ndarray, runs: int
) -> tuple[float, float]:
    """Return the mean squared error of the inner thresholds, and its standard error."""
    truth = np.cumsum(counts)
    errors = [float(((release(counts) - truth)[:-1] ** 2).mean()) for _ in range(runs)]
    return float(np.mean(errors)), float(np.std(errors) / np.sqrt(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--relation", default="replace-one")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--opendp", type=int, default=0, help="runs of OpenDP's tree")
    arguments, _ = parser.parse_known_args()
    relation, budget = Relation.of(arguments.relation), Budget(arguments.epsilon)
    rng = Randomness.secure()
    default = plan(BINS, relation, budget)
    widths: list[int] = []

    def adaptive(counts: np.ndarray) -> np.ndarray:
        chosen = choose_width(counts, relation, budget, rng).mechanism
        widths.append(getattr(chosen.strategy, "width", 1))
        return smooth_counts(noisy_counts(chosen, counts, rng), chosen, "shrink")

    def plain(smooth: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda counts: smooth_counts(noisy_counts(default, counts, rng), default, smooth)

    peer = opendp_curves(BINS, arguments.epsilon, None)[1] if arguments.opendp else None
    rows = []
    for kind, shapes in (("smooth", SMOOTH), ("hard", HARD), ("real", REAL), ("fresh", FRESH)):
        for name, draw in shapes.items():
            if arguments.only not in f"{kind}: {name}":
                continue
            x = draw(np.random.default_rng(0))
            counts = Grid.of((0, 1), BINS).count(x)
            widths.clear()
            base, spread = mean_square(plain("auto"), counts, arguments.runs)
            shrunk, _ = mean_square(plain("shrink"), counts, arguments.runs)
            found, other = mean_square(adaptive, counts, arguments.runs)
            ratio = np.sqrt(found / base)
            error = ratio / 2 * np.hypot(spread / base, other / found)
            cells = [
                f"{kind}: {name}",
                f"{x.size}",
                f"{np.sqrt(base):.1f}",
                f"{np.sqrt(shrunk / base):.2f}",
                f"{ratio:.2f} +- {error:.2f}",
                "/".join(map(str, sorted(set(widths)))),
            ]
            if peer is not None:
                against, _ = mean_square(peer, counts, arguments.opendp)
                cells.append(f"{np.sqrt(found / against):.2f}")
            rows.append(tuple(cells))
            print("  ".join(cells), flush=True)
    header: tuple[str, ...] = ("", "n", "rms, default", "shrink", "adaptive", "block")
    if peer is not None:
        header = (*header, "adaptive / OpenDP")
    title = f"N = {BINS}, epsilon {arguments.epsilon:g}, {relation}, {arguments.runs} runs"
    table(title, header, rows)


if __name__ == "__main__":
    main()
