"""The kernel: a bounded sum over units, charged first, noised once, promised in a statement.

:func:`release` is the one way in which anything that depends on private records leaves.
"""

from noisewise.release.account import (
    Account,
    LedgerAccount,
    MemoryAccount,
    NamedAccount,
    digest_of,
    other_ledger,
)
from noisewise.release.best import BestOf, Outcome
from noisewise.release.choice import ExponentialChoice, PermuteAndFlip
from noisewise.release.kernel import Release, received, release
from noisewise.release.noise import Additive, Block, GaussianNoise, GridNoise, IntegerNoise, Noise
from noisewise.release.opening import LedgerOrPath, open_account, open_ledger
from noisewise.release.parties import (
    Aggregator,
    Agreed,
    Approval,
    Parties,
    StatedAggregator,
    Summed,
    ThisProcess,
    parties_of,
)
from noisewise.release.promise import Promise, StatedArray, StatedNumber, StatedTuple, compose
from noisewise.release.query import Query
from noisewise.release.sealed import SealedAccount
from noisewise.release.several import Envelope, Once, Opened, Prepaid, together
from noisewise.release.units import (
    ONE_ROW,
    Contribution,
    PerUnit,
    Units,
    as_rows,
    name_of_unit,
    per_unit,
)

__all__ = [
    "ONE_ROW",
    "Account",
    "Additive",
    "Aggregator",
    "Agreed",
    "Approval",
    "BestOf",
    "Block",
    "Contribution",
    "Envelope",
    "ExponentialChoice",
    "GaussianNoise",
    "GridNoise",
    "IntegerNoise",
    "LedgerAccount",
    "LedgerOrPath",
    "MemoryAccount",
    "NamedAccount",
    "Noise",
    "Once",
    "Opened",
    "Outcome",
    "Parties",
    "PerUnit",
    "PermuteAndFlip",
    "Prepaid",
    "Promise",
    "Query",
    "Release",
    "SealedAccount",
    "StatedAggregator",
    "StatedArray",
    "StatedNumber",
    "StatedTuple",
    "Summed",
    "ThisProcess",
    "Units",
    "as_rows",
    "compose",
    "digest_of",
    "name_of_unit",
    "open_account",
    "open_ledger",
    "other_ledger",
    "parties_of",
    "per_unit",
    "received",
    "release",
    "together",
]
