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
from noisewise.release.allocation import ALLOCATIONS, deviations
from noisewise.release.best import BestOf, Outcome
from noisewise.release.choice import ExponentialChoice, PermuteAndFlip
from noisewise.release.decimals import Coarse, Decimals
from noisewise.release.kernel import Release, received, release
from noisewise.release.noise import (
    FLOATING_POINT,
    Additive,
    Block,
    GaussianNoise,
    GridNoise,
    IntegerNoise,
    Noise,
)
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
from noisewise.release.rank_choice import RankChoice, Ranked, RankLimit, spread_of
from noisewise.release.sealed import SealedAccount
from noisewise.release.several import Envelope, Once, Opened, Prepaid, together
from noisewise.release.shares import SharedBlock, with_share
from noisewise.release.slots import NoiseSlots
from noisewise.release.steps import LedgerSteps, MemorySteps, Step, Steps, promise_of
from noisewise.release.stream import STREAM_UNIT, SegmentAccount, StreamAccount
from noisewise.release.tensors import TensorNoise
from noisewise.release.units import (
    EACH_PARTY,
    ONE_ROW,
    UNIT_NAME,
    WEIGHT_GRAIN,
    Contribution,
    PerUnit,
    Units,
    as_rows,
    as_units,
    bound_of,
    chosen_among_all,
    name_of_unit,
    per_unit,
    rows_at_most,
)
from noisewise.release.words import one_vocabulary

__all__ = [
    "ALLOCATIONS",
    "EACH_PARTY",
    "FLOATING_POINT",
    "ONE_ROW",
    "STREAM_UNIT",
    "UNIT_NAME",
    "WEIGHT_GRAIN",
    "Account",
    "Additive",
    "Aggregator",
    "Agreed",
    "Approval",
    "BestOf",
    "Block",
    "Coarse",
    "Contribution",
    "Decimals",
    "Envelope",
    "ExponentialChoice",
    "GaussianNoise",
    "GridNoise",
    "IntegerNoise",
    "LedgerAccount",
    "LedgerOrPath",
    "LedgerSteps",
    "MemoryAccount",
    "MemorySteps",
    "NamedAccount",
    "Noise",
    "NoiseSlots",
    "Once",
    "Opened",
    "Outcome",
    "Parties",
    "PerUnit",
    "PermuteAndFlip",
    "Prepaid",
    "Promise",
    "Query",
    "RankChoice",
    "RankLimit",
    "Ranked",
    "Release",
    "SealedAccount",
    "SegmentAccount",
    "SharedBlock",
    "StatedAggregator",
    "StatedArray",
    "StatedNumber",
    "StatedTuple",
    "Step",
    "Steps",
    "StreamAccount",
    "Summed",
    "TensorNoise",
    "ThisProcess",
    "Units",
    "as_rows",
    "as_units",
    "bound_of",
    "chosen_among_all",
    "compose",
    "deviations",
    "digest_of",
    "name_of_unit",
    "one_vocabulary",
    "open_account",
    "open_ledger",
    "other_ledger",
    "parties_of",
    "per_unit",
    "promise_of",
    "received",
    "release",
    "rows_at_most",
    "spread_of",
    "together",
    "with_share",
]
