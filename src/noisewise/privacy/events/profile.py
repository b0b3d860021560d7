"""Profiles: delta as a function of epsilon, as convex curves in e^epsilon.

A profile E_g = ∫ (P - g Q)+ is convex in g, is 1 at g = 0 and at least 1 - g. So chords of known
points are upper bounds, and so is the largest convex curve below any upper bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from noisewise.privacy.events.base import Array, Event
from noisewise.privacy.relation import Relation

if TYPE_CHECKING:
    from noisewise.privacy.accountants.base import Accountant

__all__ = ["Profile", "convex_minorant", "masses", "profile_of"]


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper bounds of delta at epsilons from 0 on, as chords of points."""

    epsilons: Array
    deltas: Array

    def delta(self, epsilon: Array) -> Array:
        """Upper bound of delta at epsilons >= 0: chords, in the ratio, of a convex function."""
        ratios = np.exp(np.minimum(epsilon, 700.0))
        return np.asarray(np.interp(ratios, np.exp(self.epsilons), self.deltas))

    def crossing(self, gamma: float) -> float:
        """Least epsilon with delta <= (e^epsilon - 1) gamma / (1 - gamma)."""
        low, high = 0.0, float(self.epsilons[-1])
        allowed = gamma / (1 - gamma)
        while self.delta(np.array([high]))[0] > math.expm1(high) * allowed:
            high *= 2.0
        for _ in range(60):
            middle = (low + high) / 2
            fits = self.delta(np.array([middle]))[0] <= math.expm1(middle) * allowed
            low, high = (low, middle) if fits else (middle, high)
        return high


@lru_cache(maxsize=64)
def profile_of(
    histories: tuple[tuple[Event, ...], ...], relation: Relation, points: int, tail: float
) -> tuple[Array, Array]:
    """Return epsilons from 0 on, and the largest delta there that a history has.

    The last epsilon is one beyond which delta is at most `tail`, or zero.
    """
    from noisewise.privacy.accountants import ACCOUNTANTS, tightest  # which import the events
    from noisewise.privacy.accountants.rdp import size

    ends = []
    for history in histories:
        pure = sum(event.pure_epsilon() for event in history)
        ends.append(min(pure, 2.0 * size(history, relation) + 1.0))
    epsilons = np.linspace(0.0, max(ends), points)
    total = np.zeros(points)
    for history in histories:
        accountant = ACCOUNTANTS[tightest(history)]
        total = np.maximum(total, _deltas(history, epsilons, relation, accountant))
    total = np.minimum.accumulate(np.minimum(total, 1.0))
    last = int(np.argmax(total <= tail)) if (total <= tail).any() else points - 1
    return epsilons[: last + 1], total[: last + 1]


def _deltas(
    history: tuple[Event, ...], epsilons: Array, relation: Relation, accountant: Accountant
) -> Array:
    found = accountant.deltas(history, epsilons, relation)
    variation = sum(event.total_variation() for event in history)
    found = found + (1 + np.exp(np.minimum(epsilons, 700.0))) * variation
    pure = sum(event.pure_epsilon() for event in history)
    return np.asarray(np.where(epsilons >= pure, 0.0, found))


def convex_minorant(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the points of the largest convex curve that lies nowhere above (x, y)."""
    kept: list[int] = []
    for index in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[index] - x[a]) < (y[index] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(index)
    return x[kept], y[kept]


def masses(ratios: Array, values: Array) -> tuple[Array, Array, float]:
    """Return losses, their probabilities and the mass at infinity of a pair with that profile.

    By the dots: the profile of the pair is the chords between the points of the convex minorant.
    """
    g, h = convex_minorant(np.r_[0.0, ratios], np.r_[1.0, values])
    slopes = np.r_[np.diff(h) / np.diff(g), 0.0]
    lower = np.maximum(np.diff(slopes), 0.0)  # probability of the loss under Q
    return np.log(g[1:]), lower * g[1:], float(h[-1])
