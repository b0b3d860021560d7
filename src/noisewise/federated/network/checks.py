"""Checks of contributions: which are checked together, with which random numbers, once each.

A contribution is checked after it is complete, when it cannot change any more. The analyst names
a set of contributions that both servers have and that were not checked before; each server draws 32
random bytes for that very set and shows them (:func:`open_check`). When the analyst has told
everybody both strings (:func:`challenge`), they determine the challenge, and both servers publish
what :meth:`noisewise.federated.fss.CheckedKeys.proofs` gives.

Two challenges for one key would show its cell. So a contribution is challenged once, whatever an
analyst or the other server asks for: the challenge is on the disk before anything is published,
with a mark (:mod:`~noisewise.federated.network.marks`), and asking again gives the same.

Every function here is a job for :class:`~noisewise.federated.network.store.Store`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.manifest import set_digest
from noisewise.federated.network.store import Connection, members_of

__all__ = ["SEED_BYTES", "Check", "challenge", "challenged", "find", "open_check"]

SEED_BYTES = 32
_MOST_OPEN = 64


@dataclass(frozen=True)
class Check:
    """Contributions that are checked together.

    Parameters
    ----------
    name : str
        Digest of their set.
    members : tuple of str
        Identifiers, sorted.
    seeds : tuple of bytes
        One from each server.
    """

    name: str
    members: tuple[str, ...]
    seeds: tuple[bytes, ...]


def open_check(connection: Connection, wanted: str, excluded: Sequence[str]) -> bytes:
    """Fix a set of contributions and return this server's random bytes for it.

    Parameters
    ----------
    connection : Connection
    wanted : str
        Digest of the set: all that are complete and were not challenged, but `excluded`.
    excluded : sequence of str
    """
    row = connection.execute("SELECT own FROM checks WHERE name = ?", (wanted,)).fetchone()
    if row is not None:
        return bytes(row[0])
    rows = connection.execute(
        "SELECT identifier FROM contributions WHERE complete = 1 "
        "AND identifier NOT IN (SELECT identifier FROM challenged)"
    )
    members = sorted({row[0] for row in rows} - set(excluded))
    if not members or set_digest(members) != wanted:
        raise RefusedError(
            "the contributions changed since the list was read; read it again", 409, "moved"
        )
    # Those that nobody went on with; a challenge that was given stays.
    connection.execute(
        "DELETE FROM checks WHERE seeds IS NULL AND rowid NOT IN "
        "(SELECT rowid FROM checks WHERE seeds IS NULL ORDER BY rowid DESC LIMIT ?)",
        (_MOST_OPEN - 1,),
    )
    own = secrets.token_bytes(SEED_BYTES)
    connection.execute(
        "INSERT INTO checks VALUES (?, ?, ?, NULL)",
        (wanted, b"".join(map(bytes.fromhex, members)), own),
    )
    return own


def challenge(connection: Connection, name: str, seeds: Sequence[bytes], server: int) -> bool:
    """Fix the challenge of a set; return whether that is new.

    Parameters
    ----------
    connection : Connection
    name : str
        Digest of the set.
    seeds : sequence of bytes
        From each server; this server's own must be what it drew.
    server : int
        Which of them this server is.
    """
    row = connection.execute(
        "SELECT members, own, seeds FROM checks WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        raise RefusedError("no such check was opened here", 404, "unknown")
    members, own, known = row
    whole = b"".join(seeds)
    if seeds[server] != own:
        raise RefusedError("this is not what this server drew", 409, "other-challenge")
    if known is not None:
        if known != whole:
            raise RefusedError(
                "these contributions were challenged with other numbers; a second challenge "
                "would show their records, so there is none",
                409,
                "other-challenge",
            )
        return False
    identifiers = list(members_of(members))
    for identifier in identifiers:
        fresh = connection.execute(
            "INSERT OR IGNORE INTO challenged VALUES (?, ?)", (identifier, name)
        )
        if fresh.rowcount == 0:
            raise RefusedError(
                "a contribution of this set was challenged with other numbers; a second challenge "
                "would show its records, so there is none",
                409,
                "other-challenge",
            )
    connection.execute("UPDATE checks SET seeds = ? WHERE name = ?", (whole, name))
    return True


def find(connection: Connection, name: str) -> Check | None:
    """Return a set that was challenged."""
    row = connection.execute(
        "SELECT members, seeds FROM checks WHERE name = ? AND seeds IS NOT NULL", (name,)
    ).fetchone()
    return None if row is None else Check(name, tuple(members_of(row[0])), _cut(row[1]))


def challenged(connection: Connection) -> dict[str, tuple[bytes, ...]]:
    """Return the seeds of all sets that were challenged, by their names."""
    rows = connection.execute("SELECT name, seeds FROM checks WHERE seeds IS NOT NULL")
    return {name: _cut(seeds) for name, seeds in rows}


def _cut(seeds: bytes) -> tuple[bytes, ...]:
    return tuple(seeds[i : i + SEED_BYTES] for i in range(0, len(seeds), SEED_BYTES))
