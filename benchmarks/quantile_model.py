"""What quantiles miss on public shapes, by mechanism: the numbers behind ``mechanism="auto"``.

``python -m benchmarks.quantile_model`` prints the table that stands in
:mod:`noisewise.ecdf.quantile_model`. Records are drawn from six shapes, with bounds that fit and
with bounds that are a million times too wide, and every mechanism answers. The error is by how many
records a rank is off, times epsilon, on average over shapes, bounds, quantiles and runs; one record
comes or goes and delta is 0. It depends on the number of records times epsilon, hardly on the two
apart (``--epsilon`` tries another one).
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks import table
from noisewise.ecdf import dp_quantile
from noisewise.ecdf.quantile_model import MANY, MECHANISMS, SIZES

SHAPES = ("normal", "lognormal", "uniform", "rounded", "half zeros", "far away")


def drawn(shape: str, number: int, generator: np.random.Generator) -> np.ndarray:
    """Return records of a shape."""
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


def error(
    shape: str, wide: bool, number: int, epsilon: float, many: int, mechanism: str, seed: int
) -> float:
    """Return by how many records the ranks of one release are off, times epsilon."""
    generator = np.random.default_rng([seed, many])
    records = np.sort(drawn(shape, number, generator))
    q = np.arange(1, many + 1) / (many + 1)
    found = dp_quantile(
        records, q, bounds=bounds_of(shape, wide), epsilon=epsilon,
        mechanism=mechanism, seed=int(generator.integers(1 << 62)),
    )  # fmt: skip
    below, upto = (np.searchsorted(records, found, side) for side in ("left", "right"))
    off = np.maximum(below - q * number, q * number - upto)
    return float(np.maximum(0, off).mean() * epsilon)


def main() -> None:
    """Print one row for each mechanism, size and number of quantiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--numbers", default=",".join(map(str, MANY)))
    parser.add_argument("--ways", default=",".join(MECHANISMS))
    options, _ = parser.parse_known_args()
    ways = options.ways.split(",")
    rows = []
    for size in map(int, options.sizes.split(",")):
        for many in map(int, options.numbers.split(",")):
            found = {}
            for mechanism in ways:
                errors = [
                    error(
                        shape,
                        wide,
                        round(size / options.epsilon),
                        options.epsilon,
                        many,
                        mechanism,
                        run,
                    )
                    for shape in SHAPES
                    for wide in (False, True)
                    for run in range(options.runs)
                ]
                found[mechanism] = f"{np.mean(errors):.2g}"
            rows.append((str(size), str(many), *(found[mechanism] for mechanism in ways)))
            print(*rows[-1], flush=True)
    table("records missed, times epsilon", ("n epsilon", "quantiles", *ways), rows)


if __name__ == "__main__":
    main()
