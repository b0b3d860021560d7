"""Signing keys for a round in one process; between processes they stand in the study file."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from noisewise.federated.masking.session import Roll, Sign
from noisewise.privacy import Randomness

__all__ = ["make_roll"]


def make_roll(parties: Iterable[int], rng: Randomness) -> tuple[dict[int, Sign], Roll]:
    """Return a signing function for each party, and the roll that knows them all."""
    private = {n: Ed25519PrivateKey.from_private_bytes(rng.bytes(32)) for n in parties}
    public = {number: key.public_key() for number, key in private.items()}

    def roll(party: int, signature: bytes, data: bytes) -> bool:
        if party not in public:
            return False
        try:
            public[party].verify(signature, data)
        except InvalidSignature:
            return False
        return True

    return {number: key.sign for number, key in private.items()}, roll
