"""What a stream has cost, in a ledger that does not believe the stream's file.

All segments of a stream together cost one epsilon, as long as no item is measured twice. Whether
that is so depends on a file that may be copied or put back. So every counter that begins to measure
pays for the whole stream, unless the ledger knows that it goes on exactly where the last one was
closed: that one left a mark, and whoever goes on takes the mark away in the same act. A copy, an
older state, or one whose counter was killed finds no such mark, and pays.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from noisewise.ecdf.budget import Budget
from noisewise.errors import RelationError
from noisewise.privacy.events import Event, Gaussian, History, Pure, ZeroConcentrated
from noisewise.privacy.ledger import Ledger

__all__ = ["UNIT", "StreamAccount", "ample", "worse"]

#: What a stream protects.
UNIT = "one item of the stream, at its time step"


class StreamAccount:
    """The ledger of one stream.

    Parameters
    ----------
    ledger : Ledger or path
        A file that never existed becomes a ledger without a budget.
    name : str
        Of the stream, unique.
    budget : Budget
        Of the stream.
    """

    def __init__(self, ledger: Ledger | str | os.PathLike[str], name: str, budget: Budget) -> None:
        self._name = f"stream {name}"
        self._running = f"running {secrets.token_hex(16)}"
        self._begun = False
        self._owned = not isinstance(ledger, Ledger)
        self._ledger = ledger if isinstance(ledger, Ledger) else _opened(Path(ledger), budget)
        if self._ledger.relation.name != "replace-one" or self._ledger.unit != UNIT:
            found = f"{self._ledger.relation} for {self._ledger.unit!r}"
            self.close(None)
            raise RelationError(
                f"the ledger accounts under {found}, a stream under replace-one for {UNIT!r}; one "
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
        enough = paid is not None and covers(paid, event)
        if self._begun and enough:
            assert paid is not None
            return paid
        free = self._ledger.exchange_mark(
            self._name,
            was=state if enough and not self._begun else None,
            becomes=self._running,
            otherwise=price,
            note=self._name,
        )
        self._begun = True
        return paid if free and paid is not None else price

    def close(self, state: str | None) -> None:
        """Let the next counter go on for nothing from the state with that digest, if any."""
        try:
            if self._begun and state is not None:
                self._ledger.exchange_mark(self._name, was=self._running, becomes=state)
        finally:
            self._begun = False
            if self._owned:
                self._ledger.close()


def covers(paid: Event, event: Event) -> bool:
    """Whether one event costs no less than another in every composition."""
    if isinstance(paid, Pure) and isinstance(event, Pure):
        return paid.epsilon >= event.epsilon
    if isinstance(paid, Gaussian) and isinstance(event, Gaussian):
        return paid.noise_multiplier <= event.noise_multiplier and paid.variation >= event.variation
    if isinstance(paid, ZeroConcentrated) and isinstance(event, ZeroConcentrated):
        return paid.rho >= event.rho
    return False


def worse(one: Event, other: Event) -> Event:
    """Return an event that costs no less than either."""
    if isinstance(one, Gaussian) and isinstance(other, Gaussian):
        least = min(one.noise_multiplier, other.noise_multiplier)
        return Gaussian(least, variation=max(one.variation, other.variation))
    return one if covers(one, other) else other


def ample(event: Event) -> Event:
    """Return an event that covers segments of other lengths, which differ in the last digits."""
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier * (1 - 1e-6), variation=10 * event.variation)
    if isinstance(event, ZeroConcentrated):
        return ZeroConcentrated(event.rho * (1 + 1e-6))
    return event


def _opened(path: Path, budget: Budget) -> Ledger:
    if path.exists() and path.stat().st_size:
        return Ledger.open(path)
    return Ledger.create(
        path,
        delta=budget.delta,
        relation="replace-one",
        accountant="rdp" if budget.concentrates else "pld",
        unit=UNIT,
    )
