"""What an analyst may ask: which cells, which noise, and how noisy sums become a curve.

A question is public and serialises to JSON, so that parties, servers and analyst agree on it
word for word. All of them are sums over records (U-statistics of order 1, Section 6.2.1 of
Barczewski 2025), and all but one are integer linear maps of the histogram over the cells, so
they can be asked of secret shares of that histogram. Every step after the noisy sums is the code
that runs on one machine; with the same sums the results are the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf import (
    PUBLIC_GRID,
    SMOOTHINGS,
    Budget,
    Mechanism,
    PrivateECDF,
    PrivateHistogram,
    PrivateROC,
    TwoClassCounts,
    check_smoothing,
    curve_mechanism,
    smooth_both,
    smooth_counts,
    two_curve_mechanism,
)
from noisewise.ecdf.mechanisms import FloatArray, IntArray
from noisewise.federated.domain import Domain, Records
from noisewise.federated.measuring import check_plausible, measure_in_field, measure_modulo, reach
from noisewise.federated.noise import SharedMechanism, SharedNoise
from noisewise.federated.protected import EACH_RECORD, Protected
from noisewise.federated.results import Sums
from noisewise.privacy import ADD_REMOVE, Relation
from noisewise.release import Promise, Query, received

__all__ = [
    "EcdfQuestion",
    "HistogramQuestion",
    "Question",
    "RocQuestion",
    "with_noise",
]


@dataclass(frozen=True)
class Question(ABC):
    """One private release across parties.

    Parameters
    ----------
    domain : Domain
        Where records are placed.
    epsilon, delta : float
        What the release may cost.
    relation : Relation
        Which datasets are neighbours.
    protects : Protected
        The unit: one record, all rows of a patient, a whole party or device.
    """

    kind: ClassVar[str]
    public: ClassVar[str] = PUBLIC_GRID
    domain: Domain
    epsilon: float
    delta: float = 0.0
    relation: Relation = ADD_REMOVE
    protects: Protected = field(default=EACH_RECORD, kw_only=True)

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        object.__setattr__(self, "relation", Relation.of(self.relation))
        self.protects.check(self.relation)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse what cannot be asked, before anything is spent."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What is asked, in words for the statement."""

    @property
    @abstractmethod
    def planned(self) -> Mechanism:
        """The mechanism with the noise that must survive; aggregators may add more."""

    def statistic(self, records: Records) -> IntArray:
        """Return the sums of some records: what a party computes from its own."""
        self.protects.require(records)
        return self._statistic(records)

    @abstractmethod
    def _statistic(self, records: Records) -> IntArray:
        """Return the sums of rows of which no unit has too many."""

    @abstractmethod
    def measure(self, histogram: IntArray) -> IntArray:
        """Return the sums from a histogram over the cells, modulo 2^64: linear in it."""

    @abstractmethod
    def answer(self, sums: Sums) -> Any:
        """Return the curve."""

    @property
    def budget(self) -> Budget:
        """What the release may cost."""
        return Budget(self.epsilon, self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        written: dict[str, Any] = {
            "domain": self.domain.to_dict(),
            "relation": self.relation.name,
            "protects": self.protects.to_dict(),
        }
        fields = {"kind": self.kind, **asdict(self), **written}
        if self.protects == EACH_RECORD:
            del fields["protects"]  # as questions were before there were units
        return fields

    @property
    def digest(self) -> bytes:
        """32 bytes that two parties can compare to know that they mean the same question."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"noisewise/question/2/" + text.encode()).digest()

    @property
    def query(self) -> Query:
        """The sums of a party's own records, and how far one record moves them."""
        return self._asking(self.statistic)

    @property
    def query_of_cells(self) -> Query:
        """The same from a histogram over the cells, or from a share of it."""
        return self._asking(self.measure)

    @property
    def query_in_field(self) -> Query:
        """The same from a share of the histogram whose elements lie in a field."""
        return self._asking(lambda share: measure_in_field(self.measure, share, self.reach))

    @property
    def reach(self) -> int:
        """What one record adds to a sum, at most."""
        return reach(self.planned.strategy)

    def _asking(self, measure: Callable[[Any], IntArray]) -> Query:
        most = self.protects.contribution
        return Query.of(
            measure,
            self.planned.sensitivity,
            self.what,
            unit=most.unit,
            assumptions=(self.public, *most.sentences),
            unit_rows=most.unit_rows,
        )

    def _promise(self, sums: Sums) -> Promise:
        """Return what is promised: what was asked, its noise, and the protocol."""
        return received(
            self.query,
            sums.mechanism,
            delta=self.delta,
            randomness=sums.randomness,
            assumptions=sums.threat.sentences,
        )

    def _expected(self, sums: Sums) -> Mechanism:
        """Return the noise that smoothing reckons with: all that was added.

        In a test without noise, that of one machine, so that the same bits come out.
        """
        return self.planned if sums.threat.noiseless else sums.mechanism

    def _records(self, sums: Sums) -> int:
        """Return the public number of records, or 0 if it is private; check the sums."""
        check_plausible(sums.noisy, sums.mechanism, self.reach, sums.records)
        if not self.relation.count_is_public:
            return 0
        if not sums.records:
            raise ValueError(
                "there are no records: no curve is defined. If their number is private, use "
                "relation='add-remove'."
            )
        return sums.records


@dataclass(frozen=True)
class EcdfQuestion(Question):
    """Ask for an empirical distribution function (and so for quantiles, means, ...).

    Parameters
    ----------
    domain : Domain
        Closed above. If it is labelled, both labels are counted together.
    epsilon, delta, relation, mechanism, smooth, objective
        See :func:`noisewise.ecdf.dp_ecdf`.
    """

    kind: ClassVar[str] = "ecdf"
    mechanism: str = "auto"
    smooth: str | None = "auto"
    objective: Literal["mean", "max"] = "mean"

    @property
    def what(self) -> str:
        """What is asked, in words."""
        return f"empirical distribution function on {self.domain.bins} thresholds"

    def _check(self) -> None:
        _require_closed(self.domain, "above")
        if self.smooth is not None:
            checks.choice("smooth", self.smooth, SMOOTHINGS)

    @cached_property
    def planned(self) -> Mechanism:
        """The mechanism that one machine would use."""
        planned = curve_mechanism(
            self.domain.bins,
            self.relation,
            self.budget,
            self.protects.contribution,
            mechanism=self.mechanism,
            objective=self.objective,
        )
        check_smoothing(planned, self.smooth)
        return planned

    def _statistic(self, records: Records) -> IntArray:
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, _merge_labels(self.domain, histogram))

    def answer(self, sums: Sums) -> PrivateECDF:
        """Return the curve."""
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(self._records(sums)))
        return PrivateECDF(
            grid=self.domain.grid,
            noisy_counts=noisy,
            counts=smooth_counts(noisy, self._expected(sums), self.smooth),
            mechanism=sums.mechanism,
            budget=self.budget,
            relation=self.relation,
            smoothing="none" if self.smooth is None else self.smooth,
            promise=self._promise(sums),
        )


@dataclass(frozen=True)
class RocQuestion(Question):
    """Ask for a ROC curve (and so for its area and for precision and recall).

    Parameters
    ----------
    domain : Domain
        Labelled and closed below.
    epsilon, delta, relation, mechanism, smooth, objective
        See :func:`noisewise.ecdf.private_roc`.
    """

    kind: ClassVar[str] = "roc"
    mechanism: str = "auto"
    smooth: str | None = "auto"
    objective: Literal["mean", "max"] = "mean"

    @property
    def what(self) -> str:
        """What is asked, in words."""
        return f"ROC curve with private class sizes on {self.domain.bins} thresholds"

    def _check(self) -> None:
        _require_closed(self.domain, "below")
        if not self.domain.labelled:
            raise ValueError("a ROC curve needs a labelled domain")
        if self.smooth is not None:
            checks.choice("smooth", self.smooth, SMOOTHINGS)

    @cached_property
    def planned(self) -> Mechanism:
        """The joint mechanism of both classes."""
        planned = two_curve_mechanism(
            self.domain.bins,
            self.relation,
            self.budget,
            mechanism=self.mechanism,
            objective=self.objective,
            contribution=self.protects.contribution,
        )
        if self.smooth == "l1" and planned.name != "thesis":
            raise ValueError("smooth='l1' belongs to mechanism='thesis'; use smooth='l2' or 'auto'")
        return planned

    def _statistic(self, records: Records) -> IntArray:
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, histogram)

    def answer(self, sums: Sums) -> PrivateROC:
        """Return the curve."""
        records = self._records(sums)
        public = records if self.relation.count_is_public else None
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(records)).reshape(2, -1)
        return PrivateROC(
            TwoClassCounts(
                grid=self.domain.grid,
                noisy=noisy,
                counts=smooth_both(noisy, self._expected(sums), self.smooth, public),
                mechanism=sums.mechanism,
                budget=self.budget,
                relation=self.relation,
                smoothing="none" if self.smooth is None else self.smooth,
                records=public,
                promise=self._promise(sums),
            )
        )


@dataclass(frozen=True)
class HistogramQuestion(Question):
    """Ask for a histogram.

    Parameters
    ----------
    domain : Domain
        Closed below. If it is labelled, both labels are counted together.
    epsilon, delta, relation, noise, consistent, mechanism
        See :func:`noisewise.ecdf.private_histogram`.
    """

    kind: ClassVar[str] = "histogram"
    public: ClassVar[str] = "bins were chosen without looking at the data"
    noise: Literal["cumulative", "independent"] = "cumulative"
    consistent: bool = True
    mechanism: str = "auto"

    @property
    def what(self) -> str:
        """What is asked, in words."""
        return f"histogram of {self.domain.bins} bins"

    def _check(self) -> None:
        _require_closed(self.domain, "below")
        checks.choice("noise", self.noise, ("cumulative", "independent"))

    @cached_property
    def planned(self) -> Mechanism:
        """The mechanism that one machine would use."""
        return curve_mechanism(
            self.domain.bins,
            self.relation,
            self.budget,
            self.protects.contribution,
            mechanism="histogram" if self.noise == "independent" else self.mechanism,
            objective="mean",
        )

    def _statistic(self, records: Records) -> IntArray:
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, _merge_labels(self.domain, histogram))

    def answer(self, sums: Sums) -> PrivateHistogram:
        """Return the histogram."""
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(self._records(sums)))
        curve = smooth_counts(noisy, self._expected(sums), "auto" if self.consistent else None)
        edges: FloatArray = -self.domain.grid.edges[::-1]
        return PrivateHistogram(
            edges=edges,
            counts=np.diff(curve, prepend=0.0)[::-1],
            noisy_cumulative=noisy,
            mechanism=sums.mechanism,
            budget=self.budget,
            relation=self.relation,
            promise=self._promise(sums),
        )


def with_noise(question: Question, noise: SharedNoise) -> SharedMechanism:
    """Return a question's mechanism with shared noise, refused now if it has no accounting."""
    return noise.apply(question.planned)


def _require_closed(domain: Domain, side: str) -> None:
    if domain.closed != side:
        raise ValueError(
            f"this question needs cells that are closed {side}, got closed={domain.closed!r}: "
            "values on a threshold would be counted on its other side"
        )


def _merge_labels(domain: Domain, histogram: IntArray) -> IntArray:
    if not domain.labelled:
        return histogram
    merged: IntArray = histogram[: domain.bins] + histogram[domain.bins :]
    return merged
