"""Gaussian noise on any function of the data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from noisewise import checks
from noisewise.privacy.events.base import NO_NOISE, Array, Event, register
from noisewise.privacy.events.renyi import divergences_of
from noisewise.privacy.relation import Relation

__all__ = ["Gaussian", "gaussian_tail", "split_noise"]

_TAIL = 10.0  # exp(-50), dp-accounting's truncation, is ten deviations out


def gaussian_tail(mu: float) -> float:
    """About the largest loss that matters between N(0, 1) and N(mu, 1)."""
    return mu * mu / 2 + _TAIL * mu


@register
@dataclass(frozen=True)
class Gaussian(Event):
    """A function of the data plus Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise deviation over the function's l2 sensitivity under the relation.
    count : int
        Number of such releases.
    variation : float
        Total variation distance between the release and one with real Gaussian noise,
        for noise on a fine grid. Each release then costs (1 + e^epsilon) times as much
        in delta, whatever else it is composed with.
    rows : int, optional
        Of a unit that has up to so many rows: the noise multiplier then refers to one row, and a
        unit moves the function so many times as far. The variation is that for the whole unit.
    """

    noise_multiplier: float
    count: int = 1
    variation: float = 0.0
    rows: int | None = None
    kind: ClassVar[str] = "gaussian"
    words: ClassVar[str] = "any function of the data plus Gaussian noise"
    scale: ClassVar[str] = "its **sensitivity under the relation**, l2"
    proof: ClassVar[str] = "docs/proofs/events.md#gaussian"

    def __post_init__(self) -> None:
        self._check("noise_multiplier", checks.positive, NO_NOISE)
        self._check("variation", checks.probability, zero=True, one=False)
        self._check_count()
        self._check_rows()

    @classmethod
    def examples(cls) -> tuple[Gaussian, ...]:
        """Little noise and much, once and often, exact and on a grid; for rows of a unit."""
        exact = cls(0.7), cls(30.0, 40), cls(6.0, 2, rows=3)
        return *exact, cls(4.0, 3, variation=1e-12)

    @property
    def whole(self) -> float:
        """Noise deviation over what all rows of a unit move together."""
        return self.noise_multiplier / (self.rows or 1)

    def losses(self, relation: Relation, width: float) -> Any:
        """The multiplier already refers to the relation's sensitivity.

        So dp-accounting's replace-one pair, two units apart, would count it twice.
        """
        return pld.from_gaussian_mechanism(self.whole, value_discretization_interval=width)

    def largest_loss(self, relation: Relation) -> float:
        """Ten deviations out."""
        return gaussian_tail(math.sqrt(self.count) / self.whole)

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """By dp-accounting."""
        return divergences_of(dp_event.GaussianDpEvent(self.whole), orders)

    def joined(self) -> Event:
        """Several are exactly one with less noise, so they compose without rounding."""
        return Gaussian(self.noise_multiplier / math.sqrt(self.count), rows=self.rows)

    def gaussian_precision(self) -> float:
        """Precisions add up."""
        return self.count / self.whole**2

    def total_variation(self) -> float:
        """Distances add up."""
        return self.count * self.variation

    def covers(self, other: Event) -> bool:
        """Less noise, further from real noise, as often."""
        return (
            isinstance(other, Gaussian)
            and self.whole <= other.whole
            and self.variation >= other.variation
            and self.count >= other.count
        )

    def worse(self, other: Event) -> Event:
        """The least noise and the largest distance of both."""
        if not isinstance(other, Gaussian):
            return super().worse(other)
        found = Gaussian(
            min(self.whole, other.whole),
            max(self.count, other.count),
            max(self.variation, other.variation),
        )
        told = self.rows if self.rows == other.rows else None
        return found if told is None else found.per_row(told)

    def with_room(self) -> Gaussian:
        """A millionth less noise, and ten times the distance."""
        noise = self.noise_multiplier * (1 - 1e-6)
        return Gaussian(noise, self.count, 10 * self.variation, self.rows)

    def per_row(self, rows: int) -> Gaussian:
        """Of which `rows` together are moved as far."""
        part = math.nextafter(self.whole * rows, math.inf)
        while part / rows > self.whole:
            part = math.nextafter(part, 0.0)
        return Gaussian(part, self.count, self.variation, rows)

    @property
    def gaussian_rate(self) -> float:
        """Every record takes part."""
        return 1.0


def split_noise(sensitivities: Iterable[float], deviations: Iterable[float]) -> float:
    """Noise multiplier of one step that noises several groups differently.

    Groups k of sensitivity D_k and noise deviation s_k, all computed from one
    batch, are one Gaussian mechanism of multiplier sigma with
    1/sigma^2 = sum_k D_k^2 / s_k^2. (Releasing each group with deviation
    sigma * D_k and accounting for sigma alone understates epsilon: with K
    groups the true multiplier is sigma / sqrt(K).)

    Examples
    --------
    >>> round(split_noise([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]), 12)
    1.0
    """
    pairs = list(zip(sensitivities, deviations, strict=True))
    if not pairs:
        raise ValueError("sensitivities must hold at least one group, got none")
    total = 0.0
    for sensitivity, deviation in pairs:
        bound = checks.positive("sensitivity", sensitivity, zero=True)
        noise = checks.positive("deviation", deviation, hint=NO_NOISE)
        total += (bound / noise) ** 2
    if total == 0.0:
        raise ValueError("all sensitivities are 0: nothing depends on the data, nothing to account")
    return 1.0 / math.sqrt(total)
