"""Labels and scores for ``noisewise evaluate``: from columns of a file, or from a model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.datasets import Look, look_at_budget
from noisewise.privacy import unit_codes

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Predicted",
    "finite",
    "look_at_contribution",
    "look_at_predictions",
    "of_model",
    "read_columns",
]

#: What a party does about a contribution that it should not have made.
_AGAIN = " If that is wrong, correct it and contribute again with --replace."


def read_columns(path: Path, label: str, score: str, schema: Path | None) -> pd.DataFrame:
    """Read a file, by the rules of a schema if one is given."""
    import pandas as pd

    from noisewise.datasets import FileFormat, Schema, read_cells, read_table, text_numbers

    if not path.is_file():
        raise ValueError(f"no file at {str(path)!r}")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path.name!r}: only .csv and .parquet files can be read")
    if schema is not None:
        public = Schema.read(schema)
        frame = read_table(path, public, keep_unlabelled=True)
        form = public.file
    else:
        frame, form = read_cells(path), FileFormat()
    for name in {label, score} & set(frame.columns):
        cells = frame[name]
        if not pd.api.types.is_numeric_dtype(cells.dtype):
            # A column of text is one of numbers if every cell is one; else it stays text.
            numbers = text_numbers(cells, form)
            if not (numbers.isna() & cells.notna()).any():
                frame[name] = numbers
    return frame


@dataclass(frozen=True)
class Predicted:
    """What a model says of the rows that it did not learn from.

    Parameters
    ----------
    labels, scores : array
        For two classes whether it is the second one, and its probability; else what is true and
        what is predicted.
    span : pair of float, optional
        Range of the target of a regression.
    classes : list, optional
        If there are more than two.
    units : Series, optional
        Whose rows they are, if the model protects units.
    """

    labels: Any
    scores: Any
    span: tuple[float, float] | None = None
    classes: list[Any] | None = None
    units: Any = None


def of_model(path: Path, folder: Path) -> Predicted:
    """Return what a model of ``noisewise train`` says of its held-out rows."""
    from noisewise.cli.training_job import split
    from noisewise.datasets import read_table
    from noisewise.estimators import PrivateClassifier, load_estimator

    record = folder / "run.json"
    if not (folder / "estimator.json").exists() or not record.exists():
        raise ValueError(f"{str(folder)!r} holds no model of noisewise train --out")
    model: Any = load_estimator(folder)
    schema = model._schema
    if schema is None or schema.target is None:
        raise ValueError("this model learnt from pictures; write its scores to a file instead")
    settings = json.loads(record.read_text("utf-8"))["settings"]
    frame = read_table(path, schema)
    _, rows = split(frame, settings["test"], settings["random_state"] or 0, schema.unit)
    features = rows.drop(columns=[schema.target])
    labels = rows[schema.target].to_numpy()
    units = schema.units(rows)
    if not isinstance(model, PrivateClassifier):
        return Predicted(labels, model.predict(features), span=model.target_range_, units=units)
    classes = model.classes_.tolist()
    if len(classes) > 2:
        return Predicted(labels, model.predict(features), classes=classes, units=units)
    return Predicted(labels == classes[1], model.predict_proba(features)[:, 1], units=units)


def finite(value: Any) -> Any:
    """Return plain values in which what is no number is None, as JSON has no word for it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def look_at_predictions(
    y: Any,
    score: Any,
    positive: Any,
    lower: float | None,
    upper: float | None,
    epsilon: float,
    units: Any = None,
    delta: float = 0.0,
) -> Look:
    """Look at labels and scores before they cost anything; local, and not private."""
    labels, scores = np.asarray(y), np.asarray(score, np.float64)
    found = Look([f"{len(labels):,} rows"])
    share = float(np.mean(labels == (1 if positive is None else positive))) if len(labels) else 0.0
    found.facts.append(f"positives: {share:.1%}")
    if share in (0.0, 1.0):
        none = "no record has" if share == 0.0 else "every record has"
        found.stops.append(
            f"{none} the positive label {1 if positive is None else positive!r}: there is no curve "
            "to be seen. Is --pos-label written as in the file, or --label another column?"
        )
    elif min(share, 1 - share) < 0.02:
        found.warnings.append("there are few of one class: its share of every curve is noisy")
    low, high = 0.0 if lower is None else lower, 1.0 if upper is None else upper
    outside = float(np.mean((scores < low) | (scores > high))) if len(scores) else 0.0
    if outside:
        found.facts.append(f"{outside:.1%} of the scores lie outside {low:g} to {high:g}")
    if outside > 0.05 and low < high:
        found.stops.append(
            f"{outside:.0%} of the scores lie outside {low:g} to {high:g} and would be clamped: "
            "these are no probabilities. Give the public range of such scores, for example "
            "--lower -20 --upper 20, or turn them into probabilities"
        )
    few = (len(labels), "rows") if units is None else (len(np.unique(unit_codes(units))), "units")
    measured = "curves begin to show something"
    return found + look_at_budget(few[0], epsilon, delta, few[1], measured)


def look_at_contribution(values: Any, positive: Any, study: Any) -> Look:
    """Look at a party's records before they leave as shares; local, and not private.

    Nothing is refused: a hospital may have one class only, and a refusal would be seen.
    """
    found = Look([f"{len(values):,} records for study {study.name}, round {study.round}"])
    if positive is not None and len(values):
        share = float(np.mean(positive))
        found.facts.append(f"positives: {share:.1%}")
        if share in (0.0, 1.0):
            found.warnings.append(
                f"{'no' if share == 0.0 else 'every'} record is positive: is --pos-label written "
                "as in the file?" + _AGAIN
            )
    outside = float(np.mean((values < study.lower) | (values > study.upper))) if len(values) else 0
    if outside:
        text = (
            f"{outside:.0%} of the values lie outside the study's public bounds, {study.lower:g} "
            f"to {study.upper:g}, and are moved to them"
        )
        if outside > 0.05:
            found.warnings.append(f"{text}: another unit, or scores for probabilities?" + _AGAIN)
        else:
            found.facts.append(text)
    return found
