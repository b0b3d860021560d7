"""The registry of gradient rules: what people are told of each, and the words for them.

A new rule is one class with what :class:`~noisewise.gradients.Estimator` asks, entered here.
Plans are written and read with the names of the registry, the scikit-learn estimators and the
command take its words, the table of ``docs/gradients.md`` is made from it, and
``tests/common/test_common_gradients.py`` holds every rule to its promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from noisewise import checks

__all__ = ["GRADIENT_RULES", "About", "register", "rule_named", "rule_words"]

Kind = TypeVar("Kind", bound=type[Any])


@dataclass(frozen=True)
class About:
    """What people are told of a gradient rule.

    Parameters
    ----------
    kind : type
        The rule itself.
    measured, factor, sensitivity, needs : str
        What is measured of a record, by which factor it counts, how far one record then moves a
        sum, and what a model must have.
    proof : str
        Where that is proven: page and anchor of the documentation.
    presets : mapping
        Words for instances, by the arguments that make them.
    """

    kind: type[Any]
    measured: str
    factor: str
    sensitivity: str
    needs: str
    proof: str
    presets: Mapping[str, Mapping[str, Any]]


#: Every gradient rule by the name of its class.
GRADIENT_RULES: dict[str, About] = {}


def register(
    *, presets: Mapping[str, Mapping[str, Any]] | None = None, **told: str
) -> Callable[[Kind], Kind]:
    """Enter a rule into the registry, with what :class:`About` holds."""

    def enter(kind: Kind) -> Kind:
        taken = [word for word in presets or {} if word in rule_words()]
        if kind.__name__ in GRADIENT_RULES or taken:
            raise ValueError(f"there is a gradient rule called {[kind.__name__, *taken]}")
        GRADIENT_RULES[kind.__name__] = About(kind=kind, presets=presets or {}, **told)
        return kind

    return enter


def rule_words() -> dict[str, type[Any]]:
    """Every word for a rule, and the rule that it stands for."""
    return {word: about.kind for about in GRADIENT_RULES.values() for word in about.presets}


def rule_named(word: str) -> Any:
    """Return the rule that a word stands for."""
    kind = rule_words()[checks.choice("gradients", word, rule_words())]
    return kind(**GRADIENT_RULES[kind.__name__].presets[word])
