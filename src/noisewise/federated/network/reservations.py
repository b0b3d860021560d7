"""Which contributions a release is about: fixed in one transaction, before anything is made.

Between the analyst's list and the last server's answer parties may withdraw. So an analyst first
*reserves* the same set at every server, and only when all of them have it asks for the release. A
withdrawal comes before a server's reservation, which then fails and costs nothing, or after it, and
is then refused: a party that was told "withdrawn" is in no release of that server.

It also holds its part of the budget, so that two releases which cannot both be paid are not each
paid at another server.

A reservation that nothing was made of is given up by its analyst, by a restart of the server, or,
after ``reservation_seconds``, by the first party that wants to withdraw or analyst that wants to
reserve.

Every function here is a job for :class:`~noisewise.federated.network.store.Store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.manifest import set_digest
from noisewise.federated.network.store import Connection, is_member, members_of

__all__ = [
    "Reservation",
    "begin",
    "find",
    "finish",
    "forget",
    "give_up",
    "keep",
    "others",
    "release_using",
    "reserve",
]

_MOST_OPEN = 16


@dataclass(frozen=True)
class Reservation:
    """What a release is, or will be, about.

    Parameters
    ----------
    name : str
        Of the release.
    request : bytes
        The question, in its canonical form.
    members : tuple of str
        Identifiers of the contributions, sorted.
    answer : bytes or None
        What was made of them.
    """

    name: str
    request: bytes
    members: tuple[str, ...]
    answer: bytes | None = None

    def check(self, request: bytes, wanted: str) -> None:
        """Refuse another question or another set under this name."""
        if self.request != request:
            raise RefusedError(
                "a release of this name is about another question; choose another name",
                409,
                "other-question",
            )
        if set_digest(self.members) != wanted:
            raise RefusedError(
                "a release of this name is about other contributions; choose another name",
                409,
                "other-set",
            )


def find(connection: Connection, name: str, table: str = "releases") -> Reservation | None:
    """Return a release that was made, or (table "reservations") one that is prepared."""
    row = connection.execute(
        f"SELECT request, members, answer FROM {table} WHERE name = ?", (name,)
    ).fetchone()
    return None if row is None else Reservation(name, row[0], tuple(members_of(row[1])), row[2])


def reserve(
    connection: Connection,
    name: str,
    analyst: str,
    request: bytes,
    wanted: str,
    excluded: Sequence[str],
    minimum: int,
    now: float,
) -> None:
    """Fix the contributions of a release: all complete ones but `excluded`.

    Parameters
    ----------
    connection : Connection
    name, analyst : str
    request : bytes
    wanted : str
        Digest of the set that is meant.
    excluded : sequence of str
    minimum : int
        How many contributions there must be.
    now : float
    """
    for table in ("releases", "reservations"):
        found = find(connection, name, table)
        if found is not None:
            found.check(request, wanted)
            return
    (open_ones,) = connection.execute(
        "SELECT COUNT(*) FROM reservations WHERE analyst = ?", (analyst,)
    ).fetchone()
    if open_ones >= _MOST_OPEN:
        raise RefusedError(
            f"{analyst!r} has {open_ones} reservations; ask for those releases, or give them up",
            409,
            "too-many",
        )
    rows = connection.execute("SELECT identifier FROM contributions WHERE complete = 1")
    members = sorted({row[0] for row in rows} - set(excluded))
    if set_digest(members) != wanted:
        raise RefusedError(
            "the contributions changed since the list was read; read it again", 409, "moved"
        )
    if len(members) < minimum:
        raise RefusedError(
            f"{len(members)} parties are complete; this study answers from {minimum} on",
            409,
            "too-few",
        )
    connection.execute(
        "INSERT INTO reservations (name, analyst, request, members, at) VALUES (?, ?, ?, ?, ?)",
        (name, analyst, request, b"".join(map(bytes.fromhex, members)), now),
    )


def others(connection: Connection, name: str, before: float) -> list[bytes]:
    """Return the questions of all other reservations, without those from before a time."""
    connection.execute("DELETE FROM reservations WHERE at < ? AND making = 0", (before,))
    rows = connection.execute("SELECT request FROM reservations WHERE name <> ?", (name,))
    return [row[0] for row in rows]


def begin(connection: Connection, name: str) -> Reservation:
    """Begin with what was reserved; from now on only :func:`forget` ends it without a release."""
    found = find(connection, name, "reservations")
    if found is None:
        raise RefusedError(
            "reserve the contributions of this release first, at all servers", 409, "not-reserved"
        )
    connection.execute("UPDATE reservations SET making = 1 WHERE name = ?", (name,))
    return found


def keep(connection: Connection, name: str, answer: bytes) -> None:
    """Store what was made, before it is paid for and sent."""
    connection.execute("UPDATE reservations SET answer = ? WHERE name = ?", (answer, name))


def finish(connection: Connection, name: str) -> None:
    """Turn a reservation that was paid for into a release."""
    connection.execute(
        "INSERT INTO releases SELECT name, request, members, answer FROM reservations "
        "WHERE name = ?",
        (name,),
    )
    forget(connection, name)


def forget(connection: Connection, name: str) -> None:
    """End a reservation that was not paid for."""
    connection.execute("DELETE FROM reservations WHERE name = ?", (name,))


def give_up(connection: Connection, name: str, analyst: str) -> None:
    """End an analyst's own reservation, unless something is being made of it."""
    connection.execute(
        "DELETE FROM reservations WHERE name = ? AND analyst = ? AND making = 0", (name, analyst)
    )


def release_using(connection: Connection, identifier: str, before: float) -> str | None:
    """Return "released" or "reserved" if a contribution cannot be withdrawn.

    Reservations from a time before `before` that nothing is being made of are given up for it.
    """
    for (members,) in connection.execute("SELECT members FROM releases"):
        if is_member(members, identifier):
            return "released"
    rows = connection.execute("SELECT name, members, at, making FROM reservations").fetchall()
    for name, members, at, making in rows:
        if is_member(members, identifier):
            if making or at >= before:
                return "reserved"
            forget(connection, name)
    return None
