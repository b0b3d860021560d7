"""What `ledger=` means: an account in memory, in a ledger, or in the file of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from noisewise.errors import LedgerError
from noisewise.privacy import Ledger, Relation
from noisewise.release.account import LedgerAccount, MemoryAccount
from noisewise.release.several import Envelope, Opened, Prepaid

__all__ = ["LedgerOrPath", "open_account", "open_ledger"]

#: What `ledger=` may be: a ledger, its file, nothing, or an account that is open already.
LedgerOrPath: TypeAlias = Ledger | str | os.PathLike[str] | Opened | None


@contextlib.contextmanager
def open_account(
    ledger: LedgerOrPath,
    *,
    relation: Relation,
    delta: float = 0.0,
    unit: str = "one record",
    accountant: str = "pld",
) -> Iterator[Opened]:
    """Give the account in which releases are charged: in memory, or in that ledger.

    A path that never existed becomes a ledger without a budget, which adds up.
    """
    if ledger is None or isinstance(ledger, (MemoryAccount, LedgerAccount, Prepaid, Envelope)):
        account = MemoryAccount() if ledger is None else ledger
        account.require_same(relation, unit)
        yield account
        return
    with open_ledger(ledger, relation, delta, unit, accountant) as opened:
        yield LedgerAccount(opened, relation, unit)


@contextlib.contextmanager
def open_ledger(
    ledger: Ledger | str | os.PathLike[str],
    relation: Relation,
    delta: float,
    unit: str,
    accountant: str = "pld",
    epsilon: float | None = None,
) -> Iterator[Ledger]:
    """Give the ledger itself, or the one in that file, closed afterwards."""
    if isinstance(ledger, Ledger):
        yield ledger
        return
    path = Path(ledger)
    if not path.exists() or not path.stat().st_size:
        try:
            Ledger.create(
                path,
                epsilon=epsilon,
                delta=delta,
                relation=relation,
                accountant=accountant,
                unit=unit,
            ).close()
        except LedgerError:
            if not path.exists():
                raise  # else another process was faster
    with Ledger.open(path) as opened:
        yield opened
