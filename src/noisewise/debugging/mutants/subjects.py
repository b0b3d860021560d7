"""What is put before the tools: a training with its model, and what is declared about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from noisewise.debugging.mutants.cases import Case, cases
from noisewise.debugging.mutants.programs import PROGRAMS, Program
from noisewise.debugging.mutants.training import Training
from noisewise.debugging.mutants.variants import Variant

__all__ = ["AnyTraining", "Subject", "with_bug", "with_variant"]

AnyTraining: TypeAlias = Training | Program


@dataclass(frozen=True)
class Subject:
    """One training, its model, and arguments of `check` that describe it."""

    train: AnyTraining
    case: Case
    declared: Mapping[str, Any] = field(default_factory=dict)


def with_bug(bug: str) -> Subject:
    """Return the training with this bug: a whole program, or the one program on the MLP."""
    if bug in PROGRAMS:
        whole = PROGRAMS[bug]
        return Subject(whole, whole.case, whole.declared)
    case = cases()["MLP"]
    return Subject(Training(case.model, case.loss, bug=bug), case)


def with_variant(variant: Variant, model: str = "MLP") -> Subject:
    """Return a correct training, on this model unless the variant is tied to one."""
    if variant.name in PROGRAMS:
        whole = PROGRAMS[variant.name]
        return Subject(whole, whole.case, whole.declared)
    case = cases()[variant.case or model]
    return Subject(Training(case.model, case.loss, **variant.settings), case, variant.declared)
