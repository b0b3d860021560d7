"""The stages of a masked round on the server's disk: what came, from whom, and what is closed.

Every function here is a job for :class:`~noisewise.federated.network.store.Store`: it runs in a
transaction and either has its whole effect or none.

A stage closes once, when everybody who may still send has sent, or when enough have and
``stage_seconds`` have passed; who is not in it by then has dropped out. Its members are written
down with the closing, so that every party is told the same whatever happens in between. That
matters for the last list (whose vectors arrived): two different ones would make parties reveal
both secrets of one of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from noisewise.federated.masking import AggregationError, MaskedVector, Revelation
from noisewise.federated.masking.session import SealedShares
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.masks.round import STAGES, MaskedRound
from noisewise.federated.network.store import Connection

__all__ = ["ADVERTISE", "MASK", "REVEAL", "SHARE", "Stages", "Waiting", "split_sealed"]

ADVERTISE, SHARE, MASK, REVEAL = 1, 2, 3, 4
_SEALED_BYTES = 116


@dataclass(frozen=True)
class Waiting:
    """A stage that is open: who has sent, and who is expected."""

    stage: int
    present: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """The stages of one round."""

    round: MaskedRound

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
            before = self.members(connection, stage - 1)
            if before is None:
                raise RefusedError("the stage before is still open", 409, "too-early")
            self._check_member(before, stage - 1, sender)
        if self.members(connection, stage) is not None:
            if stage == REVEAL:  # enough have revealed; one more is not needed
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
            sealed = split_sealed(data)
            others = set(self.members(connection, ADVERTISE) or []) - {number}
            receivers = [message.receiver for message in sealed]
            if {message.sender for message in sealed} - {number} or sorted(receivers) != sorted(
                others
            ):
                raise AggregationError("a party seals one pair of shares for each other party")
        elif stage == MASK:
            vector = MaskedVector.from_bytes(data, self.round.session.size)
            if vector.sender != number:
                raise AggregationError("a party sends its own vector")
        else:
            shown = Revelation.from_bytes(data)
            stayed = set(self.members(connection, MASK) or [])
            left = set(self.members(connection, SHARE) or []) - stayed
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
        rows = connection.execute(
            "SELECT party, at FROM messages WHERE stage = ? ORDER BY party", (stage,)
        ).fetchall()
        if expected is None or not rows:
            return None
        present = [row[0] for row in rows]
        enough = len(present) >= self.round.session.threshold
        if stage == REVEAL:
            due = enough
        else:
            waited = now - self._opened(connection, stage, min(row[1] for row in rows))
            due = len(present) == len(expected) or (
                enough and waited >= self.round.study.stage_seconds
            )
        if not due:
            return None
        connection.execute(
            "INSERT INTO closings VALUES (?, ?, ?)", (stage, json.dumps(present), now)
        )
        return present

    def _expected(self, connection: Connection, stage: int) -> list[int] | None:
        if stage == ADVERTISE:
            return list(range(1, self.round.session.parties + 1))
        return self.members(connection, stage - 1)

    @staticmethod
    def _opened(connection: Connection, stage: int, first: float) -> float:
        row = connection.execute("SELECT at FROM closings WHERE stage = ?", (stage - 1,)).fetchone()
        return first if row is None else float(row[0])

    # --------------------------------------------------------------- passing on

    def follow(
        self, connection: Connection, stage: int, sender: str, now: float
    ) -> bytes | Waiting:
        """Return what a party needs after a stage, or for whom it still has to wait."""
        members = self.close_if_due(connection, stage, now)
        if members is None:
            return self.waiting(connection, stage)
        number = self._check_member(members, stage, sender)
        if stage == ADVERTISE:
            return b"".join(self._messages(connection, ADVERTISE, members).values())
        if stage == SHARE:
            found = []
            for data in self._messages(connection, SHARE, members).values():
                found += [m.to_bytes() for m in split_sealed(data) if m.receiver == number]
            return b"".join(found)
        return b"".join(member.to_bytes(4, "little") for member in members)

    def waiting(self, connection: Connection, stage: int) -> Waiting:
        """Return who has sent in an open stage, and who is expected."""
        expected = self._expected(connection, stage) or []
        rows = connection.execute("SELECT party FROM messages WHERE stage = ?", (stage,)).fetchall()
        present = {row[0] for row in rows}
        return Waiting(
            stage,
            tuple(self.round.name_of(number) for number in sorted(present)),
            tuple(self.round.name_of(number) for number in expected if number not in present),
        )

    def open_stage(self, connection: Connection, now: float) -> int | None:
        """Return the first stage that is open; None after the last."""
        for stage in range(ADVERTISE, REVEAL + 1):
            if self.close_if_due(connection, stage, now) is None:
                return stage
        return None

    def everything(self, connection: Connection) -> dict[int, dict[int, bytes]]:
        """Return all messages of members, by stage and party."""
        return {
            stage: self._messages(connection, stage, self.members(connection, stage) or [])
            for stage in range(ADVERTISE, REVEAL + 1)
        }

    @staticmethod
    def _messages(connection: Connection, stage: int, members: list[int]) -> dict[int, bytes]:
        rows = connection.execute(
            "SELECT party, data FROM messages WHERE stage = ? ORDER BY party", (stage,)
        )
        wanted = set(members)
        return {party: data for party, data in rows if party in wanted}

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


def split_sealed(data: bytes) -> list[SealedShares]:
    """Return the sealed shares of one message."""
    if len(data) % _SEALED_BYTES:
        raise AggregationError("a list of sealed shares was cut")
    return [
        SealedShares.from_bytes(data[start : start + _SEALED_BYTES])
        for start in range(0, len(data), _SEALED_BYTES)
    ]
