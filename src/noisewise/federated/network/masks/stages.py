"""The stages of a masked round on the server's disk: what came, from whom, and what is closed.

Every function here is a job for :class:`~noisewise.federated.network.store.Store`: it runs in a
transaction and either has its whole effect or none.

A stage closes once, when everybody who may still send has sent, or when enough have and
``stage_seconds`` have passed; who is not in it by then has dropped out. Its members are written
down with the closing, so that every party is told the same whatever happens in between. The last
two stages close as soon as enough have sent: nobody is left out by that, because whose vector
arrived is settled before.

A message is read in time that grows with its own length, and everything else about it grows with
the number of parties, not with its square.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from noisewise.federated.masking import AggregationError, Confirmation, MaskedVector, Revelation
from noisewise.federated.masking.neighbours import Ring
from noisewise.federated.masking.server import near
from noisewise.federated.masking.session import (
    CONFIRMATION_BYTES,
    SEALED_BYTES,
    Advertisement,
    SealedShares,
)
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.masks.round import STAGES, MaskedRound

if TYPE_CHECKING:
    # The party shares the stages with the server, but has no database.
    from noisewise.federated.network.store import Connection

__all__ = [
    "ADVERTISE",
    "CONFIRM",
    "MASK",
    "REVEAL",
    "SHARE",
    "Stages",
    "Waiting",
    "listed_first",
    "split_sealed",
    "split_signed",
]

ADVERTISE, SHARE, MASK, CONFIRM, REVEAL = 1, 2, 3, 4, 5
_SEALED = np.dtype([("sender", "<u4"), ("receiver", "<u4"), ("sealed", f"V{SEALED_BYTES - 8}")])
_NAMED = 50


@dataclass(frozen=True)
class Waiting:
    """A stage that is open: how many have sent, and who is expected (the first of them)."""

    stage: int
    present: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """The stages of one round."""

    round: MaskedRound
    _rings: list[Ring | None] = field(default_factory=list)
    _keys: list[bytes] = field(default_factory=list)

    def ring(self, connection: Connection) -> Ring | None:
        """Return who is whose neighbour, once all keys are advertised; None if all are."""
        if not self.round.session.sparse:
            return None
        if not self._rings:
            self._rings.append(self.round.session.ring(self._advertised(connection)))
        return self._rings[0]

    def attempt(self, connection: Connection) -> bytes:
        """Return what signatures are bound to: all keys or, with few neighbours, who masked."""
        ring = self.ring(connection)
        if ring is not None:
            return self.round.session.vouching(ring, self.members(connection, SHARE) or [])
        if not self._keys:
            self._keys.append(self.round.session.keys(self._advertised(connection)))
        return self._keys[0]

    def _advertised(self, connection: Connection) -> list[Advertisement]:
        return [
            self.round.open_advertisements(data)[0]
            for _, data in self.messages(connection, ADVERTISE)
        ]

    def survivors(self, connection: Connection) -> bytes | None:
        """Return what parties sign of those who arrived; None before they are known."""
        members = self.members(connection, MASK)
        if members is None:
            return None
        return self.round.session.survivors(members, self.attempt(connection))

    # ---------------------------------------------------------------- receiving

    def take(
        self, connection: Connection, stage: int, sender: str, data: bytes, now: float
    ) -> None:
        """Keep a party's message of a stage; the same message again changes nothing."""
        number = self.round.number_of(sender)
        row = connection.execute(
            "SELECT data FROM messages WHERE stage = ? AND party = ?", (stage, number)
        ).fetchone()
        if row is not None:
            if row[0] != data:
                raise RefusedError(
                    f"party {sender!r} has sent another message in the stage "
                    f"'{STAGES[stage - 1]}' of this round. Was its state folder lost? Then it "
                    "takes part in the next round.",
                    409,
                    "other-message",
                )
            return
        if stage > ADVERTISE:
            if self.members(connection, stage - 1) is None:
                raise RefusedError("the stage before is still open", 409, "too-early")
            self._check_member(self._expected(connection, stage) or [], stage - 1, sender)
        if self.members(connection, stage) is not None:
            if stage in (CONFIRM, REVEAL):  # enough have done it; one more is not needed
                return
            raise self._left_out(stage, sender)
        try:
            self._check(connection, stage, number, data)
        except AggregationError as error:
            raise RefusedError(str(error), 422, "bad-message") from error
        connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?)", (stage, number, data, now))
        self.close_if_due(connection, stage, now)

    def _check(self, connection: Connection, stage: int, number: int, data: bytes) -> None:
        if stage == ADVERTISE:
            found = self.round.open_advertisements(data)
            if [message.sender for message in found] != [number]:
                raise AggregationError("a party advertises its own keys, once")
        elif stage == SHARE:
            if len(data) % SEALED_BYTES:
                raise AggregationError("a list of sealed shares was cut")
            rows = np.frombuffer(data, _SEALED)
            ring = self.ring(connection)
            others = sorted(
                near(ring, number, self.members(connection, ADVERTISE) or []) - {number}
            )
            if np.any(rows["sender"] != number) or rows["receiver"].tolist() != others:
                raise AggregationError(
                    "a party seals one pair of shares for each other neighbour, in their order"
                )
        elif stage == MASK:
            vector = MaskedVector.from_bytes(data, self.round.session)
            if vector.sender != number:
                raise AggregationError("a party sends its own vector")
            if self.round.session.sparse and not self.round.roll(
                number, vector.signature, self.attempt(connection)
            ):
                raise AggregationError("a party signs whom it has masked with")
        elif stage == CONFIRM:
            signed = Confirmation.from_bytes(data)
            said = self.survivors(connection)
            if (
                said is None
                or signed.sender != number
                or not self.round.roll(number, signed.signature, said)
            ):
                raise AggregationError("a party signs the list of survivors that it was told")
        else:
            shown = Revelation.from_bytes(data)
            ring, arrived = self.ring(connection), self.members(connection, MASK) or []
            stayed = near(ring, number, arrived)
            left = near(ring, number, self.members(connection, SHARE) or []) - set(arrived)
            if shown.sender != number or set(shown.seeds) != stayed or set(shown.keys) != left:
                raise AggregationError("a party reveals the shares that were asked for")

    # ------------------------------------------------------------------ closing

    def members(self, connection: Connection, stage: int) -> list[int] | None:
        """Return who is in a closed stage; None while it is open."""
        row = connection.execute(
            "SELECT members FROM closings WHERE stage = ?", (stage,)
        ).fetchone()
        return None if row is None else list(json.loads(row[0]))

    def close_if_due(self, connection: Connection, stage: int, now: float) -> list[int] | None:
        """Close a stage if it may be; return its members, or None while it is open."""
        found = self.members(connection, stage)
        if found is not None:
            return found
        expected = self._expected(connection, stage)
        (present,) = connection.execute(
            "SELECT COUNT(*) FROM messages WHERE stage = ?", (stage,)
        ).fetchone()
        if expected is None or present < self.round.session.threshold:
            return None
        ring = self.ring(connection) if stage == REVEAL else None
        if ring is not None and not self._revealed(connection, ring):
            return None
        if stage not in (CONFIRM, REVEAL) and present < len(expected):
            waited = now - self._opened(connection, stage)
            if waited < self.round.study.stage_seconds:
                return None
        rows = connection.execute(
            "SELECT party FROM messages WHERE stage = ? ORDER BY party", (stage,)
        )
        members = [row[0] for row in rows]
        connection.execute(
            "INSERT INTO closings VALUES (?, ?, ?)", (stage, json.dumps(members), now)
        )
        return members

    def _revealed(self, connection: Connection, ring: Ring) -> bool:
        """Whether every secret has as many shares as it needs."""
        rows = connection.execute("SELECT party FROM messages WHERE stage = ?", (REVEAL,))
        shown = {row[0] for row in rows}
        held = ring.held(shown)[np.array(self.members(connection, SHARE), np.int64) - 1]
        return bool((held >= self.round.session.shares[1]).all())

    def _expected(self, connection: Connection, stage: int) -> list[int] | None:
        if stage == ADVERTISE:
            return list(range(1, self.round.session.parties + 1))
        # Whoever is in the list of survivors may confirm it, and reveal shares.
        return self.members(connection, min(stage - 1, MASK))

    @staticmethod
    def _opened(connection: Connection, stage: int) -> float:
        """Return when the stage before was closed; of the first, when the first message came."""
        (at,) = connection.execute(
            "SELECT at FROM closings WHERE stage = ? UNION ALL "
            "SELECT MIN(at) FROM messages WHERE stage = ? LIMIT 1",
            (stage - 1, stage),
        ).fetchone()
        return float(at)

    # --------------------------------------------------------------- passing on

    def follow(self, connection: Connection, stage: int, sender: str, now: float) -> Waiting | None:
        """Return for whom a party still has to wait after a stage; None if it is closed."""
        members = self.close_if_due(connection, stage, now)
        if members is None:
            return self.waiting(connection, stage)
        if stage == CONFIRM:  # enough have signed; the others may go on too
            members = self._expected(connection, CONFIRM) or []
        self._check_member(members, stage, sender)
        return None

    def waiting(self, connection: Connection, stage: int) -> Waiting:
        """Return who has sent in an open stage, and who is expected."""
        expected = self._expected(connection, stage) or []
        rows = connection.execute("SELECT party FROM messages WHERE stage = ?", (stage,)).fetchall()
        present = {row[0] for row in rows}
        missing = [number for number in expected if number not in present]
        return Waiting(
            stage, len(present), tuple(self.round.name_of(number) for number in missing[:_NAMED])
        )

    def open_stage(self, connection: Connection, now: float) -> int | None:
        """Return the first stage that is open; None after the last."""
        for stage in range(ADVERTISE, REVEAL + 1):
            if self.close_if_due(connection, stage, now) is None:
                return stage
        return None

    def messages(self, connection: Connection, stage: int) -> Iterator[tuple[int, bytes]]:
        """Return the messages of the members of a closed stage, in their order."""
        members = set(self.members(connection, stage) or [])
        rows = connection.execute(
            "SELECT party, data FROM messages WHERE stage = ? ORDER BY party", (stage,)
        )
        return ((party, data) for party, data in rows if party in members)

    def _check_member(self, members: list[int], stage: int, sender: str) -> int:
        number = self.round.number_of(sender)
        if number not in members:
            raise self._left_out(stage, sender)
        return number

    def _left_out(self, stage: int, sender: str) -> RefusedError:
        return RefusedError(
            f"the stage '{STAGES[stage - 1]}' was closed without party {sender!r}, which came too "
            "late: it is not counted in this round",
            410,
            "left-out",
        )


def listed_first(data: bytes) -> tuple[list[int], bytes]:
    """Return the list of parties that a handout begins with, and the rest."""
    size = int.from_bytes(data[:4], "little")
    end = 4 + 4 * size
    if len(data) < end:
        raise AggregationError("a list of parties was cut")
    numbers: list[int] = np.frombuffer(data[4:end], "<u4").tolist()
    return numbers, data[end:]


def split_signed(data: bytes) -> list[Confirmation]:
    """Return the signatures of one message."""
    return [
        Confirmation.from_bytes(data[start : start + CONFIRMATION_BYTES])
        for start in range(0, len(data), CONFIRMATION_BYTES)
    ]


def split_sealed(data: bytes) -> list[SealedShares]:
    """Return the sealed shares of one message."""
    if len(data) % SEALED_BYTES:
        raise AggregationError("a list of sealed shares was cut")
    return [
        SealedShares.from_bytes(data[start : start + SEALED_BYTES])
        for start in range(0, len(data), SEALED_BYTES)
    ]
