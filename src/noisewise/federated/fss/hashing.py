"""The one-way expansion of seeds: AES with public keys, made one-way by a feed-forward.

H_k(s) = AES_k(sigma(s)) xor sigma(s), with sigma(a, b) = (a xor b, a) on 64-bit halves: the
Matyas-Meyer-Oseas form with a linear orthomorphism in front, which is circular correlation
robust in the ideal-cipher model (Guo, Katz, Wang and Yu 2020, Section 7.3). Public keys give
the left child, the right child and the value of a node, and what its proof needs
(:mod:`noisewise.federated.fss.checked`); they are digests of their names, so nobody chose them.
Blocks are pairs of little-endian words; the lowest bit of the first word of a child is its
control bit and is cleared from the seed, which leaves 127 secret bits.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = [
    "CIPHER_KEYS",
    "CODE",
    "LEFT",
    "MASKS",
    "RIGHT",
    "SEED_MASK",
    "VALUE",
    "Words",
    "hash_seeds",
    "split",
]

Words: TypeAlias = NDArray[np.uint64]

LEFT, RIGHT, VALUE, CODE = range(4)
MASKS = (4, 5)
ONE = np.uint64(1)
SEED_MASK = ~ONE

CIPHER_KEYS = tuple(
    hashlib.sha256(f"noisewise/function-sharing/1/{name}".encode()).digest()[:16]
    for name in ("left", "right", "value", "code", "mask 0", "mask 1")
)
# In ECB mode an encryptor has no state between whole blocks, so it can be kept.
_ENCRYPTORS = tuple(Cipher(algorithms.AES128(key), modes.ECB()).encryptor() for key in CIPHER_KEYS)


def hash_seeds(which: int, seeds: Words) -> Words:
    """Return H of seeds of shape (..., 2) under one of the public keys."""
    if seeds.size == 0:  # nothing that a cipher could be given
        return np.empty(seeds.shape, np.uint64)
    mixed = np.empty(seeds.shape, np.uint64)
    np.bitwise_xor(seeds[..., 0], seeds[..., 1], out=mixed[..., 0])
    mixed[..., 1] = seeds[..., 0]
    buffer = np.empty(mixed.nbytes + 15, np.uint8)
    written = _ENCRYPTORS[which].update_into(mixed.data.cast("B"), buffer.data)
    if written != mixed.nbytes:  # pragma: no cover - whole blocks are written at once
        raise RuntimeError("the cipher kept back part of a block")
    hashed: Words = buffer[:written].view(np.uint64).reshape(mixed.shape)
    hashed ^= mixed
    return hashed


def split(blocks: Words) -> tuple[Words, Words]:
    """Return seeds and control bits of children; `blocks` is overwritten."""
    bits = blocks[..., 0] & ONE
    blocks[..., 0] &= SEED_MASK
    return blocks, bits
