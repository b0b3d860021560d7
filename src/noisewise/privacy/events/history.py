"""Histories: all that was released, as a tuple of events."""

from __future__ import annotations

import math
from collections.abc import Iterable

from noisewise.privacy.events.base import EVENTS, Event, with_count
from noisewise.privacy.relation import Relation

__all__ = ["History", "as_history", "require_relation", "simplify", "total_variation"]

History = tuple[Event, ...]


def as_history(events: Event | Iterable[Event]) -> History:
    """Return one event, or an iterable of them, as a history with like events merged.

    Only events of registered kinds are taken, not subclasses of theirs: a statement or a ledger
    names the kind, and whoever reads it derives the cost of just that.
    """
    if isinstance(events, Event):
        return (_known(events),)
    return simplify(tuple(_known(event) for event in events))


def _known(event: Event) -> Event:
    if not isinstance(event, Event):
        raise TypeError(f"a history holds events such as PoissonGaussian, got {event!r}")
    if EVENTS.get(event.kind) is not type(event):
        raise TypeError(
            f"{type(event).__name__} is not the registered event of kind {event.kind!r}, so nobody "
            "who reads a ledger or a statement could derive its cost: use one of "
            f"{', '.join(kind.__name__ for kind in EVENTS.values())}, or register a kind of its own"
        )
    return event


def require_relation(history: History, relation: Relation) -> None:
    """Raise if there is a release whose worst pair of neighbours is not known under a relation."""
    for event in (part for whole in history for part in (whole, *whole.parts)):
        if relation.name not in event.relations:
            raise ValueError(
                f"no analysis of {event.kind} releases ({event.words}) is known here under "
                f"{relation.name}; use {' or '.join(event.relations)}"
            )


def simplify(history: Iterable[Event]) -> History:
    """Merge events that differ only in their count, keeping the order of first appearance."""
    counts: dict[Event, int] = {}
    for event in history:
        once = with_count(event, 1)
        counts[once] = counts.get(once, 0) + event.count
    return tuple(with_count(once, count) for once, count in counts.items())


def total_variation(history: Iterable[Event]) -> float:
    """How far, in total variation, all releases together are from those accounted for."""
    return math.fsum(event.total_variation() for event in history)
