"""Privacy loss distributions of a history, by dp-accounting.

Responsible for one decision: the width of the grid on which losses are
rounded (up, by "connect the dots", so every answer stays an upper bound). The
grids are nested (1e-4 times a power of two), hence a coarser grid can only
raise epsilon.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy.accountants import rdp
from noisewise.privacy.accountants.base import Accountant
from noisewise.privacy.events import Event, History, with_count
from noisewise.privacy.relation import Relation

__all__ = ["PrivacyLoss"]

#: Below this the rounding of the FFT that composes privacy losses could matter.
SMALLEST_DELTA = 1e-12

FINEST = 1e-4
_ONE_STEP_POINTS = 1e5
_COMPOSED_POINTS = 5e5
_ACCURATE = 0.02
_WIDEST_FOR_ACCURACY = 1e-3
#: Mass put aside for the rounding of the FFT and for the tails that composing cuts off.
_ROUNDING = 1e-14
_ROUNDING_OF_A_RELEASE = 1e-15
_ONE_STAGE = 100_000


class PrivacyLoss(Accountant):
    """Composes privacy loss distributions."""

    name: ClassVar[str] = "pld"
    words: ClassVar[str] = "tight"

    def refusal(self, history: History, delta: float | None = None) -> str | None:
        """Events without a loss distribution, and deltas below what the FFT resolves."""
        for event in history:
            if event.no_losses:
                return (
                    f"accountant must be 'rdp' for a history with {event.kind} releases "
                    f"({event.words}), got 'pld': {event.no_losses}"
                )
        if delta is not None and 0 < delta < SMALLEST_DELTA:
            return (
                f"delta must be >= {SMALLEST_DELTA:g} (or 0 for pure releases) with "
                f"accountant='pld', whose FFT rounds there, got {delta!r}; use accountant='rdp'"
            )
        if delta is not None and 0 < delta < 2 * _aside(history):
            return (
                f"delta must be >= {2 * _aside(history):.2g} for so many releases with "
                f"accountant='pld', whose FFT rounds there, got {delta!r}; use accountant='rdp'"
            )
        return None

    def epsilon(self, history: History, delta: float, relation: Relation) -> float:
        """Upper bound of epsilon at `delta` >= 1e-12."""
        kept = delta * (1 - 1e-6) - _aside(history)
        return float(_composed(history, relation).get_epsilon_for_delta(kept))

    def delta(self, history: History, epsilon: float, relation: Relation) -> float:
        """Upper bound of delta at `epsilon` >= 0."""
        return float(_composed(history, relation).get_delta_for_epsilon(epsilon)) + _aside(history)

    def deltas(
        self, history: History, epsilons: NDArray[np.float64], relation: Relation
    ) -> NDArray[np.float64]:
        """Upper bounds of delta, from one composition."""
        found = _composed(history, relation).get_delta_for_epsilon(epsilons)
        return np.asarray(found, dtype=np.float64) + _aside(history)


def _aside(history: History) -> float:
    """Mass put aside for the rounding of the FFT.

    A spectrum that is raised to a power is wrong by that many roundings.
    """
    return _ROUNDING + _ROUNDING_OF_A_RELEASE * sum(event.joined().count for event in history)


def _composed(history: History, relation: Relation) -> Any:
    width = _width(history, relation)
    total = None
    for event in history:
        joined = event.joined()
        part = _one(with_count(joined, 1), relation, width)
        if joined.count > 1:
            part = _repeat(part, joined.count)
        total = part if total is None else total.compose(part)
    return total


def _repeat(part: Any, count: int) -> Any:
    """Compose a distribution with itself, in two stages where the count is large.

    dp-accounting raises the number of points of a small distribution to the power of the
    count, as a whole number, to decide how to store it; beyond about 10^6 that never ends.
    The first stage gives up so little of the tails that all stages together stay within
    the mass put aside for it.
    """
    if count <= _ONE_STAGE:
        return part.self_compose(count)
    blocks, rest = divmod(count, _ONE_STAGE)
    total = part.self_compose(_ONE_STAGE, 1e-15 / blocks).self_compose(blocks)
    return total.compose(part.self_compose(rest)) if rest else total


@lru_cache(maxsize=64)
def _one(event: Event, relation: Relation, width: float) -> Any:
    return event.losses(relation, width)


def _width(history: History, relation: Relation) -> float:
    """Grid width, a power of two times 1e-4.

    Rounding adds up to width^2/4 to the variance of each step's loss. The width
    keeps that below about a hundredth of the total variance (epsilon is several
    deviations), is never above 1e-3 for accuracy alone, and grows beyond that
    only where the arrays would become too long.
    """
    steps = sum(event.count for event in history)
    reach = max(event.largest_loss(relation) for event in history)
    total = min(rdp.size(history, relation), steps * reach)
    accurate = min(_ACCURATE * total / math.sqrt(steps), _WIDEST_FOR_ACCURACY)
    affordable = max(reach / _ONE_STEP_POINTS, total / _COMPOSED_POINTS)
    return FINEST * 2.0 ** math.floor(math.log2(max(accurate, affordable, FINEST) / FINEST))
