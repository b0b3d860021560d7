"""Additive secret sharing over Z_2^64: uniform words that sum to the secret.

All shares but one are uniform and independent of the secret; the last is the secret less their
sum, which is uniform too. So any set of shares but the complete one is independent of the
secret, whatever anybody can compute (Section 4 of Barczewski 2025). Sums of shares are shares of
sums, and so is any linear map with integer coefficients. Signed numbers are meant modulo
2^64: results between -2^63 and 2^63 - 1 come out right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["Words", "as_signed", "as_words", "combine", "expand", "share", "share_compactly"]

Words: TypeAlias = NDArray[np.uint64]

SEED_BYTES = 32


def as_words(values: Any) -> Words:
    """Return integers modulo 2^64."""
    whole = np.asarray(values)
    if whole.dtype.kind not in "iu":
        raise TypeError(f"values must hold integers, got dtype {whole.dtype}")
    return whole.astype(np.int64 if whole.dtype.kind == "i" else np.uint64).view(np.uint64)


def as_signed(words: Words) -> NDArray[np.int64]:
    """Return words as signed numbers in [-2^63, 2^63)."""
    return np.ascontiguousarray(words, np.uint64).view(np.int64)


def share(values: Any, count: int, rng: Randomness | int | None = None) -> list[Words]:
    """Cut integers into `count` shares, all of which are needed to get them back.

    Parameters
    ----------
    values : array of integers
    count : int
        How many shares, at least 2.
    rng : None, int or Randomness
        ``None`` is the secure choice; anything else is for tests.
    """
    count = checks.integer("count", count, minimum=2)
    source, secret = resolve(rng), as_words(values)
    shares = [source.uint64(secret.shape) for _ in range(count - 1)]
    last = secret.copy()
    for part in shares:
        last -= part
    return [*shares, last]


def combine(shares: Sequence[Words]) -> NDArray[np.int64]:
    """Return the signed numbers that were shared. A missing share gives noise, not an error."""
    if not shares:
        raise ValueError("shares must hold at least one share, got none")
    total = np.zeros(np.shape(shares[0]), np.uint64)
    for part in shares:
        if np.shape(part) != total.shape:
            raise ValueError(f"shares have different shapes: {total.shape} and {np.shape(part)}")
        total += part
    return as_signed(total)


def share_compactly(
    values: Any, count: int, rng: Randomness | int | None = None
) -> tuple[list[bytes], Words]:
    """Cut integers into `count` - 1 seeds of 32 bytes and one masked vector.

    The same as :func:`share`, with the uniform words drawn from a cipher keyed by the seeds, so
    that only the last share is as long as the secret. Private against any `count` - 1 who put
    their shares together, under the assumption that AES-256 in counter mode is a good stream.
    """
    count = checks.integer("count", count, minimum=2)
    source, masked = resolve(rng), as_words(values).copy()
    seeds = [source.bytes(SEED_BYTES) for _ in range(count - 1)]
    for seed in seeds:
        masked -= expand(seed, masked.size).reshape(masked.shape)
    return seeds, masked


def expand(seed: bytes, size: int) -> Words:
    """Return the share that a seed of :func:`share_compactly` stands for."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"seed must have {SEED_BYTES} bytes, got {len(seed)}")
    return Randomness.seeded(b"noisewise/additive/1/" + seed).uint64(size)
