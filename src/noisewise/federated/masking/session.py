"""What client and server of a masked aggregation agree on: parameters, keys, messages.

Four stages (Bonawitz et al. 2017, Figure 4, without signatures): every party advertises two
public keys; shares its mask key and a seed of its own among all, sealed for each receiver; sends
its masked vector; and reveals, for every party, one of the two kinds of shares.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from noisewise.errors import NoisewiseError
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import Words
from noisewise.privacy import _validate
from noisewise.privacy.randomness import Randomness

__all__ = [
    "Advertisement",
    "AggregationError",
    "MaskedVector",
    "Revelation",
    "SealedShares",
    "Session",
    "agree",
    "commit",
    "from_limbs",
    "mask_of",
    "to_limbs",
]

SECRET_BYTES = 32
# 32 bytes as five numbers below 2^56, which fit into the field of Shamir's shares.
LIMB_BYTES, LIMBS = 7, 5


class AggregationError(NoisewiseError, RuntimeError):
    """An aggregation that cannot go on; nothing was revealed, nothing is wrong but the round."""


@dataclass(frozen=True)
class Session:
    """The public parameters of one aggregation.

    Parameters
    ----------
    name : bytes
        Unique to this round; keys are bound to it.
    parties : int
        How many are invited; they are numbered from 1.
    threshold : int
        How many must stay to the end. More than half of the parties: then no two sets of
        that many parties are disjoint.
    size : int
        Length of the vectors.
    """

    name: bytes
    parties: int
    threshold: int
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, bytes) or len(self.name) < 16:
            raise ValueError("name must be at least 16 bytes, fresh for every round")
        _validate.integer("parties", self.parties, minimum=2, maximum=1 << 16)
        least = self.parties // 2 + 1
        _validate.integer("threshold", self.threshold, minimum=least, maximum=self.parties)
        _validate.integer("size", self.size, minimum=1, maximum=1 << 28)

    def check_party(self, index: int) -> int:
        """Return the number of a party, or raise."""
        if not 1 <= index <= self.parties:
            raise AggregationError(f"there is no party {index}: they are 1 to {self.parties}")
        return index

    def check_enough(self, present: int, stage: str) -> None:
        """Raise if too few parties are left."""
        if present < self.threshold:
            raise AggregationError(
                f"{present} of {self.parties} parties are left after the stage '{stage}', "
                f"{self.threshold} are needed: the round ends without a result; start a new one"
            )


@dataclass(frozen=True)
class Advertisement:
    """Stage 1, to all: public keys for sealing and for masks, and a commitment to the seed.

    The commitment is a digest of 32 random bytes, so it hides them; with it and the public key
    the server notices if shares rebuild anything else than the secret that was shared.
    """

    sender: int
    sealing: bytes
    masking: bytes
    commitment: bytes

    def to_bytes(self) -> bytes:
        """Return 100 bytes."""
        return struct.pack("<I", self.sender) + self.sealing + self.masking + self.commitment

    @classmethod
    def from_bytes(cls, data: bytes) -> Advertisement:
        """Read what :meth:`to_bytes` wrote."""
        _check_length(data, 100, "an advertisement")
        return cls(struct.unpack("<I", data[:4])[0], data[4:36], data[36:68], data[68:])


@dataclass(frozen=True)
class SealedShares:
    """Stage 2, from one party to another through the server, which cannot read it."""

    sender: int
    receiver: int
    sealed: bytes

    def to_bytes(self) -> bytes:
        """Return 116 bytes."""
        return struct.pack("<II", self.sender, self.receiver) + self.sealed

    @classmethod
    def from_bytes(cls, data: bytes) -> SealedShares:
        """Read what :meth:`to_bytes` wrote."""
        _check_length(data, 8 + 12 + 2 * 8 * LIMBS + 16, "sealed shares")
        sender, receiver = struct.unpack("<II", data[:8])
        return cls(sender, receiver, data[8:])


@dataclass(frozen=True, eq=False)
class MaskedVector:
    """Stage 3, to the server: uniform words."""

    sender: int
    words: Words

    def to_bytes(self) -> bytes:
        """Return 4 bytes and 8 for each word."""
        return struct.pack("<I", self.sender) + self.words.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> MaskedVector:
        """Read what :meth:`to_bytes` wrote."""
        _check_length(data, 4 + 8 * size, "a masked vector")
        words = np.frombuffer(data, "<u8", offset=4).astype(np.uint64)
        return cls(struct.unpack("<I", data[:4])[0], words)


@dataclass(frozen=True, eq=False)
class Revelation:
    """Stage 4, to the server: for each party a share of its seed, or of its mask key.

    Parameters
    ----------
    sender : int
    seeds : dict
        Shares of the seeds of parties whose vectors arrived.
    keys : dict
        Shares of the mask keys of parties whose vectors did not.
    """

    sender: int
    seeds: Mapping[int, shamir.Field]
    keys: Mapping[int, shamir.Field]

    def to_bytes(self) -> bytes:
        """Return 12 bytes and 44 for each party."""
        parts = [struct.pack("<III", self.sender, len(self.seeds), len(self.keys))]
        for shares in (self.seeds, self.keys):
            for owner, share in sorted(shares.items()):
                parts.append(struct.pack("<I", owner) + share.astype("<u8").tobytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Revelation:
        """Read what :meth:`to_bytes` wrote."""
        if len(data) < 12:
            raise AggregationError("a revelation has at least 12 bytes: truncated?")
        sender, *counts = struct.unpack("<III", data[:12])
        row = 4 + 8 * LIMBS
        _check_length(data, 12 + row * sum(counts), "a revelation")
        found: list[dict[int, shamir.Field]] = []
        start = 12
        for count in counts:
            shares: dict[int, shamir.Field] = {}
            for _ in range(count):
                owner = struct.unpack("<I", data[start : start + 4])[0]
                words = np.frombuffer(data[start + 4 : start + row], "<u8").astype(np.uint64)
                if owner in shares:
                    raise AggregationError(f"a revelation names party {owner} twice")
                shares[owner] = words
                start += row
            found.append(shares)
        return cls(sender, found[0], found[1])


def to_limbs(secret: bytes) -> shamir.Field:
    """Return 32 secret bytes as field elements."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    padded = secret.ljust(LIMBS * LIMB_BYTES, b"\0")
    return np.array(
        [
            int.from_bytes(padded[LIMB_BYTES * i : LIMB_BYTES * (i + 1)], "little")
            for i in range(LIMBS)
        ],
        np.uint64,
    )


def from_limbs(limbs: shamir.Field) -> bytes:
    """Return the bytes behind :func:`to_limbs`, or raise if there are none."""
    numbers = [int(limb) for limb in limbs]
    data = b"".join(number.to_bytes(8, "little")[:LIMB_BYTES] for number in numbers)
    if any(number >> (8 * LIMB_BYTES) for number in numbers) or any(data[SECRET_BYTES:]):
        raise AggregationError(
            "the shares of a secret do not fit together: a party sent wrong ones"
        )
    return data[:SECRET_BYTES]


def agree(private: X25519PrivateKey, public: bytes, session: Session, purpose: str) -> bytes:
    """Return 32 bytes that two parties have in common, bound to the round and a purpose."""
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise AggregationError(f"a public key is not valid: {error}") from error
    info = b"noisewise/masking/1/" + purpose.encode()
    return HKDF(hashes.SHA256(), 32, salt=session.name, info=info).derive(shared)


def commit(seed: bytes, session: Session) -> bytes:
    """Return a digest of a party's seed, bound to the round."""
    return hashlib.sha256(b"noisewise/masking/1/seed/" + session.name + seed).digest()


def mask_of(seed: bytes, size: int) -> Words:
    """Return the mask that a seed of 32 bytes stands for: an AES-256 counter stream."""
    return Randomness.seeded(b"noisewise/mask/1/" + seed).uint64(size)


M = TypeVar("M")


def once(box: dict[int, M], sender: int, message: M, stage: str) -> None:
    """Keep the first message of a sender; a second one is refused."""
    if sender in box:
        raise AggregationError(f"party {sender} sent a second message in the stage '{stage}'")
    box[sender] = message


def _check_length(data: bytes, length: int, what: str) -> None:
    if len(data) != length:
        raise AggregationError(f"{what} has {length} bytes, got {len(data)}: truncated or foreign")
