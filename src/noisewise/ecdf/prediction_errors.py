"""How good predictions are, beyond two classes: a private confusion matrix, private R2 and MAE.

One release each, of sums to which one record adds a bounded amount
(:mod:`noisewise.ecdf.group_sums`, docs/proofs/curves.md#groups); everything else is computed from
the noisy sums, with intervals (docs/proofs/curves.md#intervals). One record is in one cell of a
confusion matrix; in a regression it adds 1 to the number of records, and at most 1 to each of four
sums of scaled numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import account_of
from noisewise.ecdf.grid import Grid, as_numbers
from noisewise.ecdf.group_sums import (
    ROUNDED,
    SUM_UNIT,
    Family,
    GroupSums,
    Held,
    group_mechanism,
    release_sums,
    to_units,
)
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.registry import curve
from noisewise.privacy import Event, Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import ONE_ROW, LedgerOrPath, one_vocabulary, per_unit

__all__ = [
    "PrivateConfusion",
    "PrivateRegressionErrors",
    "confusion_event",
    "private_confusion",
    "private_regression_errors",
    "regression_event",
]

#: Sums of a regression and their parts of epsilon.
_SUMS = {"count": 0.2, "absolute": 0.3, "square": 0.2, "target": 0.15, "target_square": 0.15}
_NO_CUTS: FloatArray = np.empty(0)


@dataclass(frozen=True, eq=False)
class PrivateConfusion:
    """A noisy confusion matrix. Made by :func:`private_confusion`.

    Attributes
    ----------
    classes : tuple
    counts : array
        Rows are true classes, columns predicted ones; negative where there is only noise.
    """

    classes: tuple[Any, ...]
    counts: FloatArray
    sums: GroupSums

    @property
    def records(self) -> float:
        """Estimated number of records."""
        return max(1.0, float(self.counts.sum()))

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return float(np.clip(np.trace(self.counts) / self.records, 0.0, 1.0))

    @property
    def base_rates(self) -> FloatArray:
        """Share of each class."""
        return np.asarray(np.clip(self.counts.sum(axis=1) / self.records, 0.0, 1.0))

    @property
    def recalls(self) -> FloatArray:
        """Share of each class that is found."""
        found = np.diag(self.counts) / np.maximum(self.counts.sum(axis=1), 1.0)
        return np.asarray(np.clip(found, 0.0, 1.0))

    def accuracy_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return what the noise leaves open: the accuracy on these records is inside, at `level`.

        The counts of right and of wrong predictions have noise of their own.
        """
        size, part = len(self.classes), math.sqrt(checks.fraction("level", level))
        right = float(np.trace(self.counts))
        wrong = float(self.counts.sum()) - right
        ends = []
        for total, terms in ((right, size), (wrong, size * (size - 1))):
            reach = self.sums.noise_of_sum("0,0", terms, part)
            ends.append((max(0.0, total - reach), max(0.0, total + reach)))
        (least, most), (fewest, many) = ends
        return least / max(least + many, 1.0), most / max(most + fewest, 1e-300)

    @property
    def standard_error(self) -> float:
        """Of one count, by the noise alone."""
        return math.sqrt(2.0) * self.sums.scales["0,0"]

    def summary(self) -> dict[str, Any]:
        """Return the main numbers as plain values."""
        names = [str(name) for name in self.classes]
        return {
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.accuracy_interval()),
            "records": self.records,
            "base_rates": dict(zip(names, self.base_rates.tolist(), strict=True)),
            "recalls": dict(zip(names, self.recalls.tolist(), strict=True)),
            "noise_of_a_count": self.standard_error,
        }

    def statement(self) -> Statement:
        """Return what was promised."""
        return self.sums.statement()


@curve(answers="How often each class was taken for each other one.", proof="proofs/curves.md#trees")
@one_vocabulary
def private_confusion(
    y: Any,
    predicted: Any,
    *,
    classes: Sequence[Any],
    epsilon: float,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
) -> PrivateConfusion:
    """Release the confusion matrix of predictions, with integer noise.

    Parameters
    ----------
    y, predicted : array
        True and predicted classes. Records with another class are not counted.
    classes : sequence
        The public classes.
    epsilon : float
    relation, units, max_per_unit, ledger, seed
        As of the curves.

    Examples
    --------
    >>> y = np.repeat([0, 1], 500)
    >>> found = private_confusion(y, y, classes=[0, 1], epsilon=1.0, seed=1)
    >>> found.accuracy > 0.9
    True
    """
    relation, source = Relation.of(relation), resolve(seed)
    listed = _distinct(classes)
    true, said = checks.array("y", y), checks.array("predicted", predicted)
    if true.shape != said.shape or true.ndim != 1:
        raise ValueError(
            "y and predicted must have one class for each record, got shapes "
            f"{true.shape} and {said.shape}"
        )
    names = tuple(f"{row},{column}" for row in range(len(listed)) for column in range(len(listed)))
    cells = np.zeros((len(true), len(names)), np.int64)
    for row, one in enumerate(listed):
        for column, other in enumerate(listed):
            cells[:, row * len(listed) + column] = SUM_UNIT * ((true == one) & (said == other))
    bounded = per_unit(units, max_per_unit, source)
    held = Held.of(bounded, units, len(true))
    most = ONE_ROW if bounded is None else bounded.contribution
    with account_of(ledger, relation, Budget(epsilon, 0.0), most) as account:
        sums = release_sums(
            np.zeros(len(true), np.intp),
            [Family(names, cells, SUM_UNIT, 1.0)],
            _NO_CUTS,
            epsilon=epsilon,
            relation=relation,
            rng=source,
            account=account,
            what="confusion matrix",
            held=held,
        )
    counts = np.array([sums.columns[name][0] for name in names])
    return PrivateConfusion(listed, counts.reshape(len(listed), len(listed)), sums)


def _distinct(classes: Sequence[Any]) -> tuple[Any, ...]:
    """Return public classes; a record of one that is listed twice would be counted nowhere."""
    listed = () if isinstance(classes, (str, bytes)) else tuple(classes)
    twice = any(bool(one == other) for one, other in itertools.combinations(listed, 2))
    if len(listed) < 2 or twice:
        raise ValueError(
            f"classes must be two or more public classes, all different, got {classes!r}; "
            "1, 1.0 and True are the same"
        )
    return listed


def confusion_event(classes: int, epsilon: float, relation: Relation) -> Event:
    """Return what :func:`private_confusion` costs."""
    return group_mechanism(1, (classes**2,), (SUM_UNIT,), (1.0,), epsilon, relation).event


@dataclass(frozen=True, eq=False)
class PrivateRegressionErrors:
    """Noisy errors of a regression. Made by :func:`private_regression_errors`."""

    low: float
    high: float
    sums: GroupSums

    def _sum(self, name: str) -> float:
        return float(self.sums.columns[name][0])

    @property
    def records(self) -> float:
        """Estimated number of records."""
        return max(1.0, self._sum("count"))

    @property
    def mean_absolute_error(self) -> float:
        """MAE, in the units of the target."""
        share = min(1.0, max(0.0, self._sum("absolute") / self.records))
        return share * (self.high - self.low)

    @property
    def root_mean_squared_error(self) -> float:
        """RMSE, in the units of the target."""
        share = min(1.0, max(0.0, self._sum("square") / self.records))
        return math.sqrt(share) * (self.high - self.low)

    @property
    def mean_target(self) -> float:
        """Mean of the target."""
        share = min(1.0, max(0.0, self._sum("target") / self.records))
        return self.low + share * (self.high - self.low)

    @property
    def r2(self) -> float:
        """Part of the variance that is explained; NaN if the noise hides the variance."""
        mean = self._sum("target") / self.records
        variance = self._sum("target_square") / self.records - mean**2
        if variance <= 0.0:
            return math.nan
        return 1.0 - max(0.0, self._sum("square") / self.records) / variance

    def _span(self, name: str, level: float) -> tuple[float, float]:
        """Return where a sum is without its noise; all of them are there together, at `level`."""
        part = checks.fraction("level", level) ** (1 / len(_SUMS))
        reach = self.sums.noise_of_sum(name, 1, part)
        if name != "count":
            reach += ROUNDED * self._span("count", level)[1]
        return max(0.0, self._sum(name) - reach), max(0.0, self._sum(name) + reach)

    def _share(self, name: str, level: float) -> tuple[float, float]:
        """Return where a mean over the records is without noise; it is at most 1."""
        low, high = self._span("count", level)
        least, most = self._span(name, level)
        return least / max(high, 1.0), min(1.0, most / max(low, 1.0))

    def r2_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return what the noise leaves open: R2 on these records is inside, at `level`."""
        low, high = self._span("count", level)
        low = max(low, 1.0)
        first, last = self._span("target", level)
        smallest, largest = self._span("target_square", level)
        least, most = self._span("square", level)
        # The sum of squares around the mean is at most a quarter for each record.
        spread = min(largest - first**2 / max(high, 1.0), max(high, 1.0) / 4)
        narrow = smallest - min(last, high) ** 2 / low
        upper = 1.0 - least / spread if spread > 0.0 else 1.0
        return (1.0 - most / narrow if narrow > 0.0 else -math.inf), upper

    def mean_absolute_error_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return what the noise leaves open: the MAE on these records is inside, at `level`."""
        low, high = self._share("absolute", level)
        return low * (self.high - self.low), high * (self.high - self.low)

    def root_mean_squared_error_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return what the noise leaves open: the RMSE on these records is inside, at `level`."""
        low, high = self._share("square", level)
        return math.sqrt(low) * (self.high - self.low), math.sqrt(high) * (self.high - self.low)

    @property
    def standard_error(self) -> float:
        """Of the MAE, by the noise alone."""
        noise = math.sqrt(2.0) * self.sums.scales["absolute"]
        return noise / self.records * (self.high - self.low)

    def summary(self) -> dict[str, Any]:
        """Return the main numbers as plain values."""
        found = self.r2
        return {
            "r2": None if math.isnan(found) else found,
            "r2_interval": list(self.r2_interval()),
            "mean_absolute_error": self.mean_absolute_error,
            "mean_absolute_error_interval": list(self.mean_absolute_error_interval()),
            "mean_absolute_error_noise": self.standard_error,
            "root_mean_squared_error": self.root_mean_squared_error,
            "root_mean_squared_error_interval": list(self.root_mean_squared_error_interval()),
            "mean_target": self.mean_target,
            "records": self.records,
        }

    def statement(self) -> Statement:
        """Return what was promised."""
        return self.sums.statement()


@curve(answers="Mean absolute error and R² of predicted numbers.", proof="proofs/curves.md#groups")
@one_vocabulary
def private_regression_errors(
    y: Any,
    predicted: Any,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
) -> PrivateRegressionErrors:
    """Release R2, MAE and RMSE of a regression within one budget.

    Parameters
    ----------
    y, predicted : array
        Targets and predictions; both are clamped to `bounds`.
    bounds : pair of float
        Public range of the target.
    epsilon : float
    relation, units, max_per_unit, ledger, seed
        As of the curves.

    Examples
    --------
    >>> y = np.linspace(0, 100, 5000)
    >>> found = private_regression_errors(y, y + 3, bounds=(0, 100), epsilon=1.0, seed=1)
    >>> 2 < found.mean_absolute_error < 4 and found.r2 > 0.9
    True
    """
    relation, source = Relation.of(relation), resolve(seed)
    low, high = (float(bound) for bound in bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"bounds must be a public range low < high of the target, got {bounds!r}")
    Grid(low, np.array([high]))  # refuses a range whose places doubles cannot tell apart
    true, said = as_numbers(y, "y"), as_numbers(predicted, "predicted")
    if true.shape != said.shape:
        raise ValueError(
            "y and predicted must have one number for each record, got shapes "
            f"{true.shape} and {said.shape}"
        )
    place, guess = ((np.clip(part, low, high) - low) / (high - low) for part in (true, said))
    # A record without a number adds nothing to any sum, by the rule of `bounded` too.
    known = np.isfinite(place) & np.isfinite(guess)
    place, guess = np.where(known, place, 0.0), np.where(known, guess, 0.0)
    error = np.abs(guess - place)
    values = {
        "count": known.astype(np.float64),
        "absolute": error,
        "square": error**2,
        "target": place,
        "target_square": place**2,
    }
    families = [
        Family((name,), np.minimum(to_units(values[name]), SUM_UNIT)[:, None], SUM_UNIT, share)
        for name, share in _SUMS.items()
    ]
    bounded = per_unit(units, max_per_unit, source)
    held = Held.of(bounded, units, len(true))
    most = ONE_ROW if bounded is None else bounded.contribution
    with account_of(ledger, relation, Budget(epsilon, 0.0), most) as account:
        sums = release_sums(
            np.zeros(len(true), np.intp),
            families,
            _NO_CUTS,
            epsilon=epsilon,
            relation=relation,
            rng=source,
            account=account,
            what="errors of a regression",
            held=held,
        )
    return PrivateRegressionErrors(low, high, sums)


def regression_event(epsilon: float, relation: Relation) -> Event:
    """Return what :func:`private_regression_errors` costs."""
    number = len(_SUMS)
    shares = tuple(_SUMS.values())
    return group_mechanism(1, (1,) * number, (SUM_UNIT,) * number, shares, epsilon, relation).event
