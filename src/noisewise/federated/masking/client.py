"""One party of a masked aggregation.

Its vector leaves it under two kinds of masks: one for each other party, which cancel in the sum
(plus for the one with the smaller number, minus for the other), and one of its own. Should it
drop out, the others' shares rebuild its mask key, so that the masks without a counterpart
can be subtracted; should it stay, they rebuild the seed of its own mask. A server that got both
could read the vector, so a party reveals one kind for each other party, once, and then no more; and
only after it has seen that enough others were told the same list of survivors
(:mod:`noisewise.federated.masking.session` derives how many are enough).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from noisewise.federated.masking.neighbours import Ring
from noisewise.federated.masking.session import (
    LIMBS,
    Advertisement,
    AggregationError,
    Confirmation,
    MaskedVector,
    Revelation,
    Roll,
    SealedShares,
    Session,
    Sign,
    agree,
    commit,
    mask_of,
    once,
    to_limbs,
)
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import as_words
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["MaskingClient"]


class MaskingClient:
    """One party; call its methods in the order of the stages, each once.

    Parameters
    ----------
    index : int
        Its number, from 1.
    session : Session
    rng : None, int or Randomness
        ``None`` is the secure choice; anything else is for tests.
    sign : callable
        Signs data with the key by which the others know this party.
    roll : callable
        Tells whether a party signed data; see :class:`noisewise.federated.masking.session.Roll`.
    """

    def __init__(
        self,
        index: int,
        session: Session,
        rng: Randomness | int | None = None,
        *,
        sign: Sign,
        roll: Roll,
    ) -> None:
        self.index = session.check_party(index)
        self.session = session
        self._sign, self._roll = sign, roll
        self._stayed: set[int] = set()
        self._ring: Ring | None = None
        self._attempt = b""
        self._all_shared: set[int] = set()
        self._rng = resolve(rng)
        self._sealing = X25519PrivateKey.from_private_bytes(self._rng.bytes(32))
        self._masking = X25519PrivateKey.from_private_bytes(self._rng.bytes(32))
        self._seed = self._rng.bytes(32)
        self._own: Advertisement | None = None
        self._advertised: dict[int, Advertisement] = {}
        self._shares: dict[int, tuple[shamir.Field, shamir.Field]] = {}
        self._stage = 0

    def advertise(self) -> Advertisement:
        """Stage 1: return the public keys."""
        self._enter(1)
        keys = [
            key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            for key in (self._sealing, self._masking)
        ]
        self._own = Advertisement(self.index, keys[0], keys[1], commit(self._seed, self.session))
        return self._own

    def share(self, advertisements: Iterable[Advertisement]) -> list[SealedShares]:
        """Stage 2: return shares of the mask key and of the seed, sealed for each neighbour.

        Neighbours are all others, or those that the ring of all advertised keys says.
        """
        self._enter(2)
        for message in advertisements:
            self.session.check_party(message.sender)
            once(self._advertised, message.sender, message, "advertise")
        if self._advertised.get(self.index) != self._own:
            raise AggregationError(
                "this party's own advertisement is missing from the list, or was changed"
            )
        publics = [part for m in self._advertised.values() for part in (m.sealing, m.masking)]
        if len(set(publics)) < len(publics):
            raise AggregationError("a public key was advertised twice: somebody copied another's")
        self.session.check_enough(len(self._advertised), "advertise")
        private = self._masking.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        count, threshold = self.session.shares
        keys = shamir.share(to_limbs(private), count, threshold, self._rng)
        seeds = shamir.share(to_limbs(self._seed), count, threshold, self._rng)
        self._ring = self.session.ring(self._advertised.values())
        if self._ring is None:
            self._attempt = self.session.keys(self._advertised.values())
            holders = list(range(1, count + 1))
            self._shares[self.index] = (keys[self.index], seeds[self.index])
        else:
            holders = self._ring.of(self.index)
        return [
            self._seal(receiver, np.concatenate([keys[slot], seeds[slot]]))
            for slot, receiver in enumerate(holders, start=1)
            if receiver in self._advertised and receiver != self.index
        ]

    def mask(
        self, inbox: Iterable[SealedShares], vector: object, shared: Iterable[int] | None = None
    ) -> MaskedVector:
        """Stage 3: return the masked vector.

        Parameters
        ----------
        inbox : iterable of SealedShares
            What the others sealed for this party; whoever is missing dropped out before.
        vector : array of integers
        shared : iterable of int, optional
            All parties that have shared keys: needed with few neighbours, where an inbox does not
            say it. This party signs that it has masked with all its neighbours among them.
        """
        self._enter(3)
        words = as_words(vector)
        if words.shape != (self.session.size,):
            raise ValueError(f"the vector must have {self.session.size} entries, got {words.shape}")
        opened: dict[int, tuple[shamir.Field, shamir.Field]] = {}
        for message in inbox:
            once(opened, message.sender, self._open(message), "share")
        signature = b""
        if self._ring is None:
            self.session.check_enough(len(opened) + 1, "share")
        else:
            signature = self._vouch(self._ring, set(shared or ()), set(opened))
        self._shares.update(opened)
        masked = words + mask_of(self._seed, words.size)
        for other in opened:
            public = self._advertised[other].masking
            mask = mask_of(agree(self._masking, public, self.session, "mask"), words.size)
            if self.index < other:
                masked += mask
            else:
                masked -= mask
        return MaskedVector(self.index, masked, signature)

    def confirm(
        self, arrived: Iterable[int], vouchers: Mapping[int, bytes] | None = None
    ) -> Confirmation:
        """Stage 4: sign the list of those whose vectors arrived; the one list of this round.

        Parameters
        ----------
        arrived : iterable of int
        vouchers : mapping, optional
            With few neighbours: the signatures that those of them who arrived sent with their
            vectors.
        """
        self._enter(4)
        stayed = set(arrived)
        unknown = stayed - (set(self._shares) if self._ring is None else self._all_shared)
        if unknown:
            raise AggregationError(
                f"the server names {sorted(unknown)}, who never shared keys with this party"
            )
        if self.index not in stayed:
            raise AggregationError("the server says that this party's own vector did not arrive")
        self.session.check_enough(len(stayed), "mask")
        if self._ring is not None:
            self._check_ring(self._ring, stayed, vouchers or {})
        self._stayed = stayed
        said = self.session.survivors(stayed, self._attempt)
        return Confirmation(self.index, self._sign(said))

    def reveal(self, confirmations: Iterable[Confirmation]) -> Revelation:
        """Stage 5: return shares of the seeds of parties that stayed and keys of those that left.

        For every party one of the two, never both, and only if as many survivors as the threshold
        have signed the list that this party was told: a server that told others another list
        could put a party's two secrets together, or open the sum of a few.
        """
        self._enter(5)
        said, signed = self.session.survivors(self._stayed, self._attempt), set()
        for message in confirmations:
            if message.sender not in self._stayed or not self._roll(
                message.sender, message.signature, said
            ):
                raise AggregationError(
                    f"party {message.sender} did not sign the list of survivors that this party "
                    "was told: the server may have told others another one. Nothing was revealed"
                )
            signed.add(message.sender)
        self.session.check_enough(len(signed), "confirm")
        return Revelation(
            self.index,
            seeds={
                owner: self._shares[owner][1] for owner in sorted(set(self._shares) & self._stayed)
            },
            keys={
                owner: self._shares[owner][0] for owner in sorted(set(self._shares) - self._stayed)
            },
        )

    # ------------------------------------------------------------------ inside

    def _vouch(self, ring: Ring, shared: set[int], opened: set[int]) -> bytes:
        """Sign who has shared keys, if this party can mask with all its neighbours among them."""
        if not shared <= set(self._advertised) or self.index not in shared:
            raise AggregationError(
                "the server's list of those who shared keys names strangers, or not this party"
            )
        self.session.check_enough(len(shared), "share")
        if opened != set(ring.of(self.index)) & shared:
            raise AggregationError(
                "the shares of a neighbour are missing, or somebody else's are there: the server "
                "keeps parties apart. Nothing was sent"
            )
        self._all_shared = shared
        self._attempt = self.session.vouching(ring, shared)
        return self._sign(self._attempt)

    def _check_ring(self, ring: Ring, stayed: set[int], vouchers: Mapping[int, bytes]) -> None:
        """Raise unless all survivors are held together by honest neighbours."""
        lonely = ring.lonely(stayed)
        if lonely:
            raise AggregationError(
                f"{len(lonely)} of the survivors (party {lonely[0]} first) have too few neighbours "
                "left that could hide them: the round ends without a result"
            )
        for other in sorted(set(ring.of(self.index)) & stayed):
            if not self._roll(other, vouchers.get(other, b""), self._attempt):
                raise AggregationError(
                    f"party {other} did not sign that it masked with the same neighbours: the "
                    "server may have told it something else. Nothing was revealed"
                )

    def _enter(self, stage: int) -> None:
        if stage != self._stage + 1:
            raise AggregationError(
                f"stage {stage} cannot follow stage {self._stage}: each is passed once, in order"
            )
        self._stage = stage

    def _bound(self, sender: int, receiver: int) -> bytes:
        return self.session.name + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")

    def _cipher(self, other: int, sender: int, receiver: int) -> AESGCM:
        purpose = f"seal/{sender}/{receiver}"
        public = self._advertised[other].sealing
        return AESGCM(agree(self._sealing, public, self.session, purpose))

    def _seal(self, receiver: int, shares: shamir.Field) -> SealedShares:
        nonce = self._rng.bytes(12)
        cipher = self._cipher(receiver, self.index, receiver)
        bound = self._bound(self.index, receiver)
        sealed = cipher.encrypt(nonce, shares.astype("<u8").tobytes(), bound)
        return SealedShares(self.index, receiver, nonce + sealed)

    def _open(self, message: SealedShares) -> tuple[shamir.Field, shamir.Field]:
        sender = message.sender
        if message.receiver != self.index or sender not in self._advertised:
            raise AggregationError(f"sealed shares from {sender} are not for this party")
        if sender == self.index:
            raise AggregationError("a party does not send shares to itself")
        nonce, sealed = message.sealed[:12], message.sealed[12:]
        cipher = self._cipher(sender, sender, self.index)
        try:
            plain = cipher.decrypt(nonce, sealed, self._bound(sender, self.index))
        except InvalidTag as error:
            raise AggregationError(
                f"the sealed shares from party {sender} were changed on the way or are from "
                "another round"
            ) from error
        words = np.frombuffer(plain, "<u8").astype(np.uint64)
        if words.size != 2 * LIMBS or int(words.max()) >= shamir.PRIME:
            raise AggregationError(f"party {sender} sealed something that is not a pair of shares")
        return words[:LIMBS], words[LIMBS:]
