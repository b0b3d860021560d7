"""A question as it travels: what servers must know of it, and nothing that costs twice.

How a curve is smoothed is decided after the noise and costs nothing, so it is left out on the
way: two analysts who smooth differently ask for the same release.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.domain import Domain
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.study import Study
from noisewise.federated.noise import SharedMechanism, SharedNoise
from noisewise.federated.questions import (
    EcdfQuestion,
    HistogramQuestion,
    Question,
    RocQuestion,
)
from noisewise.federated.reading_questions import question_from_dict
from noisewise.privacy import Event

__all__ = ["Measurement", "curve_domain", "domains_of"]


def curve_domain(study: Study, curve: str) -> Domain:
    """Return the cells that a curve of a study is counted on."""
    if curve == "roc":
        return Domain(study.lower, study.upper, study.bins, labelled=True, closed="below")
    if curve == "histogram":
        return Domain(study.lower, study.upper, study.bins, closed="below")
    labelled = "hosmer-lemeshow" in study.curves
    return Domain(study.lower, study.upper, study.bins, labelled=labelled, closed="above")


def domains_of(study: Study) -> tuple[Domain, ...]:
    """Return the domains of a study, each once, in the order in which shares hold them."""
    found = {(domain := curve_domain(study, curve)).digest: domain for curve in study.curves}
    return tuple(found.values())


@dataclass(frozen=True)
class Measurement:
    """One question to the servers of one study.

    Parameters
    ----------
    study : Study
    question : Question
        As it travels; make one with :meth:`of` or :meth:`decode`.
    """

    study: Study
    question: Question

    @classmethod
    def of(cls, study: Study, question: Question) -> Measurement:
        """Take a question as the analyst asks it."""
        if isinstance(question, (EcdfQuestion, RocQuestion)):
            question = replace(question, smooth="auto")
        if isinstance(question, HistogramQuestion):
            question = replace(question, consistent=True)
        # The same question in other words (1 or 1.0) must not be paid for twice.
        question = replace(question, epsilon=float(question.epsilon), delta=float(question.delta))
        measurement = cls(study, question)
        measurement.check()
        return measurement

    @classmethod
    def decode(cls, study: Study, fields: Any) -> Measurement:
        """Take a question as it arrived.

        Raises
        ------
        RefusedError
            If it is malformed or not one of this study.
        """
        try:
            if not isinstance(fields, dict):
                raise TypeError("not a question")
            measurement = cls.of(study, question_from_dict(fields))
            if json.loads(measurement.encoded) != fields:
                raise ValueError("not the form in which questions travel")
            # Plans the noise, which fails for settings that cannot be met.
            measurement.mechanism.noise  # noqa: B018
        except RefusedError:
            raise
        except Exception as error:  # whatever a stranger's question breaks, it is no question
            raise RefusedError(f"not a question: {error}", 400, "bad-question") from error
        return measurement

    def check(self) -> None:
        """Refuse a question about other cells or under another relation."""
        if self.question.domain.digest not in {d.digest for d in domains_of(self.study)}:
            raise RefusedError("this study has no such cells", 422, "other-domain")
        if self.question.relation != self.study.relation:
            raise RefusedError(
                f"this study counts under {self.study.relation}", 422, "other-relation"
            )
        if self.question.protects != self.study.protects:
            raise RefusedError(
                f"this study protects {self.study.protects.name}, and its noise is made for that",
                422,
                "other-unit",
            )

    @cached_property
    def encoded(self) -> bytes:
        """Canonical bytes."""
        return json.dumps(self.question.to_dict(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.encoded).hexdigest()

    @cached_property
    def mechanism(self) -> SharedMechanism:
        """Noise from every server, of which one full share survives any collusion of the others."""
        servers = len(self.study.servers)
        return SharedNoise(contributors=servers, honest=1).apply(self.question.planned)

    @property
    def event(self) -> Event:
        """What a server charges for its own noise."""
        return self.mechanism.event

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the linear map and of the noise.

        The best tree is searched for with floating-point numbers; should two machines find
        different ones, their shares do not add up to anything, and this tells.
        """
        cells = self.question.domain.cells
        probe = np.random.default_rng(0).integers(0, 1 << 62, cells)
        state = hashlib.sha256(self.measure(probe).astype("<i8").tobytes())
        noise = [(b.kind, str(b.scale), b.size) for b in self.mechanism.noise]
        state.update(repr((self.mechanism.change, noise)).encode())
        return state.hexdigest()

    def measure(self, histogram: IntArray) -> IntArray:
        """Return this server's share of the sums from its share of the histogram."""
        return self.question.measure(histogram)
