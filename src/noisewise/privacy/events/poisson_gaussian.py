"""A noisy sum over a Poisson sample: one step of private training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import logsumexp

from noisewise import checks
from noisewise.privacy.events.base import NO_NOISE, Array, Event, register
from noisewise.privacy.events.gaussian import gaussian_tail
from noisewise.privacy.events.renyi import SLACK, divergences_of
from noisewise.privacy.relation import Relation

__all__ = ["PoissonGaussian", "replace_one_divergence"]

_MOST_POINTS = 400_000


@register
@dataclass(frozen=True)
class PoissonGaussian(Event):
    """A sum over a Poisson sample of the records, plus Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise deviation over the largest l2 norm of one record's contribution.
    sample_rate : float
        Probability with which each record enters the sum, independently; 1 is
        the full batch.
    count : int
        Number of such steps.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1
    kind: ClassVar[str] = "poisson-gaussian"
    words: ClassVar[str] = "a noisy *sum over records* of a Poisson sample: one step of training"
    scale: ClassVar[str] = "the largest l2 norm of **one record's contribution**"
    proof: ClassVar[str] = "docs/proofs/events.md#poisson-gaussian"

    def __post_init__(self) -> None:
        self._check("noise_multiplier", checks.positive, NO_NOISE)
        self._check("sample_rate", checks.probability)
        self._check_count()

    @classmethod
    def examples(cls) -> tuple[PoissonGaussian, ...]:
        """A training, few steps with little noise, and full batches."""
        return cls(1.1, 0.02, 500), cls(0.6, 0.2, 3), cls(20.0, 1.0, 30)

    def losses(self, relation: Relation, width: float) -> Any:
        """The pair of dp-accounting for the relation, two contributions apart if one is replaced.

        Its replace-one pair is (1-q) N(0) + q N(+1) against (1-q) N(0) + q N(-1).
        """
        neighbours = (
            NeighboringRelation.ADD_OR_REMOVE_ONE
            if relation.name == "add-remove"
            else NeighboringRelation.REPLACE_ONE
        )
        return pld.from_gaussian_mechanism(
            self.noise_multiplier,
            sampling_prob=self.sample_rate,
            neighboring_relation=neighbours,
            value_discretization_interval=width,
        )

    def largest_loss(self, relation: Relation) -> float:
        """That of one step on all records."""
        return gaussian_tail(relation.sum_factor / self.noise_multiplier)

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By dp-accounting under add-remove, by quadrature of the worst pair under replace-one."""
        noise, rate = self.noise_multiplier, self.sample_rate
        if relation.name == "add-remove":
            gaussian = dp_event.GaussianDpEvent(noise)
            return divergences_of(dp_event.PoissonSampledDpEvent(rate, gaussian), orders)
        if rate == 1.0:
            return 2.0 * np.array(orders) / noise**2
        return np.array([replace_one_divergence(noise, rate, order) for order in orders])

    @property
    def secret_rate(self) -> float | None:
        """The sample rate, unless everybody is drawn."""
        return None if self.sample_rate == 1.0 else self.sample_rate

    @property
    def gaussian_rate(self) -> float:
        """The sample rate."""
        return self.sample_rate


def replace_one_divergence(noise_multiplier: float, sample_rate: float, order: float) -> float:
    """Renyi divergence between (1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1).

    The trapezoidal rule on an analytic integrand that vanishes at both ends
    converges exponentially in (strip width / step). The strip ends where the
    second density has a zero, pi s^2 away from the real line, hence the step.
    Orders that would need too many points are answered by ``inf``, which only
    removes them from the minimum over orders.
    """
    s, q = noise_multiplier, sample_rate
    step = min(s / 8, s * s / 2)
    low, high = -1.0 - 40 * s, 2 * order + 1 + 40 * s
    points = math.ceil((high - low) / step)
    if points > _MOST_POINTS:
        return math.inf
    x = low + step * np.arange(points + 1)
    log_keep, log_take = math.log1p(-q), math.log(q)
    base = -(x**2) / (2 * s * s)
    log_upper = np.logaddexp(log_keep + base, log_take - (x - 1) ** 2 / (2 * s * s))
    log_lower = np.logaddexp(log_keep + base, log_take - (x + 1) ** 2 / (2 * s * s))
    log_integral = float(logsumexp(order * log_upper + (1 - order) * log_lower))
    log_moment = log_integral + math.log(step) - math.log(s) - 0.5 * math.log(2 * math.pi)
    return max(0.0, log_moment + SLACK) / (order - 1) * (1 + SLACK)
