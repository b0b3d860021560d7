"""Releases of which only zero-concentrated privacy is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from noisewise.privacy import _validate
from noisewise.privacy.events.base import Array, Event, register
from noisewise.privacy.relation import Relation

__all__ = ["ZeroConcentrated"]


@register
@dataclass(frozen=True)
class ZeroConcentrated(Event):
    """Any release that is rho-zCDP, e.g. the discrete Gaussian on a vector of counts."""

    rho: float
    count: int = 1
    kind: ClassVar[str] = "zero-concentrated"
    words: ClassVar[str] = "any release that is rho-zCDP, such as the discrete Gaussian"
    proof: ClassVar[str] = "docs/proofs/events.md#zero-concentrated"
    no_losses: ClassVar[str] = "zCDP alone does not determine a privacy loss distribution"

    def __post_init__(self) -> None:
        self._check("rho", _validate.positive)
        self._check_count()

    @classmethod
    def examples(cls) -> tuple[ZeroConcentrated, ...]:
        """One that costs much, and many that cost little."""
        return cls(0.5), cls(0.01, 5)

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By definition."""
        return self.rho * np.array(orders)

    def covers(self, other: Event) -> bool:
        """A larger rho, as often."""
        return (
            isinstance(other, ZeroConcentrated)
            and self.rho >= other.rho
            and self.count >= other.count
        )

    def with_room(self) -> ZeroConcentrated:
        """A millionth more."""
        return ZeroConcentrated(self.rho * (1 + 1e-6), self.count)
