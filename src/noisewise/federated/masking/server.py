"""The server of a masked aggregation: it passes on what it cannot read and sums what is masked."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from noisewise.federated.masking.session import (
    Advertisement,
    AggregationError,
    MaskedVector,
    Revelation,
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

__all__ = ["MaskingServer"]


class MaskingServer:
    """Collects the messages of each stage; a stage is closed by asking for what comes next.

    Parameters
    ----------
    session : Session
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._advertised: dict[int, Advertisement] = {}
        self._sealed: dict[int, dict[int, SealedShares]] = {}
        self._vectors: dict[int, MaskedVector] = {}
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
        if set(by_receiver) != set(self._advertised) - {sender}:
            raise AggregationError(f"party {sender} did not share with all others")
        once(self._sealed, sender, by_receiver, "share")

    def take_vector(self, message: MaskedVector) -> None:
        """Stage 3."""
        self._during(3)
        if message.sender not in self._sealed:
            raise AggregationError(f"party {message.sender} did not share keys")
        if message.words.shape != (self.session.size,):
            raise AggregationError(f"the vector of party {message.sender} has the wrong length")
        once(self._vectors, message.sender, message, "mask")

    def take_revelation(self, message: Revelation) -> None:
        """Stage 4."""
        self._during(4)
        if message.sender not in self._vectors:
            raise AggregationError(f"party {message.sender} did not send a vector")
        stayed, left = set(self._vectors), set(self._sealed) - set(self._vectors)
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
        return [self._sealed[s][receiver] for s in sorted(self._sealed) if s != receiver]

    def arrived(self) -> list[int]:
        """Close stage 3 and return whose vectors arrived."""
        if self._stage == 3:
            self._close(3, len(self._vectors), "mask")
        return sorted(self._vectors)

    def total(self) -> Words:
        """Close stage 4 and return the sum of the vectors that arrived, without masks."""
        self._close(4, len(self._revealed), "reveal")
        result = np.zeros(self.session.size, np.uint64)
        for message in self._vectors.values():
            result += message.words
        for owner in self._vectors:
            shares = {sender: m.seeds[owner] for sender, m in self._revealed.items()}
            seed = from_limbs(self._rebuild(shares))
            if commit(seed, self.session) != self._advertised[owner].commitment:
                raise AggregationError(f"the shares of party {owner}'s seed do not give its seed")
            result -= mask_of(seed, self.session.size)
        for owner in sorted(set(self._sealed) - set(self._vectors)):
            shares = {sender: m.keys[owner] for sender, m in self._revealed.items()}
            self._remove_pairwise(owner, from_limbs(self._rebuild(shares)), result)
        return result

    # ---------------------------------------------------------------- inside

    def _remove_pairwise(self, left: int, secret: bytes, result: Words) -> None:
        """Subtract the masks that parties who stayed added for one who left."""
        private = X25519PrivateKey.from_private_bytes(secret)
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        if public != self._advertised[left].masking:
            raise AggregationError(f"the shares of party {left}'s key do not give its key")
        for stayed in self._vectors:
            seed = agree(private, self._advertised[stayed].masking, self.session, "mask")
            mask = mask_of(seed, self.session.size)
            if stayed < left:
                result -= mask
            else:
                result += mask

    def _rebuild(self, shares: dict[int, shamir.Field]) -> shamir.Field:
        try:
            return shamir.combine(shares, self.session.threshold)
        except ValueError as error:
            raise AggregationError(f"a secret cannot be rebuilt: {error}") from error

    def _during(self, stage: int) -> None:
        if stage != self._stage:
            raise AggregationError(f"a message of stage {stage} came in stage {self._stage}")

    def _close(self, stage: int, present: int, name: str) -> None:
        self._during(stage)
        self.session.check_enough(present, name)
        self._stage = stage + 1
