"""What quantiles miss on public shapes, by mechanism: the numbers behind ``mechanism="auto"``.

``python -m benchmarks.quantile_model``. Records are drawn from the shapes below; bounds are four times as
wide as the middle of the shape, and a million times. For each number of records, epsilon
and number of quantiles every mechanism answers; its error is how many records a rank is off, over
the unit of noise that :mod:`noisewise.ecdf.quantile_model` knows before any record is seen.
``--check`` compares what "auto" takes with the best fixed choice.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from benchmarks import table
from noisewise.ecdf import dp_quantile
from noisewise.ecdf.quantile_model import MECHANISMS, Sizes, units_of_noise

SHAPES = ("normal", "lognormal", "uniform", "rounded", "half zeros", "far away")
NUMBERS = (1, 3, 9, 40, 150)


def drawn(shape: str, number: int, generator: np.random.Generator) -> np.ndarray:
    """Return records of a shape, most of them within (-3, 3) of its middle, times ten."""
    if shape == "lognormal":
        return 10 * generator.lognormal(0.0, 1.0, number)
    if shape == "uniform":
        return generator.uniform(-30, 30, number)
    values = generator.normal(0.0, 10.0, number)
    if shape == "rounded":
        return np.round(values)
    if shape == "half zeros":
        return np.where(generator.random(number) < 0.5, 0.0, values)
    return values + 2e4 if shape == "far away" else values


def bounds_of(shape: str, wide: bool) -> tuple[float, float]:
    """Return bounds of a careful user, or of a careless one."""
    if wide:
        return -1e8, 1e8
    return (19_900.0, 20_100.0) if shape == "far away" else (-100.0, 100.0)


def missed(ordered: np.ndarray, q: np.ndarray, found: np.ndarray) -> float:
    """By how many records ranks are wrong, on average."""
    below = np.searchsorted(ordered, found, "left")
    upto = np.searchsorted(ordered, found, "right")
    wanted = q * ordered.size
    return float(np.maximum(0, np.maximum(below - wanted, wanted - upto)).mean())


def one(
    shape: str, wide: bool, number: int, epsilon: float, many: int, mechanism: str,
    relation: str, seed: int,
) -> float:
    """Return the error of one release, in records."""
    generator = np.random.default_rng(seed)
    records = drawn(shape, number, generator)
    q = np.arange(1, many + 1) / (many + 1)
    found = dp_quantile(
        records, q, bounds=bounds_of(shape, wide), epsilon=epsilon, relation=relation,
        mechanism=mechanism, seed=int(generator.integers(1 << 62)),
    )
    return missed(np.sort(records), q, np.asarray(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--numbers", default="100,1000,10000,100000")
    parser.add_argument("--epsilons", default="0.1,1")
    parser.add_argument("--relation", default="add-remove")
    options, _ = parser.parse_known_args()
    for number in map(int, options.numbers.split(",")):
        for epsilon in map(float, options.epsilons.split(",")):
            for many in NUMBERS:
                sizes = Sizes(many, epsilon, options.relation)
                unit = units_of_noise(sizes)
                for wide in (False, True):
                    for mechanism in MECHANISMS:
                        began = time.time()
                        errors = [
                            one(shape, wide, number, epsilon, many, mechanism, options.relation, run)
                            for shape in SHAPES for run in range(options.runs)
                        ]
                        print(json.dumps([number, epsilon, many, wide, mechanism, unit[mechanism],
                            float(np.mean(errors)), float(np.max(errors)), time.time() - began]), flush=True)


if __name__ == "__main__":
    main()
