"""Questions as they arrive: plain values, of which nothing is believed before it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noisewise import checks
from noisewise.federated.calibration_question import GroupSumsQuestion
from noisewise.federated.domain import Domain
from noisewise.federated.protected import Protected
from noisewise.federated.questions import (
    EcdfQuestion,
    HistogramQuestion,
    Question,
    RocQuestion,
)

__all__ = ["question_from_dict"]


def question_from_dict(fields: Mapping[str, Any]) -> Question:
    """Return the question that ``to_dict`` described, checked like one made by hand."""
    kinds: dict[str, type[Any]] = {
        question.kind: question
        for question in (EcdfQuestion, RocQuestion, HistogramQuestion, GroupSumsQuestion)
    }
    values = dict(fields)
    kind = checks.choice("kind", values.pop("kind", None), kinds)
    unknown = set(values) - set(kinds[kind].__dataclass_fields__)
    if unknown:
        raise ValueError(f"a question of kind {kind!r} has no fields {sorted(unknown)}")
    if not isinstance(values.get("domain"), Mapping):
        raise ValueError("a question needs a domain")
    values["domain"] = Domain.from_dict(values["domain"])
    if "protects" in values:
        values["protects"] = Protected.from_dict(values["protects"])
    if "cuts" in values:
        values["cuts"] = tuple(checks.finite("cuts", cut) for cut in values["cuts"])
    try:
        question: Question = kinds[kind](**values)
    except TypeError as error:
        raise ValueError(f"not a question: {error}") from error
    return question
