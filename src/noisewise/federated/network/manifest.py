"""What a contribution consists of: a manifest that binds the shares of all servers together.

The manifest lists, for every server, the length and the SHA-256 of each piece of its share. The
contribution's identifier is the SHA-256 of the manifest. So two servers that hold the same
identifier hold shares that were made together, of the same records, by the party that
signed it: shares of different attempts cannot be mixed, and sending the same contribution
again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.reading import read_json

__all__ = ["Manifest", "Share", "frame", "set_digest", "unframe"]

_FORMAT = "noisewise-contribution-1"
_LONGEST_MANIFEST = 1 << 20


@dataclass(frozen=True)
class Share:
    """One server's share: its length, and the SHA-256 of each piece.

    Parameters
    ----------
    size : int
        Bytes.
    piece_size : int
        Bytes of every piece but the last.
    digests : tuple of str
    """

    size: int
    piece_size: int
    digests: tuple[str, ...]

    @classmethod
    def of(cls, data: bytes, piece_size: int) -> Share:
        """Describe a share."""
        starts = range(0, len(data), piece_size) if data else range(1)
        digests = (hashlib.sha256(data[i : i + piece_size]).hexdigest() for i in starts)
        return cls(len(data), piece_size, tuple(digests))

    def length(self, piece: int) -> int:
        """Return the bytes of a piece."""
        return min(self.piece_size, self.size - piece * self.piece_size)

    def accepts(self, piece: int, data: bytes) -> bool:
        """Whether `data` is that piece."""
        return (
            0 <= piece < len(self.digests)
            and len(data) == self.length(piece)
            and hashlib.sha256(data).hexdigest() == self.digests[piece]
        )


@dataclass(frozen=True)
class Manifest:
    """A contribution of one party to one round.

    Parameters
    ----------
    study : str
        Fingerprint.
    party : str
    records : int or None
        How many records, where the servers need to know.
    common : str
        What all servers must find in their shares; see
        :meth:`noisewise.federated.network.routes.Route.check`.
    nonce : str
        Makes two contributions of the same records different.
    shares : mapping
        By server.
    """

    study: str
    party: str
    records: int | None
    common: str
    nonce: str
    shares: Mapping[str, Share]

    @classmethod
    def of(
        cls,
        *,
        study: str,
        party: str,
        records: int | None,
        common: str,
        shares: Mapping[str, bytes],
        piece_size: int,
    ) -> Manifest:
        """Describe new shares."""
        described = {name: Share.of(data, piece_size) for name, data in shares.items()}
        return cls(study, party, records, common, secrets.token_hex(16), described)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        content = {
            "format": _FORMAT,
            "study": self.study,
            "party": self.party,
            "records": self.records,
            "common": self.common,
            "nonce": self.nonce,
            "shares": {
                name: {"size": s.size, "piece_size": s.piece_size, "digests": s.digests}
                for name, s in self.shares.items()
            },
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def identifier(self) -> str:
        """SHA-256 of the manifest."""
        return hashlib.sha256(self.encoded).hexdigest()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read a manifest; ValueError if it is not the canonical form of one."""
        try:
            content = read_json(data)
            shares = {
                str(name): Share(
                    _whole(part["size"]),
                    _whole(part["piece_size"], 1),
                    tuple(map(str, part["digests"])),
                )
                for name, part in content["shares"].items()
            }
            records = content["records"]
            manifest = cls(
                study=str(content["study"]),
                party=str(content["party"]),
                records=None if records is None else _whole(records),
                common=str(content["common"]),
                nonce=str(content["nonce"]),
                shares=shares,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a contribution's manifest: {error!r}") from error
        if manifest.encoded != data:
            raise ValueError("not the canonical form of a contribution's manifest")
        for name, part in manifest.shares.items():
            if len(part.digests) != max(1, -(-part.size // part.piece_size)):
                raise ValueError(f"the manifest lists a wrong number of pieces for {name!r}")
        return manifest


def _whole(value: Any, minimum: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 1 << 53:
        raise ValueError(f"not a whole number in range: {value!r}")
    return value


def frame(head: bytes, body: bytes) -> bytes:
    """Put a text before binary data: its length in four bytes, itself, the data."""
    return struct.pack(">I", len(head)) + head + body


def unframe(data: bytes) -> tuple[bytes, bytes]:
    """Undo `frame`; ValueError if it is cut short."""
    if len(data) < 4:
        raise ValueError("cut short")
    (length,) = struct.unpack_from(">I", data)
    if length > min(_LONGEST_MANIFEST, len(data) - 4):
        raise ValueError("cut short")
    return data[4 : 4 + length], data[4 + length :]


def set_digest(identifiers: Sequence[str]) -> str:
    """Return the SHA-256 of a set of contributions, whatever their order."""
    ordered = sorted(identifiers)
    if len(set(ordered)) < len(ordered):
        raise NetworkError("a contribution is listed twice")
    return hashlib.sha256(b"".join(bytes.fromhex(name) for name in ordered)).hexdigest()
