"""What parties are handed after a stage: read from the disk once, cut for each party.

A closed stage never changes, so its messages are kept in memory: the sealed shares of n parties
take 116 n^2 bytes there (116 MB for a thousand), and handing one party its own takes n slices.
"""

from __future__ import annotations

import threading

from noisewise.federated.masking.session import SEALED_BYTES
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

    def after(self, stage: int, number: int) -> bytes:
        """Return what party `number` needs after a closed stage."""
        with self._lock:
            if stage == SHARE:
                return self._inbox(number)
            if stage not in self._joined:
                self._joined[stage] = self._whole(stage)
            return self._joined[stage]

    def _whole(self, stage: int) -> bytes:
        """Return what everybody needs: all advertised keys, the survivors, their signatures."""
        if stage == MASK:
            members = self._store.read(lambda c: self._stages.members(c, MASK)) or []
            return b"".join(member.to_bytes(4, "little") for member in members)
        return b"".join(self._messages(stage).values())

    def _inbox(self, number: int) -> bytes:
        """Return what the others sealed for one party."""
        sealed = self._messages(SHARE)
        # A message holds one part for each other party that advertised, in their order.
        places = {party: place for place, party in enumerate(self._messages(ADVERTISE))}
        found = []
        for sender, data in sealed.items():
            if sender != number:
                place = places[number] - (places[number] > places[sender])
                found.append(data[SEALED_BYTES * place : SEALED_BYTES * (place + 1)])
        return b"".join(found)

    def _messages(self, stage: int) -> dict[int, bytes]:
        if stage not in self._read:

            def job(connection: Connection) -> dict[int, bytes]:
                return dict(self._stages.messages(connection, stage))

            self._read[stage] = self._store.read(job)
        return self._read[stage]
