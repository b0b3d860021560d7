"""A noisy sum over a Poisson sample of rows, of which one unit may have several.

How many of a unit's k rows are drawn is binomial, and each of them moves the sum by one bound at
most. The worst pair is a mixture of Gaussians at 0, 1, ..., k bounds against none
(docs/proofs/events.md#poisson-rows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution as pld, privacy_loss_mechanism
from scipy.special import logsumexp
from scipy.stats import binom, norm

from noisewise import checks
from noisewise.privacy.events.base import NO_NOISE, Array, Event, register
from noisewise.privacy.events.renyi import SLACK
from noisewise.privacy.relation import Relation

__all__ = ["PoissonRows", "binomial"]

#: Probability of many rows at once that is given to all k of them instead, which costs more: for
#: losses, whose tails are cut off long before, and for divergences, which feel all of them.
_RARE, _NEVER = 1e-25, 1e-290
_MOST_POINTS = 400_000
#: Steps of a bisection, after a grid of so many points has found the bracket.
_HALVINGS, _BRACKETS = 26, 4096
_AT_A_TIME = 1 << 20


def binomial(rows: int, rate: float, rare: float = _RARE) -> tuple[Array, Array]:
    """How many of a unit's rows are drawn, and with which probabilities, rounded up."""
    numbers = np.arange(rows + 1, dtype=np.float64)
    probabilities = np.asarray(binom.pmf(numbers, rows, rate), dtype=np.float64)
    above = np.asarray(binom.sf(numbers, rows, rate), dtype=np.float64)
    last = int(np.argmax(above <= rare))
    if last < rows:
        numbers = np.append(numbers[: last + 1], float(rows))
        probabilities = np.append(probabilities[: last + 1], max(above[last], 1e-300))
    # What rounding has lost of the probability belongs to the worst case, too.
    probabilities[0] = max(0.0, 1.0 - math.fsum(probabilities[1:]))
    kept = probabilities > 0
    return numbers[kept], probabilities[kept]


@register
@dataclass(frozen=True)
class PoissonRows(Event):
    """A sum over a Poisson sample of rows plus Gaussian noise, seen by a unit of several rows.

    Parameters
    ----------
    noise_multiplier : float
        Noise deviation over the largest l2 norm of one *row's* contribution.
    sample_rate : float
        Probability with which each row enters the sum, independently; 1 is the full batch.
    rows : int
        How many rows a unit has at most.
    count : int
        Number of such steps.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    rows: int = 1
    count: int = 1
    kind: ClassVar[str] = "poisson-rows"
    words: ClassVar[str] = (
        "a noisy *sum over rows* of a Poisson sample, at most `rows` of them of one unit"
    )
    scale: ClassVar[str] = "the largest l2 norm of **one row's contribution**"
    proof: ClassVar[str] = "docs/proofs/events.md#poisson-rows"
    relations: ClassVar[tuple[str, ...]] = ("add-remove",)

    def __post_init__(self) -> None:
        self._check("noise_multiplier", checks.positive, NO_NOISE)
        self._check("sample_rate", checks.probability)
        self._check("rows", checks.integer, minimum=1, maximum=10**6)
        self._check_count()

    @classmethod
    def examples(cls) -> tuple[PoissonRows, ...]:
        """A training on up to eight visits, few steps on many rows, full batches, single rows."""
        some = cls(4.0, 0.02, 8, 300), cls(9.0, 0.2, 20, 3)
        return *some, cls(60.0, 1.0, 3, 30), cls(1.1, 0.02, 1, 500)

    def losses(self, relation: Relation, width: float) -> Any:
        """Both directions of the mixture, by dp-accounting's formulas and rounding."""
        if self.sample_rate == 1.0:
            return pld.from_gaussian_mechanism(
                self.noise_multiplier / self.rows, value_discretization_interval=width
            )
        kinds = privacy_loss_mechanism.AdjacencyType
        return pld.PrivacyLossDistribution(
            *(self._rounded(kind, width) for kind in (kinds.REMOVE, kinds.ADD))
        )

    def _rounded(self, kind: Any, width: float) -> Any:
        numbers, probabilities = binomial(self.rows, self.sample_rate)
        mixture = _Mixture(
            self.noise_multiplier, numbers, probabilities / probabilities.sum(), adjacency_type=kind
        )
        bounds = mixture.connect_dots_bounds()
        low, high = (
            math.floor(bounds.epsilon_lower / width),
            math.ceil(bounds.epsilon_upper / width),
        )
        deltas = mixture.get_delta_for_epsilon(np.arange(low, high + 1) * width)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, low, high, deltas)

    def largest_loss(self, relation: Relation) -> float:
        """The loss beyond which dp-accounting truncates: where a sum is with probability e^-50."""
        noise = self.noise_multiplier
        numbers, probabilities = binomial(self.rows, self.sample_rate)
        low, high = 0.0, self.rows + 10 * noise
        for _ in range(60):
            middle = (low + high) / 2
            beyond = float((probabilities * norm.sf((middle - numbers) / noise)).sum())
            low, high = (middle, high) if beyond > 2e-22 else (low, middle)
        tilt = np.log(probabilities) + numbers * (2 * high - numbers) / (2 * noise**2)
        return max(float(logsumexp(tilt)), 1e-3 * self.rows / noise)

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By quadrature, the larger of both directions."""
        noise = self.noise_multiplier
        if self.sample_rate == 1.0:
            return np.array(orders) * self.rows**2 / (2 * noise**2)
        numbers, probabilities = binomial(self.rows, self.sample_rate, _NEVER)
        return np.array(
            [_divergence(noise, numbers, np.log(probabilities), order) for order in orders]
        )

    def covers(self, other: Event) -> bool:
        """No more noise, and at least as many rows, at the same rate and as often."""
        return (
            isinstance(other, PoissonRows)
            and self.noise_multiplier <= other.noise_multiplier
            and self.sample_rate == other.sample_rate
            and self.rows >= other.rows
            and self.count >= other.count
        )

    @property
    def gaussian_rate(self) -> float:
        """Rate of the Poisson sample of rows."""
        return self.sample_rate

    @property
    def secret_rate(self) -> float | None:
        """The sample rate, unless every row is drawn."""
        return None if self.sample_rate == 1.0 else self.sample_rate


class _Mixture(privacy_loss_mechanism.MixtureGaussianPrivacyLoss):  # type: ignore[misc]
    """dp-accounting's mixture, whose losses are inverted all at once instead of one by one."""

    def inverse_privacy_losses(self, privacy_losses: Array, precision: float = 1e-6) -> Array:
        """Where the loss is each of these, which increase; at infinity where it never is."""
        removing = self.adjacency_type == privacy_loss_mechanism.AdjacencyType.REMOVE
        # Both losses are made of f(t) = ln sum p_j exp((2 j t - j^2) / (2 s^2)), which rises from
        # ln p_0: f(-x) for removing, and -f(x) for adding.
        wanted = np.asarray(privacy_losses, dtype=np.float64) * (1.0 if removing else -1.0)
        start = math.log(self.sampling_probs[0]) if self.sensitivities[0] == 0 else -math.inf
        finite = wanted > start + 1e-12
        found = np.full(wanted.shape, -np.inf)
        found[finite] = self._inverse(wanted[finite])
        return -found if removing else found

    def _inverse(self, wanted: Array) -> Array:
        if not wanted.size:
            return wanted
        low, high = -1.0, 1.0
        while self._risen(np.array([low]))[0] > wanted.min():
            low *= 2
        while self._risen(np.array([high]))[0] < wanted.max():
            high *= 2
        grid = np.linspace(low, high, _BRACKETS)
        place = np.clip(np.searchsorted(self._risen(grid), wanted), 1, _BRACKETS - 1)
        below, above = grid[place - 1], grid[place]
        for _ in range(_HALVINGS):
            middle = (below + above) / 2
            lower = self._risen(middle) < wanted
            below, above = np.where(lower, middle, below), np.where(lower, above, middle)
        return above

    def _risen(self, t: Array) -> Array:
        """f(t)."""
        return _log_ratio(t, self.sensitivities, self._log_sampling_probs, self._variance)


def _log_ratio(t: Array, numbers: Array, logs: Array, variance: float) -> Array:
    """Logarithm of the density of the mixture over that of N(0)."""
    size = max(1, _AT_A_TIME // len(numbers))
    parts = []
    for start in range(0, len(t), size):
        tilt = numbers * (2 * t[start : start + size, None] - numbers) / (2 * variance)
        terms = logs + tilt
        top = terms.max(1)
        parts.append(top + np.log(np.exp(terms - top[:, None]).sum(1)))
    return np.concatenate(parts)


def _divergence(noise: float, numbers: Array, logs: Array, order: float) -> float:
    """Renyi divergence between the mixture and N(0), in the worse direction.

    The trapezoidal rule, as for the replace-one pair of one row. As polynomials of degree k with
    coefficients >= 0 have no zero within an angle of pi/k around the positive numbers, the mixture
    has none within pi s^2 / k of the real line, hence the step.
    """
    most = float(numbers[-1])
    step = min(noise / 8, noise * noise / (2 * most))
    low, high = -most * order - 40 * noise, most * order + 40 * noise
    points = math.ceil((high - low) / step)
    if points > _MOST_POINTS:
        return math.inf
    x: Array = low + step * np.arange(points + 1, dtype=np.float64)
    base = -(x**2) / (2 * noise**2)
    mixed = base + _log_ratio(x, numbers, logs, noise**2)
    scale = math.log(step) - math.log(noise) - 0.5 * math.log(2 * math.pi)
    moments = [
        float(logsumexp(order * first + (1 - order) * second)) + scale
        for first, second in ((mixed, base), (base, mixed))
    ]
    return max(0.0, max(moments) + SLACK) / (order - 1) * (1 + SLACK)
