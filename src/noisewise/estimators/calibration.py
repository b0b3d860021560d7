"""Probabilities that mean what they say: three numbers learnt from one noisy histogram.

Clipping shortens the gradients of records that a model gets badly wrong, and so hides from it that
it is too sure (Bu, Wang, Dai and Long 2021). A monotone curve through the scores repairs most of
that (after Platt 1999): p = sigmoid(slope * score^power + offset). What it needs to know of the
records are counts: how many of either outcome have a score in each of a few public intervals. One
record is in one count, so the counts are released with discrete Laplace noise at a small part of
the budget (docs/proofs/mechanisms.md#calibration), and the curve follows from the noisy counts.

With two classes the score is the difference of the two scores, and the outcome the class. With
more it is the log-odds of the most probable class, and the outcome whether that is right; the curve
then moves all scores of a row by one temperature, so that their order stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from noisewise.estimators.network import Array
from noisewise.privacy import Pure, Randomness, Sensitivity
from noisewise.privacy.randomness import exact_scale
from noisewise.release import (
    Account,
    IntegerNoise,
    MemoryAccount,
    Query,
    Release,
    ThisProcess,
    release,
)

__all__ = ["CLIPPED_SLOPE", "Calibration", "calibrate_scores", "calibration_event", "noisy_counts"]

Floats = npt.NDArray[np.float64]

#: Scores beyond are counted at the ends; intervals between them.
_FAR = 12.0
_INTERVALS = 12
_SLOPES = np.exp(np.linspace(np.log(0.02), np.log(3.0), 141))
_OFFSETS = np.linspace(-2.0, 2.0, 81)
_POWERS = (1.0, 1.2, 1.4)
#: Standard deviations of the noise by which a curve must be better than the one without counts.
_DOUBT = 2.5
#: How much of a score is meant where gradients are clipped: a constant, from the seven tables of
#: docs/results-tables.md. Layers of bounded norm need no such thing.
CLIPPED_SLOPE = 0.6


@dataclass(frozen=True)
class Calibration:
    """A monotone curve through scores.

    Parameters
    ----------
    slope, offset, power : float
        The identity is 1, 0 and 1.
    """

    slope: float = 1.0
    offset: float = 0.0
    power: float = 1.0

    def curve(self, score: Floats) -> Floats:
        """Return calibrated log-odds."""
        bent = np.sign(score) * np.abs(score) ** self.power
        return np.asarray(self.slope * bent + self.offset)

    def calibrated(self, scores: Array) -> Floats:
        """Return scores whose softmax is calibrated; of three or more the order stays."""
        values = scores.astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        if values.shape[1] == 2:
            difference = self.curve(values[:, 1] - values[:, 0])
            return np.stack([np.zeros_like(difference), difference], axis=1)
        least = -np.log(values.shape[1] - 1.0)
        wanted = np.maximum(self.curve(_top(values)), least + 1e-9)
        return values * _temperatures(values, wanted)[:, None]


def _top(values: Floats) -> Floats:
    """Log-odds of the most probable class; `values` are at most 0 and one of a row is 0."""
    others = np.sort(values, axis=1)[:, :-1]
    others = np.nan_to_num(others, nan=0.0)  # a row of no numbers counts as undecided
    return np.asarray(-np.logaddexp.reduce(others, axis=1))


def _temperatures(values: Floats, wanted: Floats) -> Floats:
    """Factor of each row by which its most probable class gets the log-odds that are wanted."""
    low, high = np.zeros(len(values)), np.full(len(values), 64.0)
    for _ in range(60):
        middle = (low + high) / 2
        above = _top(values * middle[:, None]) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _cells(scores: Array, target: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Score and outcome of each record."""
    values = scores.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    if values.shape[1] == 2:
        return values[:, 1] - values[:, 0], target
    return _top(values), (scores.argmax(axis=1) == target).astype(np.int64)


def _edges(classes: int) -> Floats:
    low = -_FAR if classes == 2 else -np.log(classes - 1.0)
    return np.linspace(low, _FAR, _INTERVALS + 1)


def calibration_event(epsilon: float) -> Pure:
    """What the counts cost; known before anything is counted."""
    return Pure(1.0 / float(_scale(epsilon)) * (1 + 1e-15))


def _scale(epsilon: float) -> Fraction:
    return exact_scale(1.0 / epsilon * (1 + 1e-15))


def noisy_counts(
    scores: Array,
    target: npt.NDArray[np.int64],
    epsilon: float,
    *,
    rng: Randomness | None,
    account: Account | None = None,
    unit: str = "one record",
    run: str = "",
) -> Release:
    """Release how many records of either outcome have a score in each interval.

    A record adds 1 to one count, so adding or removing it moves the counts by 1 in l1.
    """

    def count(records: tuple[Array, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        score, outcome = _cells(*records)
        edges = _edges(records[0].shape[1])
        # What is no number is counted at the low end: every record is in exactly one count.
        score = np.nan_to_num(score, nan=edges[0])
        place = np.clip(np.searchsorted(edges, score, side="right") - 1, 0, _INTERVALS - 1)
        counts = np.zeros((_INTERVALS, 2), np.int64)
        np.add.at(counts, (place, outcome), 1)
        return counts

    one = Sensitivity(1.0, "l1")
    what = "discrete Laplace noise, exact sampling"
    noise = IntegerNoise("laplace", _scale(epsilon), one, calibration_event(epsilon), what)
    named = f"{run}: " if run else ""
    query = Query.of(count, one, f"{named}counts for calibration", unit=unit)
    held = MemoryAccount() if account is None else account
    return release(query, noise, ThisProcess((scores, target)), held, rng=rng)


def calibrate_scores(
    counts: npt.NDArray[np.int64], epsilon: float, classes: int, known: Calibration
) -> Calibration:
    """Return the curve that fits noisy counts best, as far as they can tell.

    Curves are compared with `known`, which needs no counts, by their gain in likelihood less one
    standard deviation of the noise in it. The best one must gain 2.5 of them, or `known` stays:
    noise alone hardly ever chooses.
    """
    edges = _edges(classes)
    middle = (edges[1:] + edges[:-1]) / 2
    before = known.curve(middle)
    best, chosen = 0.0, known
    for power in _POWERS:
        bent = Calibration(power=power).curve(middle)
        moved = _SLOPES[:, None, None] * bent + _OFFSETS[None, :, None]
        worse_1 = np.logaddexp(0.0, -moved) - np.logaddexp(0.0, -before)
        worse_0 = np.logaddexp(0.0, moved) - np.logaddexp(0.0, before)
        loss = worse_1 @ counts[:, 1] + worse_0 @ counts[:, 0]
        noise = np.sqrt(2.0) / epsilon * np.sqrt((worse_1**2 + worse_0**2).sum(axis=-1))
        total = loss + noise
        row, column = np.unravel_index(int(np.argmin(total)), total.shape)
        sure = loss[row, column] + _DOUBT * noise[row, column] < 0.0
        if sure and total[row, column] < best:
            best = float(total[row, column])
            chosen = Calibration(float(_SLOPES[row]), float(_OFFSETS[column]), power)
    return chosen
