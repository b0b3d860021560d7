"""Errors that every part of noisewise raises.

All of them derive from :class:`NoisewiseError`, so that one ``except`` catches
what the library refuses. Each says what was refused, where, why, and what to do.
"""

from __future__ import annotations

__all__ = [
    "BudgetExceededError",
    "ChargeConflictError",
    "DatasetError",
    "LedgerError",
    "LedgerRolledBackError",
    "MissingExtraError",
    "NoisewiseError",
    "RelationError",
    "SignatureError",
    "StateError",
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


class SignatureError(NoisewiseError, ValueError):
    """A signature that is none, belongs to something else, or is by nobody who counts."""


class LedgerError(NoisewiseError, RuntimeError):
    """A privacy ledger that is locked, damaged or in contradiction to its use."""


class LedgerRolledBackError(LedgerError):
    """A ledger that does not contain what was seen in it before."""


class ChargeConflictError(LedgerError):
    """A key that already stands for another charge in a ledger."""


class StateError(NoisewiseError, RuntimeError):
    """A file or folder of state that is not, and cannot be made, its owner's alone."""


class DatasetError(NoisewiseError, RuntimeError):
    """A dataset that is unknown, missing or not what its checksum says."""


class MissingExtraError(NoisewiseError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""
