"""Releases of which only zero-concentrated privacy is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from noisewise import checks
from noisewise.privacy.events.base import Array, Event, register, share_of
from noisewise.privacy.relation import Relation

__all__ = ["ZeroConcentrated"]


@register
@dataclass(frozen=True)
class ZeroConcentrated(Event):
    """Any release that is rho-zCDP, e.g. the discrete Gaussian on a vector of counts.

    Parameters
    ----------
    rho : float
    count : int
        Number of such releases.
    rows : int, optional
        Of a unit that has up to so many rows: rho is then what one row costs, and the unit costs
        the square of so many times as much.
    """

    rho: float
    count: int = 1
    rows: int | None = None
    kind: ClassVar[str] = "zero-concentrated"
    words: ClassVar[str] = "any release that is rho-zCDP, such as the discrete Gaussian"
    proof: ClassVar[str] = "docs/proofs/events.md#zero-concentrated"
    no_losses: ClassVar[str] = "zCDP alone does not determine a privacy loss distribution"

    def __post_init__(self) -> None:
        self._check("rho", checks.positive)
        self._check_count()
        self._check_rows()

    @classmethod
    def examples(cls) -> tuple[ZeroConcentrated, ...]:
        """One that costs much, and many that cost little; for up to three rows of a unit."""
        return cls(0.5), cls(0.01, 5), cls(0.02, 2, rows=3)

    @property
    def whole(self) -> float:
        """Rho of one release, for all rows of a unit together."""
        return self.rho * (self.rows or 1) ** 2

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By definition."""
        return self.whole * np.array(orders)

    def covers(self, other: Event) -> bool:
        """A larger rho, as often."""
        return (
            isinstance(other, ZeroConcentrated)
            and self.whole >= other.whole
            and self.count >= other.count
        )

    def with_room(self) -> ZeroConcentrated:
        """A millionth more."""
        return replace(self, rho=self.rho * (1 + 1e-6))

    def per_row(self, rows: int) -> ZeroConcentrated:
        """Of which `rows` together cost this rho: group privacy (Bun and Steinke 2016)."""
        part = share_of(self.whole, rows**2, whole_of=lambda one: one * rows**2)
        return ZeroConcentrated(part, self.count, rows)
