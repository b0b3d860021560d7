"""The lines of a ledger: how one is sealed, and what a file of them says.

Each line is a SHA-256, a blank and JSON. The hash is over the hash of the line before and the
JSON, so the last hash commits to every line. A number that is drawn for each line makes hashes
unique: two ledgers, or two continuations of one, never share a hash that they did not inherit,
even if the same charges are made to both.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.errors import LedgerError, LedgerRolledBackError
from noisewise.privacy.events import (
    Event,
    History,
    event_from_dict,
    simplify,
    with_count,
)

__all__ = ["Book", "Charge", "LedgerHead", "Mark", "seal"]

FORMAT = "noisewise-privacy-ledger"
VERSION = 1


@dataclass(frozen=True)
class LedgerHead:
    """The state of a ledger at some moment, in two plain values to be remembered elsewhere.

    Parameters
    ----------
    entries : int
        Number of charges.
    digest : str
        Commits to all of them, and to the budget.
    """

    entries: int
    digest: str


@dataclass(frozen=True)
class Charge:
    """One entry of a ledger.

    Parameters
    ----------
    event : Event
        What was charged for.
    note : str
        For people.
    key : str or None
        For programs: no two entries of a ledger have the same.
    digest : str or None
        Of what was released under the key, if the program gave one.
    """

    event: Event
    note: str = ""
    key: str | None = None
    digest: str | None = None

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> Charge:
        """Return the charge of a line; lines of version 0.1 have neither key nor digest."""
        event = event_from_dict(line["event"])
        return cls(event, str(line["note"]), line.get("key"), line.get("digest"))

    def to_dict(self, sequence: int) -> dict[str, Any]:
        """Return the content of the line with that number."""
        content = {"sequence": sequence, "event": self.event.to_dict(), "note": self.note}
        named = {"key": self.key, "digest": self.digest}
        return content | {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Mark:
    """A line that costs nothing: what state, kept elsewhere, belongs to the ledger from here on.

    Parameters
    ----------
    name : str
        Of what is kept elsewhere.
    value : str
        Of its state; a later line of the same name takes its place.
    """

    name: str
    value: str

    def to_dict(self, sequence: int) -> dict[str, Any]:
        """Return the content of the line with that number."""
        return {"sequence": sequence, "mark": self.name, "value": self.value}


def seal(content: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """Return the line that follows the one with the hash `previous`, and its own hash."""
    unique = content | {"nonce": secrets.token_hex(16)}
    body = json.dumps(unique, sort_keys=True, separators=(",", ":"), allow_nan=False)
    checksum = _hash(previous, body)
    return f"{checksum} {body}\n".encode(), checksum


class Book:
    """What is known of a ledger file: its first `size` bytes, understood.

    Parameters
    ----------
    path : Path
        For messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.last = b""
        self.header: dict[str, Any] = {}
        self.checksums: list[str] = []
        self.charges: list[Charge] = []
        self.by_key: dict[str, Charge] = {}
        self.marks: dict[str, str] = {}
        self.history: History = ()
        #: A kind of release and how many more of it fit the budget; kept up by extend().
        self.allowance: tuple[Event, int] | None = None

    @property
    def head(self) -> LedgerHead:
        """Where the book ends."""
        entries = len(self.checksums) - 1
        return LedgerHead(entries, self.checksums[entries])

    def owner(self, key: str) -> str | None:
        """Who has a key: the note of the charge that was made under it, or a mark; None: nobody."""
        charge = self.by_key.get(key)
        return self.marks.get(key) if charge is None else charge.note

    def contains(self, head: LedgerHead) -> bool:
        """Whether the ledger was at `head` once."""
        known = 0 <= head.entries < len(self.checksums)
        return known and self.checksums[head.entries] == head.digest

    def require(self, head: LedgerHead) -> None:
        """Raise unless the ledger was at `head` once, and only went on from there."""
        if head.entries < 0 or len(self.checksums) <= head.entries:
            raise LedgerRolledBackError(
                f"{str(self.path)!r} holds {len(self.charges)} charges, but {head.entries} were "
                "seen in it before: it was replaced by an older copy or by another ledger. What "
                "was spent since is missing; put the newest copy back."
            )
        if self.checksums[head.entries] != head.digest:
            raise LedgerRolledBackError(
                f"{str(self.path)!r} is not the ledger that was seen before: it differs within its "
                f"first {head.entries} charges. It is another ledger, or an older copy that was "
                "continued; put the right one back."
            )

    def extend(self, data: bytes) -> None:
        """Take up the sealed lines at the beginning of `data`, which follows what is known.

        A line whose seal is right is a line, with or without the newline that ends it; `size`
        counts the newline. Nothing behind a line without a right seal is taken up: if `size` stays
        below the size of the file, a crash tore what follows, or it was damaged.
        """
        position = 0
        while position < len(data):
            end = data.find(b"\n", position)
            line = data[position:] if end < 0 else data[position:end]
            content = _unseal(line, self.checksums[-1] if self.checksums else "")
            if content is None:
                break
            self._take(line + b"\n", content)
            position += len(line) + 1
        if not self.checksums:
            raise LedgerError(f"{str(self.path)!r} is not a noisewise ledger")

    def _take(self, raw: bytes, content: dict[str, Any]) -> None:
        if not self.checksums:
            self._check_header(content)
            self.header = content
        elif "mark" in content:
            self.marks[str(content["mark"])] = str(content.get("value"))
        else:
            try:
                charge = Charge.from_dict(content)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise self.damaged() from error
            if charge.key in self.by_key:
                raise self.damaged()
            self.charges.append(charge)
            if charge.key is not None:
                self.by_key[charge.key] = charge
            self.history = simplify((*self.history, charge.event))
            self._shrink_allowance(charge.event)
        self.checksums.append(raw[:64].decode())
        self.size += len(raw)
        self.last = raw

    def _shrink_allowance(self, event: Event) -> None:
        if self.allowance is not None:
            once, remaining = self.allowance
            same = with_count(event, 1) == once
            self.allowance = (once, remaining - event.count) if same else None

    def _check_header(self, content: dict[str, Any]) -> None:
        if content.get("format") != FORMAT:
            raise LedgerError(f"{str(self.path)!r} is not a noisewise ledger")
        if content.get("version") != VERSION:
            raise LedgerError(
                f"{str(self.path)!r} was written by another version: {content.get('version')!r}"
            )

    def damaged(self) -> LedgerError:
        """Return the error that what follows the book cannot be read."""
        return LedgerError(
            f"line {len(self.checksums) + 1} of {str(self.path)!r} is cut off, damaged or was "
            "changed. What was spent is unknown from there on; put the newest whole copy back. "
            "Only if the machine lost its power while this very line was written, and it is the "
            "last one, was nothing released under it: then remove the line by hand."
        )


def _hash(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def _unseal(raw: bytes, previous: str) -> dict[str, Any] | None:
    try:
        checksum, body = raw.decode().split(" ", 1)
        content = json.loads(body)
    except (UnicodeDecodeError, ValueError, RecursionError):
        return None
    good = checksum == _hash(previous, body) and isinstance(content, dict)
    return content if good else None
