"""Laplace noise on any function of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from noisewise import checks
from noisewise.privacy.events.base import NO_NOISE, Array, Event, register
from noisewise.privacy.events.renyi import divergences_of
from noisewise.privacy.relation import Relation

__all__ = ["Laplace"]


@register
@dataclass(frozen=True)
class Laplace(Event):
    """A function of the data plus Laplace noise, continuous or on a grid as good as continuous.

    Integer noise on counts is not: between neighbours one unit apart it is randomised response,
    which is a :class:`~noisewise.privacy.Pure` release.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale over the function's l1 sensitivity under the relation.
    count : int
        Number of such releases.
    """

    noise_multiplier: float
    count: int = 1
    kind: ClassVar[str] = "laplace"
    words: ClassVar[str] = "any function of the data plus Laplace noise"
    scale: ClassVar[str] = "its **sensitivity under the relation**, l1"
    proof: ClassVar[str] = "docs/proofs/events.md#laplace"

    def __post_init__(self) -> None:
        self._check("noise_multiplier", checks.positive, NO_NOISE)
        self._check_count()

    @classmethod
    def examples(cls) -> tuple[Laplace, ...]:
        """Once with little noise, and often with much."""
        return cls(0.8), cls(20.0, 60)

    def losses(self, relation: Relation, width: float) -> Any:
        """By dp-accounting, for noise one sensitivity apart."""
        return pld.from_laplace_mechanism(
            self.noise_multiplier, value_discretization_interval=width
        )

    def largest_loss(self, relation: Relation) -> float:
        """The largest there is."""
        return 1.0 / self.noise_multiplier

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By dp-accounting."""
        return divergences_of(dp_event.LaplaceDpEvent(self.noise_multiplier), orders)

    def pure_epsilon(self) -> float:
        """One over the multiplier each."""
        return self.count / self.noise_multiplier
