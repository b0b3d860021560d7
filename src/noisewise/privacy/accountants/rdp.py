"""Renyi differential privacy of a history.

Events give their divergences; dp-accounting converts them to (epsilon, delta) (Canonne, Kamath,
Steinke 2020, Prop. 12).
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray

from noisewise.privacy.accountants.base import Accountant
from noisewise.privacy.events import Event, History, with_count
from noisewise.privacy.relation import Relation

__all__ = ["Renyi", "size"]

Array = NDArray[np.float64]

ORDERS = tuple(float(order) for order in rdp.DEFAULT_RDP_ORDERS)

_FEW_ORDERS = (2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 256.0)


class Renyi(Accountant):
    """Adds up Renyi divergences."""

    name: ClassVar[str] = "rdp"
    words: ClassVar[str] = "looser, an independent check"

    def refusal(self, history: History, delta: float | None = None) -> str | None:
        """Events without divergences."""
        for event in history:
            if event.no_divergences:
                return (
                    f"accountant must be 'pld' for a history with {event.kind} releases "
                    f"({event.words}), got 'rdp': {event.no_divergences}"
                )
        return None

    def epsilon(self, history: History, delta: float, relation: Relation) -> float:
        """Upper bound of epsilon at `delta` > 0."""
        value, _ = rdp.compute_epsilon(ORDERS, _total(history, relation), delta)
        return float(value)

    def delta(self, history: History, epsilon: float, relation: Relation) -> float:
        """Upper bound of delta at `epsilon` >= 0."""
        value, _ = rdp.compute_delta(ORDERS, _total(history, relation), epsilon)
        return float(value)


def size(history: History, relation: Relation) -> float:
    """Rough epsilon from few orders, in milliseconds: how large a grid must be."""
    orders = _FEW_ORDERS
    value, _ = rdp.compute_epsilon(orders, _total(history, relation, orders), 1e-10)
    return float(value)


def _total(history: History, relation: Relation, orders: tuple[float, ...] = ORDERS) -> Array:
    total = np.zeros(len(orders))
    for event in history:
        total += event.count * _one(with_count(event, 1), relation, orders)
    return total


@lru_cache(maxsize=64)
def _one(event: Event, relation: Relation, orders: tuple[float, ...]) -> Array:
    return event.divergences(relation, orders)
