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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.estimate import SMOOTHINGS, _check_smoothing, smooth_counts
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray, Mechanism
from noisewise.ecdf.two_class import smooth_both, two_curve_mechanism
from noisewise.federated.domain import Domain, Records
from noisewise.federated.measuring import check_plausible, measure_modulo, reach
from noisewise.federated.noise import SharedMechanism, SharedNoise
from noisewise.federated.results import (
    FederatedECDF,
    FederatedHistogram,
    FederatedROC,
    FederatedTwoClassCounts,
    Sums,
)
from noisewise.privacy import _validate
from noisewise.privacy.relation import Relation

__all__ = [
    "EcdfQuestion",
    "HistogramQuestion",
    "Question",
    "RocQuestion",
    "question_from_dict",
    "with_noise",
]


class Question(Protocol):
    """One private release across parties."""

    @property
    def domain(self) -> Domain:
        """Where records are placed."""
        ...

    @property
    def relation(self) -> Relation:
        """Which datasets are neighbours."""
        ...

    @property
    def planned(self) -> Mechanism:
        """The mechanism with the noise that must survive; aggregators may add more."""
        ...

    def statistic(self, records: Records) -> IntArray:
        """Return the sums of some records: what a party computes from its own."""
        ...

    def measure(self, histogram: IntArray) -> IntArray:
        """Return the sums from a histogram over the cells, modulo 2^64: linear in it."""
        ...

    def answer(self, sums: Sums) -> Any:
        """Return the curve."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ...


@dataclass(frozen=True)
class _Asked:
    """What all questions share."""

    kind: ClassVar[str]
    domain: Domain
    epsilon: float
    delta: float = 0.0
    neighbors: str = "replace"

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        Relation.of(self.neighbors)
        self._check()

    def _check(self) -> None:
        """Refuse what cannot be asked, before anything is spent."""

    @property
    def budget(self) -> Budget:
        """What the release may cost."""
        return Budget(self.epsilon, self.delta)

    @property
    def relation(self) -> Relation:
        """Which datasets are neighbours."""
        return Relation.of(self.neighbors)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"kind": self.kind, **asdict(self), "domain": self.domain.to_dict()}

    @property
    def digest(self) -> bytes:
        """32 bytes that two parties can compare to know that they mean the same question."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"noisewise/question/1/" + text.encode()).digest()

    def _expected(self, sums: Sums) -> Mechanism:
        """Return the noise that smoothing reckons with: all that was added.

        In a test without noise, that of one machine, so that the same bits come out.
        """
        planned: Mechanism = self.planned  # type: ignore[attr-defined]
        return planned if sums.threat.noiseless else sums.mechanism

    def _records(self, sums: Sums) -> int:
        """Return the public number of records, or 0 if it is private; check the sums."""
        check_plausible(sums.noisy, sums.mechanism, reach(sums.mechanism.strategy), sums.records)
        if not self.relation.count_is_public:
            return 0
        if not sums.records:
            raise ValueError(
                "there are no records: no curve is defined. If their number is private, use "
                "neighbors='add-remove'."
            )
        return sums.records


@dataclass(frozen=True)
class EcdfQuestion(_Asked):
    """Ask for an empirical distribution function (and so for quantiles, means, ...).

    Parameters
    ----------
    domain : Domain
        Closed above. If it is labelled, both labels are counted together.
    epsilon, delta, neighbors, mechanism, smooth, objective
        See :func:`noisewise.ecdf.dp_ecdf`.
    """

    kind: ClassVar[str] = "ecdf"
    mechanism: str = "auto"
    smooth: str | None = "auto"
    objective: Literal["mean", "max"] = "mean"

    def _check(self) -> None:
        _require_closed(self.domain, "above")
        if self.smooth is not None:
            _validate.choice("smooth", self.smooth, SMOOTHINGS)

    @cached_property
    def planned(self) -> Mechanism:
        """The mechanism that one machine would use."""
        planned = plan(
            self.domain.bins,
            self.relation,
            self.budget,
            mechanism=self.mechanism,
            objective=self.objective,
        )
        _check_smoothing(planned, self.smooth)
        return planned

    def statistic(self, records: Records) -> IntArray:
        """Measurements of some records."""
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, _merge_labels(self.domain, histogram))

    def answer(self, sums: Sums) -> FederatedECDF:
        """Return the curve."""
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(self._records(sums)))
        return FederatedECDF(
            grid=self.domain.grid,
            noisy_counts=noisy,
            counts=smooth_counts(noisy, self._expected(sums), self.smooth),
            mechanism=sums.mechanism,
            budget=self.budget,
            relation=self.relation,
            smoothing="none" if self.smooth is None else self.smooth,
            randomness=sums.randomness,
            threat=sums.threat,
        )


@dataclass(frozen=True)
class RocQuestion(_Asked):
    """Ask for a ROC curve (and so for its area and for precision and recall).

    Parameters
    ----------
    domain : Domain
        Labelled and closed below.
    epsilon, delta, neighbors, mechanism, smooth, objective
        See :func:`noisewise.ecdf.private_roc`.
    """

    kind: ClassVar[str] = "roc"
    mechanism: str = "auto"
    smooth: str | None = "auto"
    objective: Literal["mean", "max"] = "mean"

    def _check(self) -> None:
        _require_closed(self.domain, "below")
        if not self.domain.labelled:
            raise ValueError("a ROC curve needs a labelled domain")
        if self.smooth is not None:
            _validate.choice("smooth", self.smooth, SMOOTHINGS)

    @cached_property
    def planned(self) -> Mechanism:
        """The joint mechanism of both classes."""
        planned = two_curve_mechanism(
            self.domain.bins,
            self.relation,
            self.budget,
            mechanism=self.mechanism,
            objective=self.objective,
        )
        if self.smooth == "l1" and planned.name != "thesis":
            raise ValueError("smooth='l1' belongs to mechanism='thesis'; use smooth='l2' or 'auto'")
        return planned

    def statistic(self, records: Records) -> IntArray:
        """Measurements of some records."""
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, histogram)

    def answer(self, sums: Sums) -> FederatedROC:
        """Return the curve."""
        records = self._records(sums)
        public = records if self.relation.count_is_public else None
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(records)).reshape(2, -1)
        return FederatedROC(
            FederatedTwoClassCounts(
                grid=self.domain.grid,
                noisy=noisy,
                counts=smooth_both(noisy, self._expected(sums), self.smooth, public),
                mechanism=sums.mechanism,
                budget=self.budget,
                relation=self.relation,
                smoothing="none" if self.smooth is None else self.smooth,
                randomness=sums.randomness,
                records=public,
                threat=sums.threat,
            )
        )


@dataclass(frozen=True)
class HistogramQuestion(_Asked):
    """Ask for a histogram.

    Parameters
    ----------
    domain : Domain
        Closed below. If it is labelled, both labels are counted together.
    epsilon, delta, neighbors, noise, consistent, mechanism
        See :func:`noisewise.ecdf.private_histogram`.
    """

    kind: ClassVar[str] = "histogram"
    noise: Literal["cumulative", "independent"] = "cumulative"
    consistent: bool = True
    mechanism: str = "auto"

    def _check(self) -> None:
        _require_closed(self.domain, "below")
        _validate.choice("noise", self.noise, ("cumulative", "independent"))

    @cached_property
    def planned(self) -> Mechanism:
        """The mechanism that one machine would use."""
        return plan(
            self.domain.bins,
            self.relation,
            self.budget,
            mechanism="histogram" if self.noise == "independent" else self.mechanism,
            objective="mean",
        )

    def statistic(self, records: Records) -> IntArray:
        """Measurements of some records."""
        return self.measure(self.domain.count(records))

    def measure(self, histogram: IntArray) -> IntArray:
        """Measurements of a histogram over the cells, modulo 2^64."""
        return measure_modulo(self.planned.strategy, _merge_labels(self.domain, histogram))

    def answer(self, sums: Sums) -> FederatedHistogram:
        """Return the histogram."""
        noisy = sums.mechanism.strategy.reconstruct(sums.noisy, float(self._records(sums)))
        curve = smooth_counts(noisy, self._expected(sums), "auto" if self.consistent else None)
        edges: FloatArray = -self.domain.grid.edges[::-1]
        return FederatedHistogram(
            edges=edges,
            counts=np.diff(curve, prepend=0.0)[::-1],
            noisy_cumulative=noisy,
            mechanism=sums.mechanism,
            budget=self.budget,
            relation=self.relation,
            randomness=sums.randomness,
            threat=sums.threat,
        )


def with_noise(question: Question, noise: SharedNoise) -> SharedMechanism:
    """Return a question's mechanism with shared noise, refused now if it has no accounting."""
    return noise.apply(question.planned, getattr(question, "budget", None))


def question_from_dict(fields: Mapping[str, Any]) -> Question:
    """Return the question that ``to_dict`` described, checked like one made by hand."""
    from noisewise.federated.calibration_question import GroupSumsQuestion

    kinds: dict[str, type[Any]] = {
        question.kind: question
        for question in (EcdfQuestion, RocQuestion, HistogramQuestion, GroupSumsQuestion)
    }
    values = dict(fields)
    kind = _validate.choice("kind", values.pop("kind", None), kinds)
    unknown = set(values) - set(kinds[kind].__dataclass_fields__)
    if unknown:
        raise ValueError(f"a question of kind {kind!r} has no fields {sorted(unknown)}")
    if not isinstance(values.get("domain"), Mapping):
        raise ValueError("a question needs a domain")
    values["domain"] = Domain.from_dict(values["domain"])
    if "cuts" in values:
        values["cuts"] = tuple(_validate.finite("cuts", cut) for cut in values["cuts"])
    try:
        question: Question = kinds[kind](**values)
    except TypeError as error:
        raise ValueError(f"not a question: {error}") from error
    return question


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
