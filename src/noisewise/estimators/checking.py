"""Settings of the private estimators, looked at before a record is."""

from __future__ import annotations

import os
from typing import Any

from noisewise import checks
from noisewise.estimators import tuning
from noisewise.estimators.encoding import resolve_schema
from noisewise.gradients import Estimator, rule_words
from noisewise.nn import PROJECTIONS
from noisewise.privacy import Ledger

__all__ = ["check_settings"]


def check_settings(estimator: Any) -> None:
    """Refuse settings that mean nothing."""
    checks.budget(estimator.epsilon)
    if estimator.delta != "auto":
        checks.fraction("delta", estimator.delta)
    checks.integer("steps", estimator.steps, minimum=1)
    checks.probability("sample_rate", estimator.sample_rate)
    if estimator.learning_rate != "auto":
        checks.positive("learning_rate", estimator.learning_rate)
    checks.positive("input_bound", estimator.input_bound)
    checks.positive("weight_limit", estimator.weight_limit)
    checks.choice("projection", estimator.projection, PROJECTIONS)
    if estimator.normalise is not None:
        checks.positive("normalise", estimator.normalise)
    resolve_schema(estimator.schema)
    if estimator.features not in (None, "auto", "scattering"):
        raise ValueError(f"features is None, 'auto' or 'scattering', got {estimator.features!r}")
    if estimator.features == "auto" and not isinstance(estimator.public_images, str):
        raise ValueError("features='auto' learns from drawings alone: leave out public_images")
    if isinstance(estimator.public_images, str) and estimator.public_images != "drawings":
        raise ValueError(
            "public_images must be 'drawings', None or an array of pictures, got "
            f"{estimator.public_images!r}"
        )
    if not isinstance(estimator.ledger, (str, os.PathLike, Ledger, type(None))):
        raise TypeError(
            "ledger must be a path or a noisewise.privacy.Ledger, got "
            f"{type(estimator.ledger).__name__}"
        )
    if estimator.features is not None and estimator.schema is not None:
        raise ValueError("pictures have no schema: give either features or schema")
    if estimator.tune is not None:
        tuning.tuning_of(estimator.tune)
    known = ("auto", *rule_words())
    given = estimator.gradients
    if not (given in known if isinstance(given, str) else isinstance(given, Estimator)):
        raise ValueError(
            f"gradients must be {', '.join(map(repr, known))} or an estimator such as "
            f"noisewise.Clipped(1.0), got {given!r}"
        )
