"""Errors that every part of noisewise raises.

All of them derive from :class:`NoisewiseError`, so that one ``except`` catches
what the library refuses. Each says what was refused, where, why, and what to do.
"""

from __future__ import annotations

__all__ = [
    "BudgetExceededError",
    "DatasetError",
    "LedgerError",
    "MissingExtraError",
    "NoisewiseError",
    "RelationError",
    "StatementError",
    "UnsoundError",
    "UnsupportedModelError",
]


class NoisewiseError(Exception):
    """Base of every error that noisewise raises on purpose."""


class UnsupportedModelError(NoisewiseError, ValueError):
    """A model, layer or loss about which nothing can be proven."""


class UnsoundError(NoisewiseError, ValueError):
    """A privacy guarantee was asked for that does not exist."""


class BudgetExceededError(NoisewiseError, RuntimeError):
    """An operation would spend more privacy than was granted."""


class RelationError(NoisewiseError, ValueError):
    """Quantities that hold under different neighbouring relations were mixed."""


class StatementError(NoisewiseError, ValueError):
    """A privacy statement that is malformed, tampered with or not reproducible."""


class LedgerError(NoisewiseError, RuntimeError):
    """A privacy ledger that is locked, damaged or in contradiction to its use."""


class DatasetError(NoisewiseError, RuntimeError):
    """A dataset that is unknown, missing or not what its checksum says."""


class MissingExtraError(NoisewiseError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""
