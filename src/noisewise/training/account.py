"""What a run has spent: charged before each step, durable if there is a ledger.

Every step is one entry of the ledger, under a key of the run's name and the step's number, which
no ledger holds twice. A resumed run finds there how many of its steps were charged, whatever its
checkpoint says: a charge is never forgotten. A seeded step also leaves a digest of what it
released. Taken again, it is free only if it would release the very same bits; anything else under
the same noise would be a second release that nobody paid for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from noisewise.errors import (
    BudgetExceededError,
    ChargeConflictError,
    LedgerError,
    RelationError,
)
from noisewise.privacy import Event, History, Ledger, LedgerHead, PoissonGaussian
from noisewise.privacy.accounting import max_count
from noisewise.privacy.events import simplify
from noisewise.privacy.statement import round_up
from noisewise.training.resolved import ResolvedPlan

__all__ = ["Account", "LedgerAccount", "MemoryAccount", "check_same_promise", "open_account"]


class Account(Protocol):
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


class Allowance:
    """How many steps fit into the target of a plan."""

    def __init__(self, resolved: ResolvedPlan) -> None:
        self._resolved = resolved
        # Calibration has shown that all planned steps fit; only more of them need a search.
        self._allowed = resolved.steps
        self._searched = False

    def require_one_more(self, charged: int) -> None:
        """Raise if another step would exceed the target."""
        plan = self._resolved.plan
        if plan.epsilon is None or charged < self._allowed:
            return
        if not self._searched:
            self._searched = True
            self._allowed = max_count(
                self._resolved.event,
                epsilon=plan.epsilon,
                delta=self._resolved.delta,
                accountant=plan.accountant,
                relation=plan.relation,
            )
        if charged >= self._allowed:
            spent = round_up(self._resolved.epsilon_after(charged))
            raise BudgetExceededError(
                f"step {charged + 1} would exceed the plan's epsilon {plan.epsilon:g} at "
                f"delta {self._resolved.delta:g}: {spent} is spent. The model as it is keeps that "
                "promise; train longer with a larger epsilon, or plan more steps with more noise."
            )


class MemoryAccount:
    """An account that lives as long as the process, like the weights that it accounts for."""

    durable = False
    head = None

    def __init__(self, resolved: ResolvedPlan) -> None:
        self._resolved = resolved
        self._charged = 0
        self._allowance = Allowance(resolved)

    @property
    def charged(self) -> int:
        """Number of steps that were charged."""
        return self._charged

    @property
    def history(self) -> History:
        """The releases of this run."""
        return _history(self._resolved, self._charged)

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


class LedgerAccount:
    """An account in a durable ledger, which may hold other runs and releases too."""

    durable = True

    def __init__(self, resolved: ResolvedPlan, ledger: Ledger, name: str, owned: bool) -> None:
        check_same_promise(resolved, ledger)
        self._event = resolved.event
        self._allowance = Allowance(resolved)
        self._ledger = ledger
        self._name = name
        self._owned = owned
        mine = [event for event, note in ledger.entries if note.startswith(self._prefix)]
        self._history: History = simplify(mine)
        self._charged = sum(event.count for event in mine)
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
                f"{self._name!r}. Resume it from its checkpoint (resume=), or give this run "
                "another name=: two runs under one name could repeat their noise."
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
        if self._owned:
            self._ledger.close()

    @property
    def _prefix(self) -> str:
        return f"{self._name}: step "


def open_account(
    resolved: ResolvedPlan, ledger: Ledger | str | os.PathLike[str] | None, name: str
) -> Account:
    """Return the account of a run: in memory, in the ledger given, or in the file of that name."""
    if ledger is None:
        return MemoryAccount(resolved)
    if isinstance(ledger, Ledger):
        return LedgerAccount(resolved, ledger, name, owned=False)
    path = Path(ledger)
    if path.exists() and path.stat().st_size:
        opened = Ledger.open(path)
    else:
        opened = Ledger.create(
            path,
            epsilon=resolved.plan.epsilon,
            delta=resolved.delta,
            relation=resolved.plan.relation,
            accountant=resolved.plan.accountant,
            unit=resolved.plan.unit,
        )
    try:
        return LedgerAccount(resolved, opened, name, owned=True)
    except BaseException:
        opened.close()
        raise


def _history(resolved: ResolvedPlan, steps: int) -> History:
    if not steps:
        return ()
    event: Event = PoissonGaussian(resolved.noise_multiplier, resolved.sample_rate, steps)
    return (event,)


def check_same_promise(resolved: ResolvedPlan, ledger: Ledger) -> None:
    """Raise unless plan and ledger speak of the same neighbours and the same unit."""
    if ledger.relation.name != resolved.plan.relation or ledger.unit != resolved.plan.unit:
        raise RelationError(
            f"the ledger accounts under {ledger.relation} for {ledger.unit!r}, the plan under "
            f"{resolved.plan.relation} for {resolved.plan.unit!r}; one promise cannot mix them. "
            "Give the plan the ledger's relation and unit."
        )
