"""Several releases in one charge: all of them, or looks of which one decides about the next."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, TypeAlias

from noisewise.errors import BudgetExceededError
from noisewise.privacy import Event, History, Pure, Randomness, Relation, ZeroConcentrated
from noisewise.privacy.events import as_history
from noisewise.release.account import LedgerAccount, MemoryAccount

__all__ = ["Envelope", "Once", "Opened", "Prepaid", "together"]


class Envelope:
    """A part of a budget, charged as a whole before the first of several looks.

    What is looked at next, and how closely, may depend on what was seen before, so only the whole
    is a guarantee, whichever way was taken. Inside, charges that sum to more are refused.

    Proof: docs/proofs/curves.md#looks.

    Parameters
    ----------
    account : MemoryAccount, LedgerAccount or Prepaid
        Charged once.
    whole : float or Event
        Of everything inside: an epsilon, or a pure or zero-concentrated event.
    rng : Randomness
        What comes of seeded noise is not compared, so a ledger takes it once.

    Attributes
    ----------
    rng : Randomness
        Of everything inside, and of nothing else.
    left : Fraction
        What may still be spent.
    """

    def compares(self, rng: Randomness) -> bool:
        """Nothing is compared."""
        return False

    def __init__(self, account: Opened, whole: float | Event, rng: Randomness) -> None:
        self._account = account
        self.rng = rng.for_release()
        self._key = None if rng.is_secure else f"noise of {self.rng.place}"
        self._whole = whole if isinstance(whole, Event) else Pure(whole)
        self.left = Fraction(self._cost(self._whole))
        self._opened = False
        self._seen: list[str] = []

    def _cost(self, event: Event) -> float:
        """What an event takes of the whole: epsilon, or rho if that is what it was cut from."""
        if not isinstance(self._whole, ZeroConcentrated):
            return event.pure_epsilon()
        if isinstance(event, ZeroConcentrated):
            return event.whole * event.count
        return math.inf

    def require_same(self, relation: Relation, unit: str) -> None:
        """Raise unless the account speaks of these neighbours and this unit."""
        self._account.require_same(relation, unit)

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """The whole, once something was looked at."""
        if not self._seen:
            return (event,), what
        return (self._whole,), f"{', '.join(self._seen)}; then {what}"

    def charge(self, event: Event | History, note: str, key: str | None = None) -> None:
        """Take a part of the envelope, which is charged at the first one."""
        costs = [self._cost(one) for one in as_history(event)]
        if not all(map(math.isfinite, costs)) or sum(map(Fraction, costs)) > self.left:
            raise BudgetExceededError(
                f"{note} does not fit into the {self._whole} that was set aside for it and for "
                "what was looked at before. This is a mistake in noisewise; it released nothing."
            )
        if not self._opened:
            self._account.charge(self._whole, note, self._key)
            self._opened = True
        self.left -= sum(map(Fraction, costs))
        self._seen.append(note)

    def require_room(self, event: Event, key: str) -> None:
        """Nothing inside is compared."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Take a part of the envelope."""
        self.charge(event, note)
        return True


class Prepaid:
    """Several releases that are charged in one act before the first: all of them or none.

    Parameters
    ----------
    account : MemoryAccount or LedgerAccount
    events : sequence of events
        Of all releases, in any order.
    """

    def compares(self, rng: Randomness) -> bool:
        """Nothing is compared."""
        return False

    def __init__(
        self, account: MemoryAccount | LedgerAccount | Envelope, events: Iterable[Event]
    ) -> None:
        self._account = account
        self._left = list(events)
        self._charged = False

    def require_same(self, relation: Relation, unit: str) -> None:
        """Raise unless the account speaks of these neighbours and this unit."""
        self._account.require_same(relation, unit)

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What was charged for it."""
        return (event,), what

    def charge(self, event: Event, note: str, key: str | None = None) -> None:
        """Take one of the events, all of which are charged at the first."""
        if event not in self._left:
            raise BudgetExceededError(
                f"{note} costs {event}, which was not set aside for it. This is a mistake in "
                "noisewise; nothing was released."
            )
        if not self._charged:
            self._account.charge(tuple(self._left), note)
            self._charged = True
        self._left.remove(event)

    def require_room(self, event: Event, key: str) -> None:
        """Nothing is compared."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Take one of the events."""
        self.charge(event, note)
        return True


def together(account: Opened, events: Iterable[Event], rng: Randomness) -> Opened:
    """Return an account in which all these releases are charged, or none of them.

    Seeded releases in a ledger are compared one by one with what they were before.
    """
    if isinstance(account, Prepaid) or account.compares(rng):
        return account
    return Prepaid(account, events)


class Once:
    """One release that is charged before it begins and whose value is not compared afterwards.

    For values that are no numbers, such as a model. What comes of seeded noise cannot be told from
    what came of it before, so a ledger takes each seeded noise once.

    Parameters
    ----------
    account : MemoryAccount, LedgerAccount or Prepaid
    rng : Randomness

    Attributes
    ----------
    rng : Randomness
        Of this release, and of nothing else.
    """

    def __init__(self, account: Opened, rng: Randomness) -> None:
        self._account = account
        self.rng = rng.for_release()
        self._key = None if rng.is_secure else f"noise of {self.rng.place}"

    def compares(self, rng: Randomness) -> bool:
        """Nothing is compared."""
        return False

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What was charged for it."""
        return (event,), what

    def charge(self, event: Event, note: str) -> None:
        """Charge the whole."""
        self._account.charge(event, note, self._key)

    def require_room(self, event: Event, key: str) -> None:
        """Nothing is compared."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Charge the whole."""
        self.charge(event, note)
        return True


#: An account that is open: what releases of one process are charged in.
Opened: TypeAlias = MemoryAccount | LedgerAccount | Prepaid | Envelope
