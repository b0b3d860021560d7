"""What the scores would look like if the mechanism is Gaussian noise on a sum.

Error rates of an attack say something about *one* epsilon at a time. If the
mechanism is known to add Gaussian noise to a sum over a Poisson sample, only the
noise multiplier is unknown: error rates bound it from above, and the accountant
turns it into epsilon at any delta, after any number of steps. Trade-off functions:
Dong, Roth and Su (2022); their use in audits: Nasr et al. (2023).

Every inversion is conservative: the trade-off curve is a lower bound of the true
one, the noise multiplier an upper bound, the epsilon of it a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import binom

from noisewise import checks
from noisewise.auditing.scores import OBSERVED
from noisewise.privacy import ADD_REMOVE, Relation, Statement

__all__ = ["NoiseModel", "gaussian_epsilon"]

Array = NDArray[np.float64]

_LEAST_NOISE, _MOST_NOISE = 0.05, 1e4


@dataclass(frozen=True)
class NoiseModel:
    """Gaussian noise on a sum over a Poisson sample, of unknown noise multiplier.

    Parameters
    ----------
    sample_rate : float
        Probability of each record to be in a batch, as claimed.
    steps : int
        Number of steps whose total epsilon is asked for, as claimed.
    observed : {"batch", "step", "run"}
        What one score was computed from, see
        :data:`noisewise.auditing.scores.OBSERVED`.
    relation : {"add-remove", "replace-one"}
    rows : int
        Rows of one unit, each of which is drawn and bounded by itself, as claimed. More than one
        can be judged from batches in which all of them are (docs/proofs/events.md#poisson-rows).

    Examples
    --------
    >>> model = NoiseModel()
    >>> sigma = model.noise_upper_bound(0.3085375, 0.3085375)   # both rates of N(0,1), N(1,1)
    >>> round(sigma, 4), round(model.epsilon(sigma, 1e-5), 3)
    (1.0, 4.377)
    """

    sample_rate: float = 1.0
    steps: int = 1
    observed: str = "batch"
    relation: Relation = ADD_REMOVE
    rows: int = 1

    def __post_init__(self) -> None:
        rate = checks.probability("sample_rate", self.sample_rate)
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, minimum=1))
        checks.choice("observed", self.observed, OBSERVED)
        object.__setattr__(self, "relation", Relation.of(self.relation))
        object.__setattr__(self, "rows", checks.integer("rows", self.rows, minimum=1))
        if self.rows > 1 and (self.observed != "batch" or self.relation != ADD_REMOVE):
            raise ValueError(
                "rows of a unit that are drawn one by one are judged from batches that hold all of "
                "them, under add-remove: use method='clopper-pearson' or 'one-run' otherwise"
            )

    @classmethod
    def of(cls, statement: Statement, observed: str) -> NoiseModel:
        """Take sampling rate, steps and relation from a claim.

        Raises
        ------
        ValueError
            If the claim is not about one kind of Gaussian noise.
        """
        history = statement.history
        rate = history[0].gaussian_rate if len(history) == 1 else None
        if rate is None:
            raise ValueError(
                "the claim is not about one kind of Gaussian noise on a sum, so its noise cannot "
                "be bounded; use method='clopper-pearson' or 'one-run', which assume nothing about "
                "it"
            )
        rows = getattr(history[0], "rows", None) or 1
        return cls(rate, statement.steps, observed, statement.relation, rows)

    def noise_upper_bound(self, false_positive: float, false_negative: float) -> float | None:
        """Largest noise multiplier that allows an attack with rates this small.

        ``inf`` if every multiplier allows it; None if none does, so that the
        sampling rate itself, or the whole model, is refuted.
        """
        return self.tightest(np.array([false_positive]), np.array([false_negative]))[0]

    def tightest(self, false_positive: Array, false_negative: Array) -> tuple[float | None, int]:
        """Smallest of the upper bounds that several pairs of rates give, and its index."""
        pairs = list(zip(false_positive.tolist(), false_negative.tolist(), strict=True))
        if self.observed != "batch" and not self._whole_batches and not self._closed_form:
            return self._search(pairs)
        found: list[float | None] = [self._in_closed_form(p, n) for p, n in pairs]
        refuting = [index for index, noise in enumerate(found) if noise is None]
        if refuting:
            return None, refuting[0]
        best = min(range(len(found)), key=lambda index: found[index] or 0.0)
        return found[best], best

    def allows(self, false_positive: Array, false_negative: Array, noise: float | None) -> bool:
        """Whether a noise multiplier allows all of these pairs of rates (None: there is none)."""
        if noise is None:
            return True
        pairs = list(zip(false_positive.tolist(), false_negative.tolist(), strict=True))
        if math.isinf(noise):
            return all(p + n >= 1.0 for p, n in pairs)
        if self.observed != "batch" and not self._whole_batches and not self._closed_form:
            return all(self._least_miss(noise, p) <= n for p, n in pairs if p + n < 1.0)
        found = (self._in_closed_form(p, n) for p, n in pairs)
        return all(limit is not None and limit >= noise for limit in found)

    def noise_of_total(self, total: float) -> float | None:
        """Largest noise multiplier that allows error rates whose sum is so small.

        The least sum is one minus the total variation distance of the two worlds. ``inf``
        and None as for :meth:`noise_upper_bound`.
        """
        distance = 1.0 - total
        if distance <= 0.0:
            return math.inf
        if self.observed == "batch" or self._whole_batches:
            return self.noise_of_separation(2.0 * float(ndtri((1.0 + distance) / 2.0)))
        if self.observed == "step":
            # Only the sampled part differs: by one sensitivity, or by two if it is replaced.
            distance /= self.sample_rate
            if distance >= 1.0:
                return None
            return self._distance / (2.0 * float(ndtri((1.0 + distance) / 2.0)))
        return _smallest(lambda noise: self.total_variation(noise) < distance)

    def total_variation(self, noise_multiplier: float) -> float:
        """Distance of the worlds with and without a canary, rounded up: one minus the least total.

        Examples
        --------
        >>> round(NoiseModel().total_variation(1.0), 4)         # 2 Phi(1/2) - 1
        0.3829
        """
        if self.observed == "batch" or self._whole_batches:
            mu = self._distance * math.sqrt(self._steps_in_a_score) / noise_multiplier
            return float(2.0 * ndtr(mu / 2.0) - 1.0)
        # The profile at epsilon 0.
        return float(self._profile(noise_multiplier)[1][0])

    def noise_of_separation(self, deviations: float) -> float:
        """Noise multiplier if scores in and out are normal, so many deviations apart."""
        if deviations <= 0.0:
            return math.inf
        return self._distance * math.sqrt(self._steps_in_a_score) / deviations

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Lower bound of the epsilon of all steps at this noise multiplier."""
        if math.isinf(noise_multiplier):
            return 0.0
        if self._whole_batches:
            mu = self._distance * math.sqrt(self.steps) / noise_multiplier
            return gaussian_epsilon(mu, delta)
        return _composed_epsilon(
            noise_multiplier, self.sample_rate, self.steps, delta, self.relation.name, self.rows
        )

    def blow_up_inverse(self, noise_multiplier: float) -> Callable[[float], float]:
        """Inverse of x -> 1 - f(x), with f a symmetric lower bound of the trade-off curve.

        It is what one-run bounds under f-DP need; monotone in the noise.
        """
        whole = self.observed == "batch" or self._whole_batches
        if whole:
            mu = self._distance * math.sqrt(self._steps_in_a_score) / noise_multiplier

            def of_gaussian(value: float) -> float:
                return float(ndtr(ndtri(value) - mu))

            return of_gaussian
        slopes, deltas = self._profile(noise_multiplier)

        def of_profile(value: float) -> float:
            return max(0.0, float(np.max((value - deltas) / slopes)))

        return of_profile

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is assumed, in words."""
        parts = ["the mechanism adds Gaussian noise to a sum over records"]
        if not self._whole_batches and self.observed == "batch":
            parts.append(
                f"batches are Poisson samples at rate {self.sample_rate:g}, as claimed: the "
                "audit chose the batches itself and did not check the sampler"
            )
        elif not self._whole_batches:
            parts.append(
                f"batches are Poisson samples at rate {self.sample_rate:g}, as claimed; a wrong "
                "rate shows as noise that is too small"
            )
        if self.steps > 1 and self.observed != "run":
            parts.append(
                f"all {self.steps} steps add independent noise of the same size as those seen"
            )
        return tuple(parts)

    @property
    def _whole_batches(self) -> bool:
        return self.sample_rate == 1.0

    @property
    def _steps_in_a_score(self) -> int:
        return self.steps if self.observed == "run" else 1

    @property
    def _distance(self) -> float:
        """How far a canary moves the sum, in units of one record's largest contribution."""
        return float(self.relation.sum_factor * self.rows)

    @property
    def _closed_form(self) -> bool:
        return self.observed == "step" and self.relation == ADD_REMOVE

    def _in_closed_form(self, false_positive: float, false_negative: float) -> float | None:
        if false_positive + false_negative >= 1.0:
            return math.inf
        if self.observed == "batch" or self._whole_batches:
            return self.noise_of_separation(float(-ndtri(false_positive) - ndtri(false_negative)))
        return self._one_sampled_step(false_positive, false_negative)

    def _search(self, pairs: list[tuple[float, float]]) -> tuple[float | None, int]:
        useful = [index for index, (p, n) in enumerate(pairs) if p + n < 1.0]
        if not useful:
            return math.inf, 0

        def slack(noise: float, index: int) -> float:
            false_positive, false_negative = pairs[index]
            return self._least_miss(noise, false_positive) - false_negative

        noise = _smallest(lambda noise: any(slack(noise, index) > 0 for index in useful))
        if noise is None or math.isinf(noise):
            return noise, useful[0]
        return noise, max(useful, key=lambda index: slack(noise, index))

    def _one_sampled_step(self, false_positive: float, false_negative: float) -> float | None:
        # The power of the best test at level a is (1-q) a + q Phi(1/sigma - z(1-a)).
        rate = self.sample_rate
        power = (1.0 - false_negative - (1.0 - rate) * false_positive) / rate
        if power >= 1.0:
            return None
        if power <= false_positive:
            return math.inf
        return 1.0 / float(ndtri(power) - ndtri(false_positive))

    def _least_miss(self, noise: float, false_positive: float) -> float:
        """Smallest false-negative rate that the noise allows at this false-positive rate."""
        if self.observed == "step":
            return self._least_miss_of_replaced(noise, false_positive)
        slopes, deltas = self._profile(noise)
        return float(np.max(1.0 - deltas - slopes * false_positive))

    def _least_miss_of_replaced(self, noise: float, false_positive: float) -> float:
        rate = self.sample_rate

        def above(t: float, shift: float) -> float:
            return float((1 - rate) * ndtr(-t / noise) + rate * ndtr((shift - t) / noise))

        reach = 40.0 * noise + 2.0
        threshold = brentq(lambda t: above(t, -1.0) - false_positive, -reach, reach, xtol=1e-12)
        # One part in 10^9 pays for the root's rounding.
        return (1.0 - above(threshold, 1.0)) * (1 - 1e-9)

    def _profile(self, noise: float) -> tuple[Array, Array]:
        """Slopes e^eps and upper bounds of delta(eps), for positive and negative eps."""
        return _privacy_profile(noise, self.sample_rate, self._steps_in_a_score, self.relation.name)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at `delta` of distinguishing N(0, 1) from N(mu, 1), rounded down.

    Balle and Wang (2018), Theorem 8, in logarithms.

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if mu <= 0.0:
        return 0.0

    def excess(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        gap = second - first
        return first + math.log(-math.expm1(gap)) - math.log(delta) if gap < 0 else -math.inf

    if excess(0.0) <= 0.0:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + 1.0
    return max(0.0, float(brentq(excess, 0.0, high, xtol=1e-12)) * (1 - 1e-9))


@lru_cache(maxsize=256)
def _composed_epsilon(
    noise: float, rate: float, steps: int, delta: float, relation: str, rows: int = 1
) -> float:
    """Lower bound of epsilon: losses rounded down on a grid that costs at most two per cent."""
    reach = _reach(noise / rows, relation)
    rough = _composed(noise, rate, relation, steps, reach / 4e3, pessimistic=True, rows=rows)
    above = float(rough.get_epsilon_for_delta(delta))
    # Rounding down shifts the loss of each step by half a cell on average, by one at most.
    width = max(0.02 * above / steps, reach / 2e5, 1e-5)
    fine = _composed(noise, rate, relation, steps, width, pessimistic=False, rows=rows)
    return min(above, float(fine.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=512)
def _privacy_profile(noise: float, rate: float, steps: int, relation: str) -> tuple[Array, Array]:
    reach = _reach(noise, relation)
    # Connecting the dots errs by the square of the width, and upwards.
    width = max(1e-4, reach / 1e4)
    composed = _composed(noise, rate, relation, steps, width, pessimistic=True)
    # Beyond 600 the slopes overflow; leaving lines out only lowers the curve.
    largest = min(600.0, max(1e-3, float(composed.get_epsilon_for_delta(1e-9))))
    positive = np.concatenate([np.linspace(0.0, largest, 100), largest * np.geomspace(1e-4, 1, 30)])
    deltas = np.asarray(composed.get_delta_for_epsilon(np.sort(positive)), dtype=np.float64)
    slopes = np.exp(np.sort(positive))
    # Symmetry of neighbours: delta(-eps) = 1 - e^-eps (1 - delta(eps)).
    mirrored = 1.0 - (1.0 - deltas) / slopes
    return np.concatenate([slopes, 1.0 / slopes]), np.concatenate([deltas, mirrored])


def _composed(
    noise: float,
    rate: float,
    relation: str,
    steps: int,
    width: float,
    *,
    pessimistic: bool,
    rows: int = 1,
) -> Any:
    if rows > 1:
        numbers = np.arange(rows + 1)
        chances = binom.pmf(numbers, rows, rate)
        mixed = pld.from_mixture_gaussian_mechanism(
            noise,
            numbers[chances > 0].tolist(),
            chances[chances > 0].tolist(),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=width,
            use_connect_dots=False,
        )
        return mixed.self_compose(steps) if steps > 1 else mixed
    neighbours = (
        NeighboringRelation.ADD_OR_REMOVE_ONE
        if relation == "add-remove"
        else NeighboringRelation.REPLACE_ONE
    )
    once = pld.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=width,
        use_connect_dots=pessimistic,
        neighboring_relation=neighbours,
    )
    return once.self_compose(steps) if steps > 1 else once


def _reach(noise: float, relation: str) -> float:
    mu = (1.0 if relation == "add-remove" else 2.0) / noise
    return mu * mu / 2 + 10.0 * mu


def _smallest(violated: Callable[[float], bool]) -> float | None:
    """Smallest noise at which `violated` holds, rounded up; it holds for all larger noise."""
    low, high = 1.0, 1.0
    while violated(low):
        low, high = low / 2, low
        if low < _LEAST_NOISE:
            return None
    while not violated(high):
        low, high = high, high * 2
        if high > _MOST_NOISE:
            return math.inf
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if violated(middle) else (middle, high)
    return high
