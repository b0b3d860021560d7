"""Estimators as plain values and back, so that a plan can be written down as JSON.

Only the rules of the registry, and combinations of them, are ever built again from text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from noisewise.gradients import GRADIENT_RULES, PerLayer, Schedule

__all__ = ["from_plain", "to_plain"]


def to_plain(value: Any) -> Any:
    """Return a number, text, container or estimator as JSON values."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        content = {
            item.name: to_plain(getattr(value, item.name))
            for item in dataclasses.fields(value)
            if item.init
        }
        return {"estimator": type(value).__name__, **content}
    if isinstance(value, Mapping):
        return {"mapping": [[str(key), to_plain(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    raise TypeError(
        f"a plan holds numbers, words and the estimators of noisewise.gradients, which can be "
        f"written as JSON, got {value!r}"
    )


def from_plain(value: Any) -> Any:
    """Return what :func:`to_plain` described; sequences become tuples."""
    if isinstance(value, list):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "mapping" in value:
        return {key: from_plain(item) for key, item in value["mapping"]}
    values = {key: from_plain(item) for key, item in value.items()}
    return _estimator(str(values.pop("estimator", "")))(**values)


def _estimator(name: str) -> type[Any]:
    for combination in (PerLayer, Schedule):
        if name == combination.__name__:
            return combination
    if name not in GRADIENT_RULES:
        raise ValueError(f"{name!r} is not an estimator of noisewise.gradients")
    return GRADIENT_RULES[name].kind
