"""The kernel: a bounded sum over units, charged first, noised once, promised in a statement.

:func:`release` is the one way in which anything that depends on private records leaves.
"""

from typing import TYPE_CHECKING, Any

from noisewise.release.account import (
    Account,
    LedgerAccount,
    MemoryAccount,
    NamedAccount,
    digest_of,
    other_ledger,
)
from noisewise.release.allocation import ALLOCATIONS as ALLOCATIONS, deviations as deviations
from noisewise.release.best import BestOf, Outcome
from noisewise.release.choice import ExponentialChoice, PermuteAndFlip
from noisewise.release.decimals import Coarse as Coarse, Decimals as Decimals
from noisewise.release.kernel import Release, received, release
from noisewise.release.noise import (
    FLOATING_POINT as FLOATING_POINT,
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
from noisewise.release.rank_choice import (
    RankChoice as RankChoice,
    Ranked as Ranked,
    RankLimit as RankLimit,
    spread_of as spread_of,
)
from noisewise.release.sealed import SealedAccount
from noisewise.release.several import Envelope, Once, Opened, Prepaid, together
from noisewise.release.shares import SharedBlock as SharedBlock, with_share as with_share
from noisewise.release.slots import NoiseSlots as NoiseSlots
from noisewise.release.steps import (
    LedgerSteps as LedgerSteps,
    MemorySteps as MemorySteps,
    Step as Step,
    Steps as Steps,
    promise_of as promise_of,
)
from noisewise.release.stream import (
    STREAM_UNIT as STREAM_UNIT,
    SegmentAccount as SegmentAccount,
    StreamAccount as StreamAccount,
)
from noisewise.release.units import (
    EACH_PARTY as EACH_PARTY,
    ONE_ROW,
    UNIT_NAME as UNIT_NAME,
    WEIGHT_GRAIN as WEIGHT_GRAIN,
    Contribution,
    PerUnit,
    Units,
    as_rows,
    as_units as as_units,
    bound_of as bound_of,
    chosen_among_all as chosen_among_all,
    name_of_unit,
    per_unit,
    rows_at_most as rows_at_most,
)
from noisewise.release.words import one_vocabulary as one_vocabulary

if TYPE_CHECKING:
    from noisewise.release.tensors import TensorNoise as TensorNoise

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


def __getattr__(name: str) -> Any:
    """Load torch only for whoever adds noise to tensors: a party that contributes needs none."""
    if name == "TensorNoise":
        from noisewise.release.tensors import TensorNoise

        return TensorNoise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
