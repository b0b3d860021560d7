"""Curves across parties: those of :mod:`noisewise.ecdf`, with the protocol in their statement."""

from __future__ import annotations

from dataclasses import dataclass, field

from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.group_sums import GroupSums
from noisewise.ecdf.histogram_release import PrivateHistogram
from noisewise.ecdf.hosmer_lemeshow import HosmerLemeshow
from noisewise.ecdf.mechanisms.protocol import IntArray, Mechanism
from noisewise.ecdf.promise import compose
from noisewise.ecdf.roc import PrivateROC
from noisewise.ecdf.two_class import TwoClassCounts
from noisewise.federated.threat import ThreatModel
from noisewise.privacy.statement import Statement

__all__ = [
    "FederatedECDF",
    "FederatedHistogram",
    "FederatedHosmerLemeshow",
    "FederatedROC",
    "FederatedTwoClassCounts",
    "Sums",
]


@dataclass(frozen=True, eq=False)
class Sums:
    """Noisy sums as an aggregator hands them to the analyst.

    Parameters
    ----------
    noisy : array of int64
        The sums with all noise.
    mechanism : Mechanism
        With the noise that was really added (variances) and that survives (guarantee).
    threat : ThreatModel
        The protocol.
    randomness : str
        Where the noise came from.
    records : int or None
        Their public number; None if it is private.
    """

    noisy: IntArray
    mechanism: Mechanism
    threat: ThreatModel
    randomness: str
    records: int | None = None


@dataclass(frozen=True, eq=False)
class FederatedECDF(PrivateECDF):
    """An empirical distribution function of several parties' records.

    Everything of :class:`noisewise.ecdf.PrivateECDF`; the statement names the protocol.
    """

    threat: ThreatModel = field(kw_only=True)

    def statement(self, delta: float | None = None) -> Statement:
        """Return what was promised, and under which protocol."""
        return self.threat.qualify(super().statement(delta))


@dataclass(frozen=True, eq=False)
class FederatedHistogram(PrivateHistogram):
    """A histogram of several parties' records."""

    threat: ThreatModel = field(kw_only=True)

    def statement(self) -> Statement:
        """Return what was promised, and under which protocol."""
        return self.threat.qualify(super().statement())


@dataclass(frozen=True, eq=False)
class FederatedTwoClassCounts(TwoClassCounts):
    """Counts by class of several parties' records."""

    threat: ThreatModel = field(kw_only=True)

    def statement(self, what: str) -> Statement:
        """Return what was promised, and under which protocol."""
        return self.threat.qualify(super().statement(what))


@dataclass(frozen=True, eq=False)
class FederatedROC(PrivateROC):
    """A ROC curve of several parties' records; `release` carries the protocol."""


@dataclass(frozen=True, eq=False)
class FederatedHosmerLemeshow:
    """A Hosmer-Lemeshow test of several parties' records.

    Parameters
    ----------
    test : HosmerLemeshow
        Statistic, p-values, groups.
    curve : FederatedECDF or None
        The private curve behind the cut points.
    sums : GroupSums
        The private sums over the groups.
    said : tuple of str
        Assumptions of the sums.
    threat : ThreatModel
    """

    test: HosmerLemeshow
    curve: FederatedECDF | None
    sums: GroupSums
    said: tuple[str, ...]
    threat: ThreatModel

    @property
    def statistic(self) -> float:
        """H of the noisy numbers."""
        return self.test.statistic

    @property
    def p_value(self) -> float:
        """Probability of such a statistic if the predictions were right, noise included."""
        return self.test.p_value

    @property
    def noise_aware_p_value(self) -> float:
        """The same with little weight on groups that the noise drowns."""
        return self.test.noise_aware_p_value

    def statement(self) -> Statement:
        """Return what was promised for both releases, and under which protocol."""
        parts = [] if self.curve is None else [self.curve.statement()]
        sums = self.threat.qualify(self.sums.statement("Hosmer-Lemeshow test", self.said))
        return compose([*parts, sums], self.test.budget.delta)
