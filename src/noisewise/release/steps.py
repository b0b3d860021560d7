"""The steps of one run: many releases of one kind, each charged under its own number.

Every step is one entry of the ledger, under a key of the run's name and the step's number, which
no ledger holds twice. A resumed run finds there how many of its steps were charged, whatever its
checkpoint says: a charge is never forgotten. A seeded step also leaves a digest of what it
released. Taken again, it is free only if it would release the very same bits; anything else under
the same noise would be a second release that nobody paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from noisewise.errors import ChargeConflictError, LedgerError
from noisewise.privacy import Event, History, Ledger, LedgerHead, Randomness, Relation
from noisewise.privacy.events import simplify, with_count
from noisewise.release.account import digest_of
from noisewise.release.promise import Promise

__all__ = ["Allowance", "LedgerSteps", "MemorySteps", "Step", "Steps", "promise_of"]


class Allowance(Protocol):
    """How many steps a plan allows."""

    def require_one_more(self, charged: int) -> None:
        """Raise if another step would exceed the target."""
        ...


class Steps(Protocol):
    """Counts the steps of one run and refuses the one that would exceed its budget."""

    @property
    def charged(self) -> int:
        """Number of steps that were charged."""
        ...

    @property
    def history(self) -> History:
        """The releases of this run."""
        ...

    @property
    def durable(self) -> bool:
        """Whether charges survive the process."""
        ...

    @property
    def head(self) -> LedgerHead | None:
        """Where the ledger stands, to be remembered in a checkpoint."""
        ...

    def charge(self, step: int, digest: str | None) -> bool:
        """Charge the step with that number; whether its result may be released.

        A step that was charged before may be released again if `digest`, that of its result, is
        the one that was written down then. Otherwise nothing is charged and the answer is False.
        """
        ...

    def restore(self, charged: int, head: LedgerHead | None) -> None:
        """Take up a run of which a checkpoint knows `charged` steps, and the ledger at `head`."""
        ...

    def follow(self, charged: int) -> None:
        """Count what worker 0 has charged."""
        ...

    def close(self) -> None:
        """Release files."""
        ...


class MemorySteps:
    """Steps that are counted as long as the process lives, like the weights that come of them."""

    durable = False
    head = None

    def __init__(self, event: Event, allowance: Allowance) -> None:
        self._event = event
        self._allowance = allowance
        self._charged = 0

    @property
    def charged(self) -> int:
        """Number of steps that were charged."""
        return self._charged

    @property
    def history(self) -> History:
        """The releases of this run."""
        return (with_count(self._event, self._charged),) if self._charged else ()

    def charge(self, step: int, digest: str | None) -> bool:
        """Charge a step; one that was charged before left nothing to compare it with."""
        if step < self._charged:
            return False
        self._allowance.require_one_more(self._charged)
        self._charged += 1
        return True

    def restore(self, charged: int, head: LedgerHead | None) -> None:
        """Refuse: what was charged after the checkpoint is in its ledger alone."""
        raise LedgerError(
            "a checkpoint is resumed with the ledger beside which it was written: steps that were "
            "charged after it are known there alone. Give ledger=."
        )

    def follow(self, charged: int) -> None:
        """Count what worker 0 has charged."""
        self._charged = max(self._charged, charged)

    def close(self) -> None:
        """Nothing to release."""


class LedgerSteps:
    """Steps in a durable ledger, which may hold other runs and releases too.

    Parameters
    ----------
    event : Event
        One step.
    allowance : Allowance
        Of the plan, beside the ledger's own budget.
    ledger : Ledger
    name : str
        Of the run.
    held : ExitStack
        Closed with the run: the ledger, if it was opened for it.
    """

    durable = True

    def __init__(
        self, event: Event, allowance: Allowance, ledger: Ledger, name: str, held: ExitStack
    ) -> None:
        self._event = event
        self._allowance = allowance
        self._ledger = ledger
        self._name = name
        self._held = held
        mine = [found for found, note in ledger.entries if note.startswith(self._prefix)]
        self._history: History = simplify(mine)
        self._charged = sum(found.count for found in mine)
        self._resumed = self._charged == 0

    @property
    def charged(self) -> int:
        """Number of steps that were charged."""
        return self._charged

    @property
    def history(self) -> History:
        """The releases of this run."""
        return self._history

    @property
    def head(self) -> LedgerHead:
        """Where the ledger stands."""
        return self._ledger.head()

    def charge(self, step: int, digest: str | None) -> bool:
        """Charge the step with that number; whether its result may be released."""
        if not self._resumed:
            raise LedgerError(
                f"{str(self._ledger.path)!r} already holds {self._charged} steps of a run called "
                f"{self._name!r}. Resume it from its checkpoint (resume=, with PrivateTrainer "
                "resume_from_checkpoint=True), or give this run another name=: two runs under "
                "one name could repeat their noise."
            )
        key = f"{self._prefix}{step + 1}"
        if step < self._charged:
            before = self._ledger.find(key)
            return (
                before is not None
                and before.digest is not None
                and (before.digest, before.event) == (digest, self._event)
            )
        self._allowance.require_one_more(self._charged)
        try:
            self._ledger.charge(self._event, note=key, key=key, digest=digest)
        except ChargeConflictError:
            raise LedgerError(
                f"somebody else took step {step + 1} of the run {self._name!r} in "
                f"{str(self._ledger.path)!r} meanwhile: two runs under one name could repeat their "
                "noise, so this one takes no step and charges nothing. Stop one of them, and "
                "resume or give another name=."
            ) from None
        self._charged += 1
        self._history = simplify((*self._history, self._event))
        return True

    def restore(self, charged: int, head: LedgerHead | None) -> None:
        """Take up a run of which a checkpoint knows `charged` steps, and the ledger at `head`."""
        if self._charged < charged:
            raise LedgerError(
                f"the checkpoint has taken {charged} steps, but {str(self._ledger.path)!r} holds "
                f"only {self._charged} of the run {self._name!r}: charges are missing. Open the "
                "ledger with which the checkpoint was made."
            )
        if head is not None:  # checkpoints of version 0.1 have none
            self._ledger.require(head)
        self._resumed = True

    def follow(self, charged: int) -> None:
        """Nothing to do for the one who charges."""

    def close(self) -> None:
        """Release the ledger if this run opened it."""
        self._held.close()

    @property
    def _prefix(self) -> str:
        return f"{self._name}: step "


@dataclass(frozen=True, eq=False)
class Step:
    """The account of one step: asked with the noisy value at hand, if that can be repeated.

    Parameters
    ----------
    steps : Steps
        Of the run.
    number : int
        From 0.
    used : callable
        Told at once when the step was paid for: whatever fails afterwards, its noise is used up.
    """

    steps: Steps
    number: int
    used: Callable[[], None]

    def compares(self, rng: Randomness) -> bool:
        """What is seeded can be repeated; secret noise never is."""
        return not rng.is_secure

    def pay(self, value: Any = None) -> bool:
        """Charge the step, with its noisy value if there is one; whether it may be released."""
        # Without a ledger nothing is ever repeated.
        compared = value is not None and self.steps.durable
        paid = self.steps.charge(self.number, digest_of(value) if compared else None)
        if paid:
            self.used()
        return paid

    def stated(self, event: Event, what: str) -> tuple[History, str]:
        """Of this step alone; the run speaks of all."""
        return (event,), what

    def charge(self, event: Event, note: str) -> None:
        """Charge for a value that does not exist yet."""
        self.pay()

    def require_room(self, event: Event, key: str) -> None:
        """Whether there is room is known when the step is paid for, which nobody sees before."""

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Charge for a value that nobody has seen."""
        return self.pay(value)


def promise_of(
    steps: Steps,
    *,
    delta: float,
    mechanism: str,
    relation: Relation,
    accountant: str,
    unit: str,
    sampler: str,
    randomness: str,
    assumptions: tuple[str, ...],
) -> Promise:
    """Return what is promised of all steps of a run, from what was charged for them."""
    return Promise(
        history=steps.history,
        delta=delta,
        mechanism=mechanism,
        relation=relation,
        accountant=accountant,
        unit=unit,
        sampler=sampler if steps.history else None,
        randomness=randomness,
        assumptions=assumptions,
    )
