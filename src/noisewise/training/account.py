"""What a run may spend, and where its steps are charged.

The steps themselves are counted and charged by :mod:`noisewise.release.steps`.
"""

from __future__ import annotations

import contextlib
import os

from noisewise.errors import BudgetExceededError, RelationError
from noisewise.privacy import Ledger, Relation, max_count, round_up
from noisewise.release import LedgerSteps, MemorySteps, Steps, open_ledger, other_ledger
from noisewise.training.resolved import ResolvedPlan

__all__ = ["Allowance", "check_same_promise", "memory_account", "open_account"]


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


def memory_account(resolved: ResolvedPlan) -> MemorySteps:
    """Return an account that lives as long as the process."""
    return MemorySteps(resolved.event, Allowance(resolved))


def open_account(
    resolved: ResolvedPlan, ledger: Ledger | str | os.PathLike[str] | None, name: str
) -> Steps:
    """Return the account of a run: in memory, in the ledger given, or in the file of that name."""
    if ledger is None:
        return memory_account(resolved)
    plan = resolved.plan
    with contextlib.ExitStack() as held:
        opened = held.enter_context(
            open_ledger(
                ledger,
                Relation.of(plan.relation),
                resolved.delta,
                plan.unit,
                plan.accountant,
                plan.epsilon,
            )
        )
        check_same_promise(resolved, opened)
        kept = contextlib.ExitStack()
        steps = LedgerSteps(resolved.event, Allowance(resolved), opened, name, kept)
        kept.enter_context(held.pop_all())
        return steps


def check_same_promise(resolved: ResolvedPlan, ledger: Ledger) -> None:
    """Raise unless plan and ledger speak of the same neighbours and the same unit."""
    if ledger.relation.name != resolved.plan.relation or ledger.unit != resolved.plan.unit:
        raise RelationError(
            f"the ledger accounts under {ledger.relation} for {ledger.unit!r}, the plan under "
            f"{resolved.plan.relation} for {resolved.plan.unit!r}; one promise cannot mix them. "
            + other_ledger(ledger.unit, resolved.plan.unit)
        )
