"""What client and server of a masked aggregation agree on: parameters, keys, messages.

Five stages (Bonawitz et al. 2017, Figure 4, with the consistency check of the malicious model):
every party advertises two public keys; shares its mask key and a seed of its own among all, sealed
for each receiver; sends its masked vector; signs the list of those whose vectors arrived; and, once
it has seen enough signatures under that very list, reveals for every party one of the two kinds of
shares.

**What a lying server learns.** Let n parties be invited, t be the threshold, and c parties tell the
server everything and do whatever it says. An honest party signs one list, so two different lists
have t signatures each only if 2 (t - c) <= n - c. With

    2 t > n + c

at most one list L has t signatures, and honest parties reveal for L or not at all. Then:

* nobody's two secrets are opened: honest parties give out one kind of share of a party, the same
  kind all of them, and c < t shares of the other kind say nothing;
* no honest vector is opened alone. A party that reveals has shares of everybody in L, hence has
  masked with every honest party in L; a mask between two honest parties in L stays unknown, so
  whoever adds up its vector must add all of theirs. A set of honest parties in L that leaves all
  revealing ones out has at most n - t members, so its members would have masked with at most
  n - t + c < t parties, which they refuse.

So a server learns the sum over the honest of L, of whom there are at least t - c, or nothing: the
noise of t - c parties is in everything it sees. With few neighbours instead of all the same holds
but for a probability of 2^-40 (:mod:`noisewise.federated.masking.neighbours`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from noisewise import checks
from noisewise.errors import NoisewiseError
from noisewise.federated.masking.neighbours import Few, Ring, plan_neighbours, ring_of
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import Words
from noisewise.privacy import Randomness

__all__ = [
    "Advertisement",
    "AggregationError",
    "Confirmation",
    "MaskedVector",
    "Revelation",
    "Roll",
    "SealedShares",
    "Session",
    "Sign",
    "agree",
    "check_threshold",
    "commit",
    "from_limbs",
    "least_threshold",
    "mask_of",
    "to_limbs",
]

SECRET_BYTES = 32
# 32 bytes as five numbers below 2^56, which fit into the field of Shamir's shares.
LIMB_BYTES, LIMBS = 7, 5
SEALED_BYTES = 8 + 12 + 2 * 8 * LIMBS + 16
SIGNATURE_BYTES = 64
CONFIRMATION_BYTES = 4 + SIGNATURE_BYTES
_ROW = np.dtype([("owner", "<u4"), ("share", "<u8", (LIMBS,))])

#: Signs data in the name of one party.
Sign: TypeAlias = Callable[[bytes], bytes]
#: Tells whether a party, by its number, signed data: roll(party, signature, data).
Roll: TypeAlias = Callable[[int, bytes, bytes], bool]


class AggregationError(NoisewiseError, RuntimeError):
    """An aggregation that cannot go on; nothing was revealed, nothing is wrong but the round."""


def least_threshold(parties: int, colluding: int) -> int:
    """Return how many must stay so that no two lists of survivors can both be confirmed."""
    return (parties + colluding) // 2 + 1


def check_threshold(parties: int, threshold: int, colluding: int) -> None:
    """Refuse numbers under which a lying server could learn more than one sum of many."""
    least = least_threshold(parties, colluding)
    if least <= threshold <= parties:
        return
    if colluding >= threshold or least > parties:
        reason = "that leaves no honest party whose noise and masks could be counted on"
    elif threshold > parties:
        reason = "so many are not there"
    else:
        reason = (
            "the server could have two different lists of survivors confirmed and open a party's "
            "vector"
        )
    possible = (
        f"it must be more than half of parties and helpers together, {least} to {parties}"
        if least <= parties
        else "so many helpers cannot be allowed for"
    )
    raise ValueError(
        f"a threshold of {threshold} among {parties} parties, of which {colluding} may help the "
        f"server, does not do: {reason}; {possible}"
    )


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
        How many must stay to the end: more than half of `parties` and `colluding` together, or
        a lying server could have two different lists of survivors confirmed.
    size : int
        Length of the vectors.
    colluding : int
        How many parties may tell the server everything and do what it says.
    sparse : bool
        Whether parties share keys with few neighbours instead of with all.
    """

    name: bytes
    parties: int
    threshold: int
    size: int
    colluding: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, bytes) or len(self.name) < 16:
            raise ValueError("name must be at least 16 bytes, fresh for every round")
        checks.integer("parties", self.parties, minimum=2, maximum=1 << 16)
        checks.integer("threshold", self.threshold)
        checks.integer("colluding", self.colluding)
        check_threshold(self.parties, self.threshold, self.colluding)
        checks.integer("size", self.size, minimum=1, maximum=1 << 28)
        if self.sparse:
            plan_neighbours(self.parties, self.threshold, self.colluding)  # or raises

    @cached_property
    def few(self) -> Few | None:
        """How many neighbours a party has; None if all others are."""
        if not self.sparse:
            return None
        return plan_neighbours(self.parties, self.threshold, self.colluding)

    @property
    def shares(self) -> tuple[int, int]:
        """Into how many shares a secret is cut, and how many of them give it back."""
        if self.few is None:
            return self.parties, self.threshold
        return self.few.neighbours, self.few.threshold

    def ring(self, advertised: Iterable[Advertisement]) -> Ring | None:
        """Return the order of the parties that their advertised keys give; None without one."""
        if self.few is None:
            return None
        return ring_of(self.name, self.keys(advertised), self.parties, self.few)

    def keys(self, advertised: Iterable[Advertisement]) -> bytes:
        """Return the digest of all advertised keys: what one attempt at a round is known by."""
        said = sorted(advertised, key=lambda message: message.sender)
        return hashlib.sha256(b"".join(message.to_bytes() for message in said)).digest()

    def vouching(self, ring: Ring, shared: Iterable[int]) -> bytes:
        """Return what a party signs with its vector: the ring, and who has shared keys.

        Whoever signs it has masked with all its neighbours among them.
        """
        numbers = np.array(sorted(set(shared)), "<u4")
        said = hashlib.sha256(ring.root + numbers.tobytes()).digest()
        return b"noisewise/masking/2/masked/" + self.name + said

    def check_party(self, index: int) -> int:
        """Return the number of a party, or raise."""
        if not 1 <= index <= self.parties:
            raise AggregationError(f"there is no party {index}: they are 1 to {self.parties}")
        return index

    def survivors(self, arrived: Iterable[int], attempt: bytes) -> bytes:
        """Return what a party signs when it confirms a list of survivors.

        `attempt` says of which keys, so that no signature is worth anything for others: that of
        :meth:`keys` or, with few neighbours, what all signed with their vectors.
        """
        numbers = np.array(sorted(set(arrived)), "<u4")
        return b"noisewise/masking/3/survivors/" + self.name + attempt + numbers.tobytes()

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
        _check_length(data, SEALED_BYTES, "sealed shares")
        sender, receiver = struct.unpack("<II", data[:8])
        return cls(sender, receiver, data[8:])


@dataclass(frozen=True, eq=False)
class MaskedVector:
    """Stage 3, to the server: uniform words; with few neighbours, also a signature."""

    sender: int
    words: Words
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """Return 4 bytes, 8 for each word, and 64 if there is a signature."""
        words = self.words.astype("<u8").tobytes()
        return struct.pack("<I", self.sender) + words + self.signature

    @classmethod
    def from_bytes(cls, data: bytes, session: Session) -> MaskedVector:
        """Read what :meth:`to_bytes` wrote."""
        end = 4 + 8 * session.size
        _check_length(data, end + SIGNATURE_BYTES * session.sparse, "a masked vector")
        words = np.frombuffer(data[4:end], "<u8").astype(np.uint64)
        return cls(struct.unpack("<I", data[:4])[0], words, data[end:])


@dataclass(frozen=True)
class Confirmation:
    """Stage 4, to all: a party's signature under the list of those whose vectors arrived."""

    sender: int
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return 68 bytes."""
        return struct.pack("<I", self.sender) + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Confirmation:
        """Read what :meth:`to_bytes` wrote."""
        _check_length(data, CONFIRMATION_BYTES, "a confirmation")
        return cls(struct.unpack("<I", data[:4])[0], data[4:])


@dataclass(frozen=True, eq=False)
class Revelation:
    """Stage 5, to the server: for each party a share of its seed, or of its mask key.

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
            rows = np.zeros(len(shares), _ROW)
            if shares:
                rows["owner"] = sorted(shares)
                rows["share"] = [shares[owner] for owner in sorted(shares)]
            parts.append(rows.tobytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Revelation:
        """Read what :meth:`to_bytes` wrote."""
        if len(data) < 12:
            raise AggregationError("a revelation has at least 12 bytes: truncated?")
        sender, seeds, keys = struct.unpack("<III", data[:12])
        _check_length(data, 12 + _ROW.itemsize * (seeds + keys), "a revelation")
        rows = np.frombuffer(data, _ROW, offset=12)
        return cls(sender, _by_owner(rows[:seeds]), _by_owner(rows[seeds:]))


def _by_owner(rows: np.ndarray) -> dict[int, shamir.Field]:
    owners = rows["owner"].astype(np.int64)
    if np.any(np.diff(owners) <= 0):
        raise AggregationError("a revelation names a party twice or out of order")
    shares = rows["share"].astype(np.uint64)
    if shares.size and int(shares.max()) >= shamir.PRIME:
        raise AggregationError("a revelation holds something that is not a share")
    return dict(zip(owners.tolist(), shares, strict=True))


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
    info = b"noisewise/masking/2/" + purpose.encode()
    return HKDF(hashes.SHA256(), 32, salt=session.name, info=info).derive(shared)


def commit(seed: bytes, session: Session) -> bytes:
    """Return a digest of a party's seed, bound to the round."""
    return hashlib.sha256(b"noisewise/masking/2/seed/" + session.name + seed).digest()


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
