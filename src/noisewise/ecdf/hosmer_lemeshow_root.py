"""The root of the Hosmer-Lemeshow statistic, made bounded and released directly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from noisewise.ecdf.group_sums import PUBLIC_CUTS, SUM_UNIT, Held, group_of, to_units
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.sources.tables import Column
from noisewise.privacy import Event, Pure, Randomness, Relation, Sensitivity
from noisewise.privacy.randomness import exact_scale
from noisewise.release import (
    ONE_ROW,
    Account,
    IntegerNoise,
    Promise,
    Query,
    ThisProcess,
    release,
)

__all__ = [
    "Root",
    "clipped_root",
    "release_root",
    "root_event",
    "root_p_value",
    "root_sensitivity",
]

# Grid points in the sensitivity of the root.
ROOT_STEPS = 1 << 12
# Rounding to the grid adds at most one step. Sums are of integers and exact; the few
# floating-point operations after them err by far less than the other step.
CHANGE = ROOT_STEPS + 2


def root_sensitivity(floor: float, clip: float, relation: Relation) -> float:
    """Return how far one record moves the root of the clipped statistic, at most.

    A record is in one group, so adding it moves the vector of residuals by at most
    1/sqrt(floor) + clip/(2 floor) in one place; replacing it does so at most twice.
    """
    return relation.sum_factor * (1 / math.sqrt(floor) + clip / (2 * floor))


def clipped_root(
    labels: FloatArray, predictions: FloatArray, cuts: FloatArray, floor: float, clip: float
) -> float:
    """Return the length of the clipped, standardised residuals: the root of H, made bounded."""
    group = group_of(predictions, cuts)
    size = cuts.size + 1
    expected, observed = to_units(predictions), to_units(labels)

    def total(values: IntArray) -> FloatArray:
        # Sums of integers below 2^53, exact in float64.
        sums = np.bincount(group, weights=values.astype(np.float64), minlength=size)
        return np.asarray(sums / SUM_UNIT, np.float64)

    one, zero, residual = total(expected), total(SUM_UNIT - expected), total(observed - expected)
    return _length(one, zero, residual, floor, clip)


def _root_of_sums(sums: dict[str, IntArray], floor: float, clip: float) -> float:
    """Return the same of a table whose records were summed where they are."""
    expected, everything = sums["expected"], SUM_UNIT * sums["count"]
    parts = (expected, everything - expected, SUM_UNIT * sums["positives"] - expected)
    one, zero, residual = (part.astype(np.float64) / SUM_UNIT for part in parts)
    return _length(one, zero, residual, floor, clip)


def _length(
    one: FloatArray, zero: FloatArray, residual: FloatArray, floor: float, clip: float
) -> float:
    variance = one * zero / np.maximum(one + zero, 1e-300)
    standardised = residual / np.sqrt(np.maximum(variance, floor))
    return float(np.linalg.norm(np.clip(standardised, -clip, clip)))


@dataclass(frozen=True)
class Root:
    """The root of the clipped statistic, as released, and the scale of its noise."""

    value: float
    scale: float
    promise: Promise


def _scale(epsilon: float) -> Fraction:
    return exact_scale(CHANGE / epsilon * (1 + 1e-12))


def root_event(epsilon: float) -> Event:
    """Return what :func:`release_root` costs."""
    return Pure(float(CHANGE / _scale(epsilon)) * (1 + 1e-15))


def release_root(
    labels: FloatArray,
    predictions: FloatArray | Column,
    cuts: FloatArray,
    epsilon: float,
    floor: float,
    clip: float,
    relation: Relation,
    account: Account,
    source: Randomness,
    held: Held | None = None,
) -> Root:
    """Release the root of the clipped statistic. Spends `epsilon` once.

    With `held`, some rows of each unit are chosen; as many rows move the root as many times.
    """
    most = ONE_ROW if held is None else held.contribution
    step = root_sensitivity(floor, clip, relation) / ROOT_STEPS
    scale = _scale(epsilon) * most.rows
    bound = Sensitivity(CHANGE * most.rows, "l1", relation)
    public = "units" if most.of_units else "records"
    noise = IntegerNoise(
        "laplace",
        scale,
        bound,
        most.told(root_event(epsilon)),
        "Hosmer-Lemeshow statistic released directly, discrete Laplace noise",
        (f"the number of {public} is public",) if relation.count_is_public else (),
    )

    def measure(records: Any) -> int:
        if isinstance(records, dict):
            return round(_root_of_sums(records, floor, clip) / step)
        if held is not None:
            records = (records[0][held.kept], records[1][held.kept])
        return round(clipped_root(records[0], records[1], cuts, floor, clip) / step)

    made = predictions.assumptions if isinstance(predictions, Column) else ()
    query = Query.of(
        measure,
        bound,
        "",
        unit=most.unit,
        assumptions=(PUBLIC_CUTS, *most.sentences, *made),
        unit_rows=most.unit_rows,
    )
    rows: Any = (labels, predictions)
    if isinstance(predictions, Column):
        rows = predictions.sums(cuts, ("expected",))
    parties = ThisProcess(rows)
    found = release(query, noise, parties, account, rng=source)
    return Root(found.value * step, float(scale) * step, found.promise)


def root_p_value(
    root: Root, groups: int, clip: float, *, fitted: bool, draws: int, seed: int
) -> float:
    """Return the probability of a root at least as large if the predictions are right."""
    generator = np.random.default_rng(seed)
    degrees = max(groups - (2 if fitted else 0), 1)
    null = np.clip(generator.standard_normal((draws, degrees)), -clip, clip)
    simulated = np.linalg.norm(null, axis=1) + generator.laplace(0, root.scale, draws)
    return (1 + int((simulated >= root.value).sum())) / (draws + 1)
