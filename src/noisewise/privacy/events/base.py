"""What every event answers, and the registry of their kinds.

An event is one kind of release and how often it happened. It carries all that others ask of it:
its privacy loss distribution, its Renyi divergences, what it costs with delta 0, how it is written
to a ledger, and what it says of sampling. A new kind is one class in one file of this folder,
registered here; ``tests/common/test_common_events.py`` then asks it for everything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy.relation import Relation

__all__ = ["EVENTS", "NO_NOISE", "Event", "event_from_dict", "register", "with_count"]

Array = NDArray[np.float64]
Self = TypeVar("Self", bound="Event")

#: Of one unit, at all parties together.
MOST_ROWS = 1 << 40
NO_NOISE = "without noise there is no privacy"


@dataclass(frozen=True)
class Event(ABC):
    """One kind of private release, done `count` times.

    Attributes
    ----------
    kind : str
        Its name in ledgers and statements.
    words : str
        What was released, for people.
    scale : str
        What its noise multiplier is relative to; empty if it has none.
    proof : str
        Where it is proven that no pair of neighbours is worse: a heading of the documentation.
    relations : tuple of str
        The relations under which its worst pair is known.
    no_losses, no_divergences : str
        Why it has no privacy loss distribution, or no Renyi divergences; empty if it has.
    """

    kind: ClassVar[str]
    words: ClassVar[str]
    scale: ClassVar[str] = ""
    proof: ClassVar[str]
    relations: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one")
    no_losses: ClassVar[str] = ""
    no_divergences: ClassVar[str] = ""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many times the release happened."""

    @classmethod
    @abstractmethod
    def examples(cls: type[Self]) -> tuple[Self, ...]:
        """Events of this kind that every check is run on."""

    # ---------------------------------------------------------------- what it costs

    def losses(self, relation: Relation, width: float) -> Any:
        """Privacy loss distribution of one release, rounded up on a grid, for dp-accounting."""
        raise ValueError(f"{self.kind} has no privacy loss distribution: {self.no_losses}")

    def largest_loss(self, relation: Relation) -> float:
        """About the largest loss of :meth:`joined` that matters; a size, not a bound."""
        raise ValueError(f"{self.kind} has no privacy loss distribution: {self.no_losses}")

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """Upper bounds of the Renyi divergences of one release."""
        raise ValueError(f"{self.kind} has no Renyi divergences: {self.no_divergences}")

    def joined(self) -> Event:
        """Return the same releases as fewer, where several are exactly one of another size."""
        return self

    def pure_epsilon(self) -> float:
        """Epsilon of all releases at delta 0; infinite where none is known."""
        return math.inf

    def gaussian_precision(self) -> float | None:
        """1/sigma^2 of the one Gaussian release that all of them are exactly; None if none."""
        return None

    def total_variation(self) -> float:
        """How far all releases are from those that the other methods speak of."""
        return 0.0

    # ---------------------------------------------------------------- what it is compared with

    def covers(self, other: Event) -> bool:
        """Whether this is known to cost no less than `other` in every composition."""
        return self == other

    def worse(self, other: Event) -> Event:
        """Return an event that costs no less than either."""
        for one, two in ((self, other), (other, self)):
            if one.covers(two):
                return one
        raise ValueError(f"neither of {self} and {other} is known to cost no less than the other")

    def per_row(self, rows: int) -> Event:
        """Return the same releases, told as what one of up to `rows` rows of a unit costs."""
        raise ValueError(f"{self.kind} releases are not told by the rows of a unit")

    def with_room(self) -> Event:
        """Return an event that also covers ones whose numbers differ in their last digits."""
        return self

    # ---------------------------------------------------------------- what it says

    @property
    def secret_rate(self) -> float | None:
        """Probability with which a record was drawn in secret; None if everybody took part."""
        return None

    @property
    def secret_rates(self) -> tuple[float, ...]:
        """All such probabilities; several if it is made of several releases."""
        return () if self.secret_rate is None else (self.secret_rate,)

    @property
    def gaussian_rate(self) -> float | None:
        """Rate of the Poisson sample to which Gaussian noise was added, 1 for all records.

        None if it is not known to be Gaussian noise.
        """
        return None

    @property
    def parts(self) -> tuple[Event, ...]:
        """Releases that it is made of; itself, if of no others."""
        return (self,)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; :func:`event_from_dict` reads them."""
        told = asdict(self)
        if told.get("rows", 0) is None:
            del told["rows"]
        return {"kind": self.kind, **told}

    # ---------------------------------------------------------------- checks

    def _check(self, name: str, check: Any, hint: str | None = None, **options: Any) -> None:
        """Hold a field to its range, and keep it in the type that the check returns."""
        if hint is not None:
            options["hint"] = hint
        object.__setattr__(self, name, check(name, getattr(self, name), **options))

    def _check_count(self) -> None:
        self._check("count", checks.integer, minimum=1)

    def _check_rows(self) -> None:
        """Hold the bound on the rows of a unit to its range, if there is one."""
        if getattr(self, "rows", None) is not None:
            self._check("rows", checks.integer, minimum=1, maximum=MOST_ROWS)


def share_of(whole: float, rows: int, *, whole_of: Callable[[float], float]) -> float:
    """Return the least part, about `whole` / `rows`, of which `whole_of` makes at least `whole`."""
    part = whole / rows
    part = math.nextafter(math.nextafter(part, 0.0), 0.0)
    while whole_of(part) < whole:
        part = math.nextafter(part, math.inf)
    return part


#: Every kind of event, by the name under which it stands in ledgers and statements.
EVENTS: dict[str, type[Event]] = {}


def register(event: type[Self]) -> type[Self]:
    """Enter a kind of event into the registry."""
    if event.kind in EVENTS:
        raise ValueError(f"there is an event of kind {event.kind!r}: choose another name")
    EVENTS[event.kind] = event
    return event


def event_from_dict(fields: Mapping[str, Any]) -> Event:
    """Return the event that :meth:`Event.to_dict` described."""
    values = dict(fields)
    kind = values.pop("kind", None)
    if kind not in EVENTS:
        raise ValueError(f"kind must be one of {', '.join(EVENTS)}, got {kind!r}")
    try:
        return EVENTS[kind](**values)
    except TypeError as error:
        raise ValueError(f"an event of kind {kind!r} has wrong fields: {error}") from error


def with_count(event: Self, count: int) -> Self:
    """Return the same kind of release, done `count` times."""
    changes: dict[str, Any] = {"count": count}  # every kind has this field, the base has none
    return replace(event, **changes)
