"""How good a model of ``noisewise train`` is: locally without noise, or privately."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noisewise.cli.evaluation_report import says_no
from noisewise.cli.training_job import Data
from noisewise.datasets import Look
from noisewise.ecdf import (
    CURVE_SHARE,
    Budget,
    Evaluation,
    calibration_event,
    confusion_event,
    private_confusion,
    private_evaluation,
    private_regression_errors,
    regression_event,
    two_curve_mechanism,
)
from noisewise.privacy import ADD_REMOVE, Event
from noisewise.privacy.randomness import resolve
from noisewise.release import ONE_ROW, per_unit

__all__ = [
    "evaluation_events",
    "local_measures",
    "look_at_measuring",
    "private_measures",
    "seldom_yes",
    "summary_of",
]

_BINS = 1024
#: Rarer rows times epsilon from which an area under the curve is told from 0.5.
_ENOUGH = 100.0
#: Rows times epsilon from which the noise of a R2 is below about 0.3.
_ENOUGH_NUMBERS = 1000.0


def evaluation_events(data: Data, epsilon: float) -> tuple[Event, ...]:
    """Return what :func:`private_measures` will cost."""
    units = data.units_to_measure("one unit")
    bounded = per_unit(units, 1, resolve(None))
    most = ONE_ROW if bounded is None else bounded.contribution
    if data.regression:
        return (most.told(regression_event(epsilon, ADD_REMOVE)),)
    if len(data.classes or ()) > 2:
        return (most.told(confusion_event(len(data.classes or ()), epsilon, ADD_REMOVE)),)
    curves = two_curve_mechanism(
        _BINS, ADD_REMOVE, Budget(CURVE_SHARE * epsilon, 0.0), contribution=most
    )
    rest = calibration_event((1 - CURVE_SHARE) * epsilon, ADD_REMOVE)
    return curves.event, most.told(rest)


def look_at_measuring(data: Data, epsilon: float) -> Look:
    """Compare the rarer class of the held-out rows with their part of epsilon; not private.

    An area under the curve needs rows of both classes: its noise is that of about 10 / epsilon of
    the rarer ones.
    """
    found = Look()
    if data.regression and len(data.y_test) * epsilon < _ENOUGH_NUMBERS:
        found.warnings.append(
            f"there are {len(data.y_test):,} held-out rows, and epsilon {epsilon:.2g} is for "
            "measuring: R² may be lost in the noise. Hold out more rows (--test 0.5) or give "
            "measuring more (--evaluate 0.5). (A local look, not private.)"
        )
    if data.classes is None or len(data.classes) > 2:
        return found
    positives = np.asarray(data.y_test) == data.classes[1]
    rare = int(min(positives.sum(), len(positives) - positives.sum()))
    if rare * epsilon < _ENOUGH:
        found.warnings.append(
            f"of the held-out rows {rare:,} are of the rarer class, and epsilon {epsilon:.2g} is "
            "for measuring: the curve may be lost in the noise. Hold out more rows (--test 0.5) or "
            "give measuring more (--evaluate 0.5). (A local look, not private.)"
        )
    return found


def private_measures(data: Data, model: Any, epsilon: float, account: Any, seed: int | None) -> Any:
    """Evaluate on the held-out records, privately; has ``summary()`` and ``statement()``.

    Of a unit one row's worth counts, as it does in training.
    """
    units = data.units_to_measure(model.statement_.unit)
    if data.regression:
        return private_regression_errors(
            data.y_test,
            model.predict(data.x_test),
            bounds=model.target_range_,
            epsilon=epsilon,
            units=units,
            ledger=account,
            seed=seed,
        )
    if len(model.classes_) > 2:
        return private_confusion(
            data.y_test,
            model.predict(data.x_test),
            classes=model.classes_.tolist(),
            epsilon=epsilon,
            units=units,
            ledger=account,
            seed=seed,
        )
    return private_evaluation(
        np.asarray(data.y_test) == model.classes_[1],
        model.predict_proba(data.x_test)[:, 1],
        epsilon=epsilon,
        bins=_BINS,
        units=units,
        ledger=account,
        seed=seed,
    )


def summary_of(measured: Any, threshold: float) -> dict[str, Any]:
    """Return the numbers of private measures; rates of two classes at the threshold."""
    found: dict[str, Any] = (
        measured.summary(threshold=threshold)
        if isinstance(measured, Evaluation)
        else measured.summary()
    )
    return found


def local_measures(data: Data, model: Any) -> dict[str, float]:
    """Measure on the held-out records without noise: not private, for whoever holds them."""
    from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

    if data.regression:
        guess = model.predict(data.x_test)
        return {
            "R2": float(r2_score(data.y_test, guess)),
            "MAE": float(mean_absolute_error(data.y_test, guess)),
            "MAE of the mean": float(np.mean(np.abs(data.y_test - np.mean(data.y_test)))),
        }
    labels = np.asarray(data.y_test)
    guess = model.predict(data.x_test)
    found = {"accuracy": float(np.mean(guess == labels))}
    if len(model.classes_) == 2:
        positive = labels == model.classes_[1]
        score = model.predict_proba(data.x_test)[:, 1]
        found["AUC"] = (
            float(roc_auc_score(positive, score)) if 0 < positive.mean() < 1 else math.nan
        )
        found[f"base rate of {model.classes_[1]}"] = float(positive.mean())
        hit = (guess == model.classes_[1])[positive]
        found[f"recall of {model.classes_[1]}"] = float(hit.mean()) if positive.any() else math.nan
    else:
        shares = [float((labels == one).mean()) for one in model.classes_]
        found["base rate of the largest class"] = max(shares)
        recalls = [float((guess == one)[labels == one].mean()) for one in model.classes_
                   if (labels == one).any()]  # fmt: skip
        found["least recall of a class"] = min(recalls, default=math.nan)
    return found


def seldom_yes(model: Any, local: dict[str, float]) -> str:
    """Say that a model which hardly ever says yes wants a lower threshold, if that is so."""
    classes: Any = getattr(model, "classes_", ())
    if len(classes) != 2:
        return ""
    return says_no(local[f"base rate of {classes[1]}"], local[f"recall of {classes[1]}"], 0.5)
