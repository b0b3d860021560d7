"""The server of a masked aggregation: it passes on what it cannot read and sums what is masked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from noisewise.federated.masking.neighbours import Ring
from noisewise.federated.masking.session import (
    Advertisement,
    AggregationError,
    Confirmation,
    MaskedVector,
    Revelation,
    Roll,
    SealedShares,
    Session,
    agree,
    commit,
    from_limbs,
    mask_of,
    once,
)
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import Words

__all__ = ["MaskingServer", "unmask"]


class MaskingServer:
    """Collects the messages of each stage; a stage is closed by asking for what comes next.

    Parameters
    ----------
    session : Session
    roll : callable
        Tells whether a party signed data; see :class:`noisewise.federated.masking.session.Roll`.
    """

    def __init__(self, session: Session, roll: Roll) -> None:
        self.session = session
        self._roll = roll
        self._advertised: dict[int, Advertisement] = {}
        self._sealed: dict[int, dict[int, SealedShares]] = {}
        self._vectors: dict[int, MaskedVector] = {}
        self._confirmed: dict[int, Confirmation] = {}
        self._revealed: dict[int, Revelation] = {}
        self._stage = 1

    # ---------------------------------------------------------------- receiving

    def take_advertisement(self, message: Advertisement) -> None:
        """Stage 1."""
        self._during(1)
        self.session.check_party(message.sender)
        once(self._advertised, message.sender, message, "advertise")

    def take_shares(self, sender: int, messages: list[SealedShares]) -> None:
        """Stage 2: all sealed shares of one party."""
        self._during(2)
        if sender not in self._advertised:
            raise AggregationError(f"party {sender} did not advertise keys")
        by_receiver: dict[int, SealedShares] = {}
        for message in messages:
            if message.sender != sender:
                raise AggregationError(f"party {sender} sent shares in the name of another")
            once(by_receiver, message.receiver, message, "share")
        if set(by_receiver) != near(self._ring, sender, self._advertised) - {sender}:
            raise AggregationError(f"party {sender} did not share with all its neighbours")
        once(self._sealed, sender, by_receiver, "share")

    def take_vector(self, message: MaskedVector) -> None:
        """Stage 3."""
        self._during(3)
        if message.sender not in self._sealed:
            raise AggregationError(f"party {message.sender} did not share keys")
        if message.words.shape != (self.session.size,):
            raise AggregationError(f"the vector of party {message.sender} has the wrong length")
        if self._ring is not None and not self._roll(
            message.sender, message.signature, self._attempt
        ):
            raise AggregationError(f"party {message.sender} did not sign whom it masked with")
        once(self._vectors, message.sender, message, "mask")

    def take_confirmation(self, message: Confirmation) -> None:
        """Stage 4."""
        self._during(4)
        said = self.session.survivors(self._vectors, self._attempt)
        if message.sender not in self._vectors or not self._roll(
            message.sender, message.signature, said
        ):
            raise AggregationError(f"party {message.sender} did not sign the list of survivors")
        once(self._confirmed, message.sender, message, "confirm")

    def take_revelation(self, message: Revelation) -> None:
        """Stage 5."""
        self._during(5)
        if message.sender not in self._vectors:
            raise AggregationError(f"party {message.sender} did not send a vector")
        stayed = near(self._ring, message.sender, self._vectors)
        left = near(self._ring, message.sender, self._sealed) - set(self._vectors)
        if set(message.seeds) != stayed or set(message.keys) != left:
            raise AggregationError(f"party {message.sender} revealed other shares than asked for")
        once(self._revealed, message.sender, message, "reveal")

    # ---------------------------------------------------------------- passing on

    def advertisements(self) -> list[Advertisement]:
        """Close stage 1 and return all public keys, for everybody."""
        self._close(1, len(self._advertised), "advertise")
        return [self._advertised[sender] for sender in sorted(self._advertised)]

    def inbox(self, receiver: int) -> list[SealedShares]:
        """Close stage 2 and return what was sealed for one party."""
        if self._stage == 2:
            self._close(2, len(self._sealed), "share")
        if receiver not in self._sealed:
            raise AggregationError(f"party {receiver} did not share keys")
        senders = near(self._ring, receiver, self._sealed) - {receiver}
        return [self._sealed[sender][receiver] for sender in sorted(senders)]

    def shared(self) -> list[int]:
        """Return who shared keys, for everybody; needed with few neighbours."""
        return sorted(self._sealed)

    def vouchers(self, receiver: int) -> dict[int, bytes]:
        """Return what a party's neighbours signed with their vectors."""
        senders = near(self._ring, receiver, self._vectors) - {receiver}
        return {sender: self._vectors[sender].signature for sender in senders}

    def arrived(self) -> list[int]:
        """Close stage 3 and return whose vectors arrived."""
        if self._stage == 2:  # nobody asked for an inbox: nobody may be left
            self._close(2, len(self._sealed), "share")
        if self._stage == 3:
            self._close(3, len(self._vectors), "mask")
        return sorted(self._vectors)

    def confirmations(self) -> list[Confirmation]:
        """Close stage 4 and return all signatures, for everybody."""
        if self._stage == 4:
            self._close(4, len(self._confirmed), "confirm")
        return [self._confirmed[sender] for sender in sorted(self._confirmed)]

    def total(self) -> Words:
        """Close stage 5 and return the sum of the vectors that arrived, without masks."""
        self._close(5, len(self._revealed), "reveal")
        return unmask(
            self.session, self._advertised, self._sealed, self._vectors.values(), self._revealed
        )

    # ---------------------------------------------------------------- inside

    @cached_property
    def _ring(self) -> Ring | None:
        return self.session.ring(self._advertised.values())  # asked for after stage 1

    @property
    def _attempt(self) -> bytes:
        if self._ring is None:
            return self.session.keys(self._advertised.values())
        return self.session.vouching(self._ring, self._sealed)

    def _during(self, stage: int) -> None:
        if stage != self._stage:
            raise AggregationError(f"a message of stage {stage} came in stage {self._stage}")

    def _close(self, stage: int, present: int, name: str) -> None:
        self._during(stage)
        self.session.check_enough(present, name)
        self._stage = stage + 1


def unmask(
    session: Session,
    advertised: Mapping[int, Advertisement],
    shared: Iterable[int],
    vectors: Iterable[MaskedVector],
    revealed: Mapping[int, Revelation],
) -> Words:
    """Return the sum of vectors without their masks.

    Parameters
    ----------
    session : Session
    advertised : mapping
        Public keys of all who advertised.
    shared : iterable of int
        Who shared keys, and is therefore in the others' masks.
    vectors : iterable of MaskedVector
        Those that arrived; read one after the other.
    revealed : mapping
        By sender; each about everybody who shared keys.

    Raises
    ------
    AggregationError
        If the revealed shares do not give the secrets that were advertised.
    """
    result = np.zeros(session.size, np.uint64)
    stayed = []
    for message in vectors:
        result += message.words
        stayed.append(message.sender)
    left = sorted(set(shared) - set(stayed))
    ring = session.ring(advertised.values())
    seeds = {sender: message.seeds for sender, message in revealed.items()}
    for owner, seed in _rebuild(session, ring, seeds, stayed):
        if commit(seed, session) != advertised[owner].commitment:
            raise AggregationError(f"the shares of party {owner}'s seed do not give its seed")
        result -= mask_of(seed, session.size)
    keys = {sender: message.keys for sender, message in revealed.items()}
    for owner, secret in _rebuild(session, ring, keys, left):
        others = sorted(near(ring, owner, stayed))
        _remove_pairwise(session, advertised, owner, secret, others, result)
    return result


def near(ring: Ring | None, number: int, among: Iterable[int]) -> set[int]:
    """Return which of some parties hold shares with a party: all, or its neighbours on a ring."""
    return set(among) if ring is None else set(among).intersection(ring.of(number))


def _rebuild(
    session: Session,
    ring: Ring | None,
    shares: Mapping[int, Mapping[int, shamir.Field]],
    owners: list[int],
) -> Iterator[tuple[int, bytes]]:
    """Yield the secrets of all owners."""
    if not owners:
        return
    threshold = session.shares[1]
    try:
        if ring is None:  # all shares have the same holders: interpolated once
            stacked = {
                holder: np.stack([found[owner] for owner in owners])
                for holder, found in shares.items()
            }
            secrets = list(shamir.combine(stacked, threshold))
        else:
            # As many as are needed: that they give the right secret is compared afterwards.
            secrets = []
            for owner in owners:
                slots = {holder: slot for slot, holder in enumerate(ring.of(owner), start=1)}
                held = [holder for holder in slots if holder in shares][:threshold]
                secrets.append(
                    shamir.combine({slots[h]: shares[h][owner] for h in held}, threshold)
                )
    except ValueError as error:
        raise AggregationError(f"a secret cannot be rebuilt: {error}") from error
    yield from ((owner, from_limbs(limbs)) for owner, limbs in zip(owners, secrets, strict=True))


def _remove_pairwise(
    session: Session,
    advertised: Mapping[int, Advertisement],
    left: int,
    secret: bytes,
    stayed: Iterable[int],
    result: Words,
) -> None:
    """Subtract the masks that parties who stayed added for one who left."""
    private = X25519PrivateKey.from_private_bytes(secret)
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    if public != advertised[left].masking:
        raise AggregationError(f"the shares of party {left}'s key do not give its key")
    for other in stayed:
        mask = mask_of(agree(private, advertised[other].masking, session, "mask"), session.size)
        if other < left:
            result -= mask
        else:
            result += mask
