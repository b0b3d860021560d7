"""What a stream has cost, in a ledger that does not believe the stream's file.

All segments of a stream together cost one epsilon, as long as no item is measured twice. Whether
that is so depends on a file that may be copied or put back. So every counter that begins to measure
pays for the whole stream, unless the ledger knows that it goes on exactly where the last one was
closed: that one left a mark, and whoever goes on takes the mark away in the same act. A copy, an
older state, or one whose counter was killed finds no such mark, and pays. The place of seeded noise
is kept by the stream that has it: nobody else gets it, and who pays again needs other noise.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from noisewise.errors import ChargeConflictError, RelationError
from noisewise.privacy import REPLACE_ONE, Event, History, Ledger, Randomness
from noisewise.release.account import same_noise
from noisewise.release.opening import open_ledger
from noisewise.release.promise import Promise

__all__ = ["STREAM_UNIT", "SegmentAccount", "StreamAccount"]

#: What a stream protects.
STREAM_UNIT = "one item of the stream, at its time step"


class Limits(Protocol):
    """What is known of a budget here."""

    @property
    def delta(self) -> float:
        """Of the whole stream."""
        ...

    @property
    def concentrates(self) -> bool:
        """Whether it is accounted by zCDP."""
        ...


class StreamAccount:
    """The ledger of one stream.

    Parameters
    ----------
    ledger : Ledger or path
        A file that never existed becomes a ledger without a budget.
    name : str
        Of the stream, unique.
    budget : Limits
        Of the stream; a ledger that is new accounts as it does.
    unit : str
        What is protected.
    noise : str, optional
        Where the noise of the whole stream lies, if it is seeded.
    """

    def __init__(
        self,
        ledger: Ledger | str | os.PathLike[str],
        name: str,
        budget: Limits,
        unit: str = STREAM_UNIT,
        noise: str | None = None,
    ) -> None:
        self._name = f"stream {name}"
        self._running = f"running {secrets.token_hex(16)}"
        self._begun = False
        self._noise = noise
        self._held = contextlib.ExitStack()
        self._ledger = self._held.enter_context(
            open_ledger(
                ledger, REPLACE_ONE, budget.delta, unit, "rdp" if budget.concentrates else "pld"
            )
        )
        if self._ledger.relation.name != "replace-one" or self._ledger.unit != unit:
            found = f"{self._ledger.relation} for {self._ledger.unit!r}"
            self.close(None)
            raise RelationError(
                f"the ledger accounts under {found}, a stream under replace-one for {unit!r}; one "
                "promise cannot mix them. Create it with relation='replace-one' and this unit."
            )

    @property
    def history(self) -> History:
        """What was charged for this stream."""
        return tuple(c.event for c in self._ledger.charges if c.note == self._name)

    def pay(self, event: Event, price: Event, state: str | None, paid: Event | None) -> Event:
        """Pay for a segment, if need be, and return what is paid for now.

        Parameters
        ----------
        event : Event
            What the segment costs.
        price : Event
            What is charged, so that it covers later segments too.
        state : str or None
            Digest of the state from which is measured.
        paid : Event or None
            What that state says was paid for.

        Raises
        ------
        BudgetExceededError
        """
        enough = paid is not None and paid.covers(event)
        if self._begun and enough:
            assert paid is not None
            return paid
        try:
            free = self._ledger.exchange_mark(
                self._name,
                was=state if enough and not self._begun else None,
                becomes=self._running,
                otherwise=price,
                note=self._name,
                key=None if self._begun else self._noise,
            )
        except ChargeConflictError:
            raise same_noise(self._ledger) from None
        self._begun = True
        return paid if free and paid is not None else price

    def close(self, state: str | None) -> None:
        """Let the next counter go on for nothing from the state with that digest, if any."""
        try:
            if self._begun and state is not None:
                self._ledger.exchange_mark(self._name, was=self._running, becomes=state)
        finally:
            self._begun = False
            self._held.close()


class SegmentAccount:
    """An item pays for the segment that it is in, which is paid for once.

    Parameters
    ----------
    price : callable
        From what a segment costs to what is charged, so that it covers later segments too.
    state : callable
        Gives the digest of the state from which is measured, or None.

    Attributes
    ----------
    ledger : StreamAccount or None
        Where it is charged, if it is not in memory only.
    dearest : Event or None
        What the dearest segment cost: an item pays for one segment only.
    paid : Event or None
        What covers the next segment already.
    """

    def __init__(
        self, price: Callable[[Event], Event], state: Callable[[], str | None] = lambda: None
    ) -> None:
        self._price = price
        self._state = state
        self._due = True
        self.ledger: StreamAccount | None = None
        self.dearest: Event | None = None
        self.paid: Event | None = None

    def compares(self, rng: Randomness) -> bool:
        """Nothing is compared."""
        return False

    def begin_segment(self) -> None:
        """Let the next item pay."""
        self._due = True

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What its segment costs."""
        return (event,), what

    def charge(self, event: Event, note: str) -> None:
        """Pay, at the segment's first item."""
        if not self._due:
            return
        self.dearest = self._with(event)
        if self.ledger is not None:
            self.paid = self.ledger.pay(event, self._price(event), self._state(), self.paid)
        self._due = False

    def require_room(self, event: Event, key: str) -> None:
        """Nothing is compared."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Pay, at the segment's first item."""
        self.charge(event, note)
        return True

    def promise(
        self,
        planned: Event | None,
        *,
        delta: float,
        mechanism: str,
        randomness: str,
        unit: str,
        assumptions: tuple[str, ...],
    ) -> Promise:
        """Return what is promised of the whole stream, from what was charged.

        `planned` is the cost of a segment to come, if nothing was measured yet.
        """
        return Promise(
            history=self._history(planned),
            delta=delta,
            mechanism=mechanism,
            relation=REPLACE_ONE,
            randomness=randomness,
            unit=unit,
            assumptions=assumptions,
        )

    def _history(self, planned: Event | None) -> History:
        charged = () if self.ledger is None else self.ledger.history
        whole = self._with(planned)
        return charged or (() if whole is None else (whole,))

    def _with(self, event: Event | None) -> Event | None:
        if self.dearest is None or event is None:
            return event if self.dearest is None else self.dearest
        return self.dearest.worse(event)
