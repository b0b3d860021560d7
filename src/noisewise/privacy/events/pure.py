"""Releases of which only a pure epsilon is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import logsumexp

from noisewise import checks
from noisewise.privacy.events.base import Array, Event, register, share_of
from noisewise.privacy.events.renyi import SLACK
from noisewise.privacy.relation import Relation

__all__ = ["Pure"]


@register
@dataclass(frozen=True)
class Pure(Event):
    """Any release that is epsilon-DP with delta 0, e.g. the exponential mechanism.

    Parameters
    ----------
    epsilon : float
    count : int
        Number of such releases.
    rows : int, optional
        Of a unit that has up to so many rows: epsilon is then what one row costs, and the unit
        costs so many times as much.
    """

    epsilon: float
    count: int = 1
    rows: int | None = None
    kind: ClassVar[str] = "pure"
    words: ClassVar[str] = "any release that is epsilon-DP"
    proof: ClassVar[str] = "docs/proofs/events.md#pure"

    def __post_init__(self) -> None:
        self._check("epsilon", checks.positive)
        self._check_count()
        self._check_rows()

    @classmethod
    def examples(cls) -> tuple[Pure, ...]:
        """One that costs much, and many that cost little; for up to three rows of a unit."""
        return cls(1.5), cls(0.05, 40), cls(0.2, 2, rows=3)

    @property
    def whole(self) -> float:
        """Epsilon of one release, for all rows of a unit together."""
        return self.epsilon * (self.rows or 1)

    def losses(self, relation: Relation, width: float) -> Any:
        """Randomised response, which dominates every epsilon-DP release, on the grid.

        Epsilon is raised to the grid first and both outcomes keep it, since a larger
        epsilon dominates a smaller one. (Rounding both losses up instead, as
        dp-accounting's ``from_privacy_parameters`` does, shifts every step by one cell.)
        """
        cells = math.ceil(self.whole / width * (1 + 1e-12))
        raised = cells * width
        rare = math.exp(-raised)
        mass = {cells: 1.0 / (1.0 + rare), -cells: rare / (1.0 + rare)}
        return pld.PrivacyLossDistribution.create_from_rounded_probability(mass, 0.0, width)

    def largest_loss(self, relation: Relation) -> float:
        """The largest there is."""
        return self.whole

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """Those of randomised response."""
        return np.array([_randomised_response(self.whole, order) for order in orders])

    def pure_epsilon(self) -> float:
        """Epsilons add up."""
        return self.whole * self.count

    def covers(self, other: Event) -> bool:
        """A larger epsilon, as often."""
        return isinstance(other, Pure) and self.whole >= other.whole and self.count >= other.count

    def per_row(self, rows: int) -> Pure:
        """Of which `rows` together cost this epsilon: group privacy."""
        part = share_of(self.whole, rows, whole_of=lambda one: one * rows)
        return Pure(part, self.count, rows)


def _randomised_response(epsilon: float, order: float) -> float:
    """Renyi divergence of the pair that dominates every epsilon-DP release."""
    log_p = -np.logaddexp(0.0, -epsilon)  # truth is told with probability p
    log_q = -np.logaddexp(0.0, epsilon)
    terms = [order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p]
    return float(logsumexp(terms) / (order - 1)) * (1 + SLACK)
