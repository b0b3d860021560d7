"""Taking contributions in: once each, whole, and only from those who may send them.

Every function here is a job for :class:`~noisewise.federated.network.store.Store`: it runs in a
transaction and either has its whole effect or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noisewise.federated.network.errors import NetworkError, RefusedError
from noisewise.federated.network.manifest import Manifest, Share
from noisewise.federated.network.reservations import release_using
from noisewise.federated.network.routes import Route
from noisewise.federated.network.settings import Limits
from noisewise.federated.network.store import Connection
from noisewise.federated.network.study import Study

__all__ = ["Intake", "use_nonce"]

_MOST_WITHDRAWN = 32


def use_nonce(connection: Connection, nonce: str, now: int, expires: int) -> None:
    """Remember a nonce, or refuse a request that has been here before."""
    if int(nonce[:2], 16) == 0:  # now and then is often enough, and costs less
        connection.execute("DELETE FROM nonces WHERE expires < ?", (now,))
    fresh = connection.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, expires))
    if fresh.rowcount == 0:
        raise RefusedError("this request was received before", 409, "replayed")


@dataclass(frozen=True)
class Intake:
    """How one server takes contributions.

    Parameters
    ----------
    study : Study
    server : str
        This server's name.
    route : Route
        How shares are made and read.
    limits : Limits
    """

    study: Study
    server: str
    route: Route
    limits: Limits

    def check(self, manifest: Manifest, identifier: str, sender: str) -> Share:
        """Refuse a manifest that does not fit the study; return this server's share."""
        if manifest.identifier != identifier:
            raise RefusedError("the address is not the manifest's SHA-256", 422, "wrong-manifest")
        if manifest.party != sender or manifest.study != self.study.fingerprint:
            raise RefusedError(
                "this contribution belongs to another party or study", 403, "not-yours"
            )
        names = {server.name for server in self.study.servers}
        if set(manifest.shares) != names:
            raise RefusedError("a contribution has one share for each server", 422, "wrong-shares")
        share = manifest.shares[self.server]
        if share.size > self.limits.largest_contribution:
            raise RefusedError(
                f"{share.size} bytes are more than this server takes from one party "
                f"({self.limits.largest_contribution})",
                413,
                "too-large",
            )
        if self.study.relation.count_is_public and not manifest.records:
            raise RefusedError("the number of records is missing or 0", 422, "wrong-records")
        most = self.study.most_records
        if most is not None and (manifest.records or 0) > most:
            raise RefusedError(
                f"a party contributes at most {most} records to this study, not {manifest.records}",
                422,
                "too-many-records",
            )
        expected = self.route.size(self.study.server_index(self.server), manifest.records)
        if share.size != expected:
            raise RefusedError(
                f"a share of {manifest.records} records has {expected} bytes in this study, not "
                f"{share.size}",
                422,
                "wrong-size",
            )
        return share

    def begin(
        self, connection: Connection, manifest: Manifest, share: Share, first: bytes
    ) -> list[int]:
        """Store a manifest and the first piece; return the pieces that are missing."""
        identifier = manifest.identifier
        rows = connection.execute(
            "SELECT identifier, complete, withdrawn FROM contributions WHERE party = ?",
            (manifest.party,),
        ).fetchall()
        if (identifier, 0, 1) in rows:
            raise RefusedError("this contribution was withdrawn", 410, "withdrawn")
        others = [row[0] for row in rows if not row[2] and row[0] != identifier]
        if others:
            raise RefusedError(
                f"party {manifest.party!r} has already contributed to round {self.study.round!r} "
                f"({others[0][:12]}). It would be counted twice. If the first one was lost on the "
                "way, withdraw it first (noisewise contribute --replace).",
                409,
                "other-contribution",
            )
        if (identifier, 1, 0) in rows:
            return []
        if (identifier, 0, 0) not in rows:
            # A single piece is the whole share, which is then checked at once.
            whole = len(share.digests) == 1
            if whole:
                self._check_whole(share, manifest, first)
            connection.execute(
                "INSERT INTO contributions (identifier, party, manifest, records, complete) "
                "VALUES (?, ?, ?, ?, ?)",
                (identifier, manifest.party, manifest.encoded, manifest.records, int(whole)),
            )
            if whole:
                connection.execute(
                    "INSERT INTO shares VALUES (?, ?, 0, ?)", (identifier, manifest.party, first)
                )
                return []
        return self._store(connection, identifier, share, manifest, 0, first)

    def proceed(
        self, connection: Connection, identifier: str, sender: str, piece: int, data: bytes
    ) -> list[int]:
        """Store a further piece; return the pieces that are missing."""
        row = connection.execute(
            "SELECT manifest, complete, withdrawn FROM contributions "
            "WHERE identifier = ? AND party = ?",
            (identifier, sender),
        ).fetchone()
        if row is None:
            raise RefusedError("no such contribution; send its beginning first", 404, "unknown")
        if row[2]:
            raise RefusedError("this contribution was withdrawn", 410, "withdrawn")
        if row[1]:
            return []
        manifest = Manifest.decode(row[0])
        share = manifest.shares[self.server]
        return self._store(connection, identifier, share, manifest, piece, data)

    def _store(
        self,
        connection: Connection,
        identifier: str,
        share: Share,
        manifest: Manifest,
        piece: int,
        data: bytes,
    ) -> list[int]:
        _check_piece(share, piece, data)
        owned = (identifier, manifest.party)
        connection.execute(
            "INSERT OR IGNORE INTO shares VALUES (?, ?, ?, ?)", (*owned, piece, data)
        )
        missing = _missing(connection, share, *owned)
        if not missing:
            self._check_share(manifest, self.data(connection, identifier))
            connection.execute(
                "UPDATE contributions SET complete = 1 WHERE identifier = ? AND party = ?", owned
            )
        return missing

    def _check_whole(self, share: Share, manifest: Manifest, data: bytes) -> None:
        _check_piece(share, 0, data)
        self._check_share(manifest, data)

    def _check_share(self, manifest: Manifest, data: bytes) -> None:
        try:
            found = self.route.check(self.study.server_index(self.server), data, manifest.records)
        except ValueError as error:
            raise RefusedError(f"this is not a valid share: {error}", 422, "bad-share") from error
        if found != manifest.common:
            raise RefusedError("the shares of the servers are no pair", 422, "bad-share")

    def withdraw(self, connection: Connection, identifier: str, sender: str, now: float) -> bool:
        """Forget the sender's contribution that no release has used, and none is about to use.

        Returns
        -------
        bool
            Whether that is new: it may have been withdrawn before.
        """
        withdrawn = [
            row[0]
            for row in connection.execute(
                "SELECT identifier FROM contributions WHERE party = ? AND withdrawn = 1", (sender,)
            )
        ]
        if identifier in withdrawn:
            return False
        if len(withdrawn) >= _MOST_WITHDRAWN:
            raise RefusedError("too many contributions were withdrawn", 429, "too-many")
        theirs = connection.execute(
            "SELECT 1 FROM contributions WHERE identifier = ? AND party != ? AND manifest != x''",
            (identifier, sender),
        )
        if theirs.fetchone() is not None:
            raise RefusedError("you have made no such contribution", 404, "unknown")
        using = release_using(connection, identifier, now - self.limits.reservation_seconds)
        if using == "released":
            raise RefusedError(
                "a release has used this contribution; it cannot be taken back", 409, "released"
            )
        if using == "reserved":
            raise RefusedError(
                "a release is being prepared with this contribution. It may still fail: try again, "
                f"within {self.limits.reservation_seconds:g} seconds you are told",
                409,
                "reserved",
            )
        # Also one that never came is remembered: a delayed copy of it must not arrive afterwards.
        connection.execute(
            "INSERT INTO contributions (identifier, party, manifest, withdrawn) "
            "VALUES (?, ?, x'', 1) "
            "ON CONFLICT (identifier, party) DO UPDATE SET withdrawn = 1, complete = 0",
            (identifier, sender),
        )
        connection.execute(
            "DELETE FROM shares WHERE identifier = ? AND party = ?", (identifier, sender)
        )
        return True

    def state(self, connection: Connection, identifier: str, sender: str) -> dict[str, Any]:
        """Tell a party how far its contribution is."""
        row = connection.execute(
            "SELECT manifest, complete, withdrawn FROM contributions "
            "WHERE identifier = ? AND party = ?",
            (identifier, sender),
        ).fetchone()
        if row is None:
            return {"known": False, "complete": False, "missing": []}
        if row[2]:
            raise RefusedError("this contribution was withdrawn", 410, "withdrawn")
        if row[1]:
            return {"known": True, "complete": True, "missing": []}
        share = Manifest.decode(row[0]).shares[self.server]
        missing = _missing(connection, share, identifier, sender)
        return {"known": True, "complete": False, "missing": missing}

    @staticmethod
    def complete(connection: Connection) -> list[str]:
        """Return the identifiers of all complete contributions, sorted."""
        rows = connection.execute(
            "SELECT identifier FROM contributions WHERE complete = 1 ORDER BY identifier"
        )
        return [row[0] for row in rows]

    @staticmethod
    def progress(connection: Connection) -> tuple[set[str], set[str]]:
        """Return the parties whose contributions are complete, and those that have begun."""
        rows = connection.execute(
            "SELECT party, complete FROM contributions WHERE withdrawn = 0"
        ).fetchall()
        done = {party for party, complete in rows if complete}
        return done, {party for party, complete in rows if not complete}

    @staticmethod
    def data(connection: Connection, identifier: str) -> bytes:
        """Return the whole share of a contribution."""
        rows = connection.execute(
            "SELECT data FROM shares WHERE identifier = ? ORDER BY piece", (identifier,)
        ).fetchall()
        if not rows:  # a party without records has one, which is empty
            raise NetworkError("the share of a contribution is missing on this server")
        return b"".join(row[0] for row in rows)


def _missing(connection: Connection, share: Share, identifier: str, party: str) -> list[int]:
    rows = connection.execute(
        "SELECT piece FROM shares WHERE identifier = ? AND party = ?", (identifier, party)
    )
    return sorted(set(range(len(share.digests))) - {row[0] for row in rows})


def _check_piece(share: Share, piece: int, data: bytes) -> None:
    if not share.accepts(piece, data):
        raise RefusedError(f"piece {piece} is not what the manifest announced", 422, "wrong-piece")
