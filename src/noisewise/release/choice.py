"""Choosing one of several candidates by a score: noise that is no number.

* :class:`ExponentialChoice` (McSherry and Talwar 2007; Barczewski 2025, Algorithm 4): candidate i
  with probability proportional to exp(epsilon s_i / (2 D)). Drawn by rejection: a uniform
  candidate is kept with probability exp(-epsilon (max - s_i) / (2 D)).
* :class:`PermuteAndFlip` (McKenna and Sheldon 2020): the same coins in a random order without
  return; never worse in expected score.

Both use coins of probability exp(-rational) drawn with integers only, so their law is exact. The
number of coins, hence the running time, is not protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy import Event, Pure, Randomness, Sensitivity
from noisewise.privacy.randomness import bernoulli_exp

__all__ = ["ExponentialChoice", "PermuteAndFlip"]


@dataclass(frozen=True)
class _Choice:
    """What both ways to choose share.

    Parameters
    ----------
    epsilon : float
        What the choice costs.
    planned : Sensitivity
        Of every score, in the largest-entry norm.
    monotonic : bool
        Whether a unit moves all scores in the same direction.
    """

    epsilon: float
    planned: Sensitivity
    monotonic: bool = False
    description: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse what no unit can do."""
        if self.monotonic and self.planned.relation.name != "add-remove":
            raise ValueError(
                "monotonic must be False under replace-one: replacing a record is a removal and an "
                "addition, which move scores in opposite directions"
            )

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Of every score."""
        return (self.planned,)

    @property
    def event(self) -> Event:
        """A pure release."""
        return Pure(self.epsilon)

    def exponents(self, scores: NDArray[np.float64]) -> list[Fraction]:
        """Return how unlikely each candidate's coin shows heads, as -log; the best one's is 0."""
        bound = Fraction(self.planned.value)
        rate = Fraction(self.epsilon) / bound / (1 if self.monotonic else 2)
        best = Fraction(float(scores.max()))
        return [(best - Fraction(float(score))) * rate for score in scores]


class ExponentialChoice(_Choice):
    """The exponential mechanism."""

    description = "exponential mechanism"

    def applied(self, exact: NDArray[np.float64], rng: Randomness) -> int:
        """Return the number of the candidate that was chosen."""
        exponents = self.exponents(exact)
        while True:
            candidate = int(rng.below(len(exponents)))
            if bernoulli_exp((), exponents[candidate], rng):
                return candidate


class PermuteAndFlip(_Choice):
    """The permute-and-flip mechanism."""

    description = "permute-and-flip mechanism"

    def applied(self, exact: NDArray[np.float64], rng: Randomness) -> int:
        """Return the number of the candidate that was chosen."""
        exponents = self.exponents(exact)
        remaining = list(range(len(exponents)))
        while True:
            # The best candidate's coin always shows heads, so the list never runs out.
            candidate = remaining.pop(int(rng.below(len(remaining))))
            if bernoulli_exp((), exponents[candidate], rng):
                return candidate
