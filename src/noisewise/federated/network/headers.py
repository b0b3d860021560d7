"""Headers that both sides of the network read and write."""

from __future__ import annotations

__all__ = ["MARK_HEADER", "NONCE_HEADER", "number_of"]

#: The nonce that a server has taken.
NONCE_HEADER = "Noisewise-Nonce"
#: Carries a mark, in requests the latest that the sender has seen.
MARK_HEADER = "Noisewise-Mark"


def number_of(mark: str) -> int:
    """Return the number of a mark; ValueError if it is none."""
    text, _, _ = mark.split(".")
    return int(text)
