"""What was spent: charged before a value exists, in memory or in a durable ledger.

A seeded release can be repeated bit by bit. In a ledger it is written down under the place of its
noise in the seeded stream, with a digest of what came out: the very same again is free, and
anything else with that noise is refused, for two results with one noise show their exact
difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from noisewise.errors import (
    ChargeConflictError,
    LedgerError,
    RelationError,
)
from noisewise.privacy import Event, History, Ledger, Randomness, Relation
from noisewise.privacy.accountants import ACCOUNTANTS, tightest
from noisewise.privacy.events import as_history

__all__ = [
    "Account",
    "LedgerAccount",
    "MemoryAccount",
    "NamedAccount",
    "Remembering",
    "digest_of",
    "other_ledger",
    "same_noise",
]


class Account(Protocol):
    """Counts what was released and refuses what would exceed its budget."""

    def compares(self, rng: Randomness) -> bool:
        """Whether it must see the value before anybody else, to know it if it comes again."""
        ...

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """Return what a statement says of a release: what was spent on it, and in which words."""
        ...

    def charge(self, event: Event, note: str) -> None:
        """Charge for a value that does not exist yet; done when this returns."""
        ...

    def require_room(self, event: Event, key: str) -> None:
        """Raise if the charge would be refused now; nothing is charged."""
        ...

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Charge for a value that nobody has seen; whether it may be released."""
        ...


@runtime_checkable
class Remembering(Account, Protocol):
    """An account that kept values before a death, so that none is measured twice."""

    def recalled(self, event: Event, rng: Randomness) -> Any:
        """Return what was made before and is paid for now, or None."""
        ...


class MemoryAccount:
    """An account that lives as long as the process.

    Examples
    --------
    >>> from noisewise.privacy import Pure
    >>> account = MemoryAccount()
    >>> account.charge(Pure(0.5), "a count")
    >>> account.history
    (Pure(epsilon=0.5, count=1, rows=None),)
    """

    def compares(self, rng: Randomness) -> bool:
        """Nothing is compared."""
        return False

    def __init__(self) -> None:
        self._charged: list[Event] = []

    @property
    def history(self) -> History:
        """What was charged."""
        return tuple(self._charged)

    def require_same(self, relation: Relation, unit: str) -> None:
        """Nothing to compare with."""

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What was charged for it."""
        return (event,), what

    def charge(self, event: Event | History, note: str, key: str | None = None) -> None:
        """Write it down."""
        self._charged.extend(as_history(event))

    def require_room(self, event: Event, key: str) -> None:
        """There is always room."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Write it down."""
        self.charge(event, note)
        return True


def other_ledger(accounted: str, wanted: str) -> str:
    """Return what to do where a ledger speaks of another unit, or of another relation."""
    if accounted == wanted:
        return "Take a ledger for that relation, or ask for the one of this ledger."
    if accounted == "one record":
        return (
            "Begin another ledger for whole units: noisewise ledger create FILE --unit "
            "'one patient', or Ledger.create(path, unit='one patient')."
        )
    if wanted == "one record":
        return (
            f"Say whose rows they are, so that {accounted!r} is protected here too: --unit COLUMN, "
            "unit in the schema, or units= in Python."
        )
    return (
        "If both mean the same, use the ledger's word: "
        f"noisewise.release.Units(identifiers, name={accounted!r})."
    )


def same_noise(ledger: Ledger) -> LedgerError:
    """Return the error that seeded noise was used for something else."""
    return LedgerError(
        f"{str(ledger.path)!r} holds another release with the same seeded noise: two results with "
        "one noise show their exact difference to whoever has both. Give another seed, or none "
        "for secret noise. Nothing was released or charged."
    )


class LedgerAccount:
    """An account in a ledger, which may hold other releases from the same records.

    Parameters
    ----------
    ledger : Ledger
    relation, unit : Relation, str
        Of what will be released; the ledger's must be the same.
    about : str
        Which analysis it is, for the notes in the ledger.
    """

    def compares(self, rng: Randomness) -> bool:
        """What is seeded can be repeated; secret noise never is."""
        return not rng.is_secure

    def __init__(self, ledger: Ledger, relation: Relation, unit: str, about: str = "") -> None:
        self._ledger = ledger
        self._about = f"{about}: " if about else ""
        self.require_same(relation, unit)

    def require_same(self, relation: Relation, unit: str) -> None:
        """Raise unless the ledger speaks of these neighbours and this unit."""
        ledger = self._ledger
        if ledger.relation != relation or ledger.unit != unit:
            raise RelationError(
                f"the ledger accounts under {ledger.relation} for {ledger.unit!r}, this release "
                f"under {relation} for {unit!r}; one promise cannot mix them. "
                + other_ledger(ledger.unit, unit)
            )

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What was charged for it."""
        return (event,), what

    def charge(self, event: Event | History, note: str, key: str | None = None) -> None:
        """Charge the ledger; several events in one act, all or none; a key only once."""
        for one in as_history(event):
            self._check(one)
        try:
            self._ledger.charge(event, note=self._about + note, key=key)
        except ChargeConflictError:
            raise same_noise(self._ledger) from None

    def require_room(self, event: Event, key: str) -> None:
        """Raise if the event does not fit the budget, unless this noise was paid for before."""
        self._check(event)
        if self._ledger.find(key) is None:
            self._ledger.require_room(event)

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Charge, unless the very same was charged before."""
        try:
            said = self._about + note
            self._ledger.charge_once(event, note=said, key=key, digest=digest_of(value))
        except ChargeConflictError:
            raise same_noise(self._ledger) from None
        return True

    def _check(self, event: Event) -> None:
        refusal = ACCOUNTANTS[self._ledger.accountant].refusal((event,))
        if refusal is not None:
            raise LedgerError(
                f"{str(self._ledger.path)!r} adds up by {self._ledger.accountant!r}, which has no "
                f"answer for this release: {refusal}. Charge a ledger that was created with "
                f"accountant={tightest((event,))!r}. Nothing was charged."
            )


class NamedAccount:
    """A release that has a name: kept before it is charged, so that asking again is free.

    Parameters
    ----------
    ledger : Ledger
    key, note : str
        Under which it is charged.
    keep : callable
        Writes the value down where it is found again and nobody sees it, and returns its digest.
    kept : object, optional
        What was written down before a death: it is charged for now, unless it was then.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: str,
        note: str,
        keep: Callable[[Any], str],
        kept: Any = None,
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._note = note
        self._keep = keep
        self._kept = kept

    def compares(self, rng: Randomness) -> bool:
        """Always: one charge stands for one noise."""
        return True

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """What was charged for it."""
        return (event,), what

    def recalled(self, event: Event, rng: Randomness) -> Any:
        """Return what was kept, paid for."""
        if self._kept is not None:
            self.approve(event, "", "", self._kept)
        return self._kept

    def charge(self, event: Event, note: str) -> None:
        """Refuse: what is charged has been kept."""
        raise LedgerError("a release with a name is charged with its value at hand")

    def require_room(self, event: Event, key: str) -> None:
        """Raise if there is no room, unless this name was paid for."""
        if self._ledger.find(self._key) is None:
            self._ledger.require_room(event)

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Keep the value, then charge for it.

        Raises
        ------
        ChargeConflictError
            If something else was charged under this name.
        """
        digest = self._keep(value)
        self._ledger.charge_once(event, key=self._key, digest=digest, note=self._note)
        return True


def digest_of(value: Any) -> str:
    """SHA-256 of a noisy value, to the bit; it says no more than the value, which is public."""
    total = hashlib.sha256()
    items = value.items() if isinstance(value, Mapping) else [("", value)]
    for name, item in items:
        if hasattr(item, "detach"):
            import torch  # a tensor has imported it already

            total.update(f"{name} {item.dtype} {tuple(item.shape)}\n".encode())
            flat = item.detach().cpu().contiguous().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().data)
        else:
            array = np.asarray(item)
            if array.dtype == object:
                array = np.asarray([repr(entry) for entry in array.ravel().tolist()])
            total.update(f"{name} {array.dtype} {array.shape}\n".encode())
            total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
