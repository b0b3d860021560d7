"""Several fits on the same records: charged to one ledger, or at least counted.

Cross-validation, grid searches and a second try all learn from the same records, and each fit
costs. With a ledger every fit is charged before it begins. Without one the statement says how many
other fits of this process it does not cover. Whether they had rows in common is not looked at: a
statement that said so would tell everybody who may fit and read whether a row of his is in a table.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import torch

from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Event, Ledger, LedgerHead, epsilon_of, round_up
from noisewise.privacy.events import with_count
from noisewise.training import Plan, ResolvedPlan, check_same_promise

__all__ = ["FitAccount", "digest_of_fit", "note_fit", "one_fit_at_a_time", "open_fit_account"]

_lock = threading.Lock()
_fits = 0
_turn = threading.RLock()


def one_fit_at_a_time() -> contextlib.AbstractContextManager[Any]:
    """Let a fit run from its look at the records to its end before another thread begins one.

    Threads share torch's generator, and a step that meets another's seeds is refused: after its
    charge. So they wait before it (joblib's threads in a grid search, for example).
    """
    return _turn


def _renew_turn() -> None:
    """A process that was forked while another thread had its turn would wait for ever."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


class FitAccount:
    """The ledger of one fit: asked before the records are read, charged before they are used.

    Parameters
    ----------
    ledger : Ledger
    name : str
        Of the estimator, for the ledger's note.
    owned : bool
        Whether to close the ledger afterwards.
    beside : tuple of events
        What a fit releases beside the steps of training.
    """

    def __init__(
        self, ledger: Ledger, name: str, owned: bool, beside: tuple[Event, ...] = ()
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._owned = owned
        self._beside = beside

    def _events(self, resolved: ResolvedPlan) -> tuple[Event, ...]:
        return (with_count(resolved.event, resolved.steps), *self._beside)

    def require_room(self, resolved: ResolvedPlan) -> None:
        """Raise if a fit like this does not fit the budget."""
        check_same_promise(resolved, self._ledger)
        if self._ledger.budget is None:
            return
        epsilon, delta = self._ledger.budget
        after = epsilon_of(
            (*self._ledger.history, *self._events(resolved)),
            delta=delta,
            relation=self._ledger.relation,
            accountant=self._ledger.accountant,
        )
        if after > epsilon:
            raise BudgetExceededError(
                f"this fit does not fit the budget of {self._ledger.path.name!r}: with it "
                f"{round_up(after)} would be spent of epsilon {epsilon:g} at delta {delta:g}. No "
                "record was used and nothing was charged. Ask for a smaller epsilon, fewer "
                "candidates or fewer folds."
            )

    @property
    def place(self) -> str:
        """Of the ledger."""
        return os.path.realpath(self._ledger.path)

    @property
    def head(self) -> LedgerHead:
        """Where the ledger stands."""
        return self._ledger.head()

    def require(self, head: LedgerHead) -> None:
        """Raise if the ledger is not the one of an earlier fit, or older than it."""
        self._ledger.require(head)

    def charge(self, resolved: ResolvedPlan) -> str:
        """Charge the whole fit; what the statement says of it."""
        self._ledger.charge(self._events(resolved), note=f"{self._name}.fit")
        charges = len(self._ledger.charges)
        if charges == 1 + len(self._beside):
            return f"This fit is the only charge of the ledger {self._ledger.path.name!r}."
        delta = self._ledger.budget[1] if self._ledger.budget is not None else resolved.delta
        return (
            f"This statement covers one fit. The ledger {self._ledger.path.name!r} held {charges} "
            f"charges with it, which together cost epsilon "
            f"{round_up(self._ledger.spent(delta=delta))} at delta {delta:g}."
        )

    def close(self) -> None:
        """Close the ledger if it was opened for this fit."""
        if self._owned:
            self._ledger.close()


def open_fit_account(
    ledger: Any, name: str, resolved: ResolvedPlan, beside: tuple[Event, ...] = ()
) -> FitAccount:
    """Return the account of a fit in a ledger or in the file of that name.

    A file that never existed becomes a ledger without a budget, which only adds up; one that did,
    and is gone, is an error.
    """
    if isinstance(ledger, Ledger):
        return FitAccount(ledger, name, owned=False, beside=beside)
    path = Path(os.fspath(ledger))
    if not path.exists():
        try:
            Ledger.create(
                path,
                delta=resolved.delta,
                relation=resolved.plan.relation,
                accountant=resolved.plan.accountant,
                unit=resolved.plan.unit,
            ).close()
        except LedgerError:
            if not path.exists():
                raise  # else a fit in another process was faster
    return FitAccount(Ledger.open(path), name, owned=True, beside=beside)


def note_fit(run: str = "") -> str:
    """Count a fit of this process; say how many others its statement does not cover.

    `run` is its name in a ledger, if it charges one step by step.
    """
    global _fits
    with _lock:
        others, _fits = _fits, _fits + 1
    if run:
        return f"The charges of {run!r} add up with others of these records in its ledger."
    texts = ["This statement covers this fit alone."]
    if others:
        texts.append(
            f"{others} further {'fits' if others > 1 else 'fit'} of this process "
            f"{'are' if others > 1 else 'is'} not covered by this statement; all that learnt from "
            "some of the same records cost, too."
        )
    texts.append(
        "Fits in other processes (n_jobs) are not known here; with a ledger= all would add up."
    )
    return " ".join(texts)


def digest_of_fit(plan: Plan, rate: Any, network: Any, *tensors: torch.Tensor) -> bytes:
    """Return a digest of these records and settings, to which the noise of a seeded fit is bound.

    One random_state serves many fits, as in cross-validation. If two of them that differ drew the
    same noise, their difference would show records without any. So the same fit again draws the
    same noise, and every other one draws its own. The digest itself would let everybody test
    guesses of a record; it goes into the generators and nowhere else.
    """
    total = hashlib.blake2b(f"{plan.to_json()} {rate} {network}".encode(), digest_size=32)
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().numpy().data)
    return total.digest()
