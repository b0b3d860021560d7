"""What parties are handed after a stage: read from the disk once, cut for each party.

A closed stage never changes, so its messages are kept in memory: the sealed shares of n parties
with k neighbours take 116 n k bytes there (116 MB for a thousand whose neighbours are all others),
and handing one party its own takes k slices. Lists come first, and say how long they are.
"""

from __future__ import annotations

import bisect
import threading
from functools import cached_property

import numpy as np

from noisewise.federated.masking import Confirmation
from noisewise.federated.masking.neighbours import Ring
from noisewise.federated.masking.server import near
from noisewise.federated.masking.session import SEALED_BYTES, SIGNATURE_BYTES
from noisewise.federated.network.masks.stages import ADVERTISE, MASK, SHARE, Stages
from noisewise.federated.network.store import Connection, Store

__all__ = ["Handouts"]


class Handouts:
    """The handouts of one round.

    Parameters
    ----------
    stages : Stages
    store : Store
    """

    def __init__(self, stages: Stages, store: Store) -> None:
        self._stages = stages
        self._store = store
        self._lock = threading.Lock()
        self._read: dict[int, dict[int, bytes]] = {}
        self._joined: dict[int, bytes] = {}
        self._sorted: dict[int, list[int]] = {}
        self._signed: dict[int, bytes] | None = None

    def after(self, stage: int, number: int) -> bytes:
        """Return what party `number` needs after a closed stage."""
        with self._lock:
            if stage not in self._joined:
                self._joined[stage] = self._whole(stage)
            whole = self._joined[stage]
            if stage == SHARE:
                return whole + self._inbox(number)
            if stage == MASK:
                return whole + self._vouchers(number)
            return whole

    def _whole(self, stage: int) -> bytes:
        """Return what everybody needs: all advertised keys, who shared, survivors, signatures."""
        if stage in (SHARE, MASK):
            members = self._store.read(lambda c: self._stages.members(c, stage)) or []
            return np.array([len(members), *members], "<u4").tobytes()
        return b"".join(self._messages(stage).values())

    def _inbox(self, number: int) -> bytes:
        """Return what the others sealed for one party."""
        sealed = self._messages(SHARE)
        found = []
        for sender in sorted(near(self._ring, number, sealed) - {number}):
            # A message holds one part for each other neighbour that advertised, in their order.
            receivers = self._receivers(sender)
            place = bisect.bisect_left(receivers, number)
            place -= self._ring is None and number > sender
            found.append(sealed[sender][SEALED_BYTES * place : SEALED_BYTES * (place + 1)])
        return b"".join(found)

    def _receivers(self, sender: int) -> list[int]:
        key = 0 if self._ring is None else sender  # without a ring the same list for everybody
        if key not in self._sorted:
            self._sorted[key] = sorted(near(self._ring, sender, self._messages(ADVERTISE)))
        return self._sorted[key]

    def _vouchers(self, number: int) -> bytes:
        """Return what a party's neighbours signed with their vectors."""
        ring = self._ring
        if ring is None:
            return b""
        if self._signed is None:

            def job(connection: Connection) -> dict[int, bytes]:
                found = self._stages.messages(connection, MASK)
                return {sender: data[-SIGNATURE_BYTES:] for sender, data in found}

            self._signed = self._store.read(job)
        senders = sorted(near(ring, number, self._signed) - {number})
        return b"".join(Confirmation(s, self._signed[s]).to_bytes() for s in senders)

    @cached_property
    def _ring(self) -> Ring | None:
        return self._store.read(self._stages.ring)

    def _messages(self, stage: int) -> dict[int, bytes]:
        if stage not in self._read:

            def job(connection: Connection) -> dict[int, bytes]:
                return dict(self._stages.messages(connection, stage))

            self._read[stage] = self._store.read(job)
        return self._read[stage]
