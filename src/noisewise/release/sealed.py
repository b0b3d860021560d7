"""Pay and keep in one act: a killed process finds what it paid for, and pays for nothing twice.

A value that is charged first and written down afterwards is lost to a death in between, and asking
again costs again. Written down first, it lies there unpaid. So it is written down under a seal, and
the charge is what opens it: the key of the seal is drawn anew, and it enters the world in the very
line of the ledger that records the charge. Before that line nobody can read the file, this process
after a restart included; after it, everybody who may read both can, and the value is paid for.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noisewise.errors import ChargeConflictError, LedgerError
from noisewise.files import replace_file
from noisewise.privacy import Event, Ledger, Randomness
from noisewise.release.account import LedgerAccount

__all__ = ["SealedAccount"]


class SealedAccount(LedgerAccount):
    """The releases of one run after each other, each kept in the act that charges it.

    Parameters
    ----------
    ledger : Ledger
        Its relation and unit are those of all that is released.
    run : str
        Name of the run: no other run of this ledger has it.
    folder : Path
        Where sealed values lie.
    """

    def __init__(self, ledger: Ledger, run: str, folder: Path) -> None:
        super().__init__(ledger, ledger.relation, ledger.unit)
        self._run = run
        self._folder = folder
        self._of = ""
        self._number = 0

    def begin(self, of: str) -> None:
        """Say what is released about, by a digest of what is public, such as released weights.

        What was kept belongs to that; for anything else the run pays anew.
        """
        self._of, self._number = of, 0

    def compares(self, rng: Randomness) -> bool:
        """Always: a value is kept before it is charged."""
        return True

    def recalled(self, event: Event, rng: Randomness) -> Any:
        """Return the next release of this run if it was paid for before it was stopped, or None.

        Seeded noise is drawn again instead.

        Raises
        ------
        LedgerError
            If it was paid for and is not where it was kept.
        """
        charge = self._ledger.find(self._key) if rng.is_secure else None
        if charge is None or charge.digest is None:
            return None
        place = self._place(charge.digest)
        if charge.event == event and place.is_file():
            value = _opened(place.read_bytes(), charge.digest, self._key)
            if value is not None:
                self._number += 1
                return value
        raise LedgerError(
            f"{str(self._ledger.path)!r} holds a charge for a measurement of {self._run!r} that is "
            f"not in {str(self._folder)!r} any more. Bring the folder back as it was, or begin "
            "another run; what was spent stays spent. Nothing was charged now."
        )

    def approve(self, event: Event, note: str, key: str, value: Any) -> bool:
        """Seal the value, and charge with what opens it; seeded noise can be drawn again."""
        note = note if note.startswith(self._run) else f"{self._run}: {note}"
        if key:
            return super().approve(event, note, key, value)
        name = self._key
        data = _bytes_of(value)
        digest = hashlib.sha256(secrets.token_bytes(32) + data).hexdigest()
        nonce = secrets.token_bytes(12)
        sealed = AESGCM(bytes.fromhex(digest)).encrypt(nonce, data, name.encode())
        replace_file(self._place(digest), nonce + sealed)
        try:
            self._ledger.charge_once(event, key=name, digest=digest, note=note)
        except ChargeConflictError:
            self._place(digest).unlink(missing_ok=True)
            raise LedgerError(
                f"another process goes on with {self._run!r} and has measured it. Let that one "
                "finish. Nothing was released or charged here."
            ) from None
        self._number += 1
        return True

    def forget(self) -> None:
        """Remove what only a stopped run needs."""
        for place in self._folder.glob("measured-*.sealed"):
            place.unlink(missing_ok=True)

    @property
    def _key(self) -> str:
        return f"{self._run}: measurement {self._number + 1} of {self._of}"

    def _place(self, digest: str) -> Path:
        # Named by a digest of the key, so that no other process writes over it.
        return self._folder / f"measured-{hashlib.sha256(digest.encode()).hexdigest()[:16]}.sealed"


def _bytes_of(value: Any) -> bytes:
    """Return numbers as bytes; nothing else is kept."""
    held = io.BytesIO()
    np.save(held, np.asarray(value), allow_pickle=False)
    return held.getvalue()


def _opened(sealed: bytes, digest: str, name: str) -> Any:
    """Return what was sealed; None if this does not open it."""
    try:
        data = AESGCM(bytes.fromhex(digest)).decrypt(sealed[:12], sealed[12:], name.encode())
    except (InvalidTag, ValueError):
        return None
    return np.load(io.BytesIO(data), allow_pickle=False)
