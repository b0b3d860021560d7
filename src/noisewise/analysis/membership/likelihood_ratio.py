"""Likelihood-ratio attack (Carlini et al., 2022): how a record's score moves with membership.

Many *shadow* models are trained, each on a random half of the records. For each record the
scores of models that saw it and of those that did not are taken as normal; a target model's
score is judged by the ratio of the two densities (online), or by how far it exceeds those that
did not see the record (offline). Each shadow model takes its turn as the target, judged by the
others, so one set of trainings both attacks and evaluates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

from noisewise import checks
from noisewise.analysis.inputs import BoolArray, FloatArray, IntArray, as_array
from noisewise.analysis.membership.attacks import confidence_score
from noisewise.analysis.membership.result import AttackResult

__all__ = ["Shadows", "train_shadows"]

#: Deviations below this are raised to it: a score that never moves must not divide by zero.
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class Shadows:
    """Scores of records under several trainings.

    Parameters
    ----------
    scores : array
        Models x records, usually :func:`confidence_score`.
    inside : array of bool
        Models x records: which records each training saw.
    labels : array of int, optional
        Classes of the records.
    """

    scores: FloatArray
    inside: BoolArray
    labels: IntArray | None = None

    def __post_init__(self) -> None:
        scores = as_array(self.scores).astype(np.float64)
        inside = as_array(self.inside).astype(bool)
        if scores.ndim != 2 or inside.shape != scores.shape:
            raise ValueError(
                f"scores and inside must both be models x records, got {scores.shape} and "
                f"{inside.shape}"
            )
        if not np.isfinite(scores).all():
            raise ValueError("scores must be finite; clip the logits of a training that diverged")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "inside", inside)

    @property
    def models(self) -> int:
        """Number of trainings."""
        return len(self.scores)

    def judge(
        self,
        target: Any,
        *,
        form: Literal["online", "offline"] = "online",
        variance: Literal["shared", "record"] = "shared",
        leave_out: int | None = None,
    ) -> FloatArray:
        """Score a target model's records: larger means "more likely trained on".

        Parameters
        ----------
        target : array
            The target's score of each record.
        form : {"online", "offline"}
            Both densities, or only that of models that did not see the record.
        variance : {"shared", "record"}
            One deviation for all records (steadier below about 64 models) or one each.
        leave_out : int, optional
            A model that must not take part, because it is the target.
        """
        checks.choice("form", form, ("online", "offline"))
        checks.choice("variance", variance, ("shared", "record"))
        keep = np.arange(self.models) != leave_out
        scores, inside = self.scores[keep], self.inside[keep]
        values = as_array(target).astype(np.float64)
        if values.shape != scores.shape[1:]:
            raise ValueError(f"target must have one score for each of {scores.shape[1]} records")
        out_mean, out_deviation = _normal(scores, ~inside, variance, "none that did not see")
        if form == "offline":
            return np.asarray((values - out_mean) / out_deviation)
        in_mean, in_deviation = _normal(scores, inside, variance, "none that saw")
        ratio = norm.logpdf(values, in_mean, in_deviation)
        return np.asarray(ratio - norm.logpdf(values, out_mean, out_deviation))

    def attack(
        self,
        *,
        form: Literal["online", "offline"] = "online",
        variance: Literal["shared", "record"] = "shared",
    ) -> AttackResult:
        """Let each model be the target in turn; `form` and `variance` as of :meth:`judge`."""
        found = [
            self.judge(self.scores[t], form=form, variance=variance, leave_out=t)
            for t in range(self.models)
        ]
        labels = None if self.labels is None else np.tile(self.labels, self.models)
        name = f"likelihood ratio ({form}, {self.models} models)"
        return AttackResult(np.concatenate(found), self.inside.reshape(-1), labels, name)


def train_shadows(
    train: Callable[[IntArray, int], Any],
    records: int,
    labels: Any,
    *,
    models: int = 16,
    seed: int = 0,
) -> Shadows:
    """Train shadow models on random halves and score all records with each.

    Parameters
    ----------
    train : callable
        ``train(indices, seed)`` trains from scratch on the records at `indices` and returns
        the logits of all records.
    records : int
        How many there are.
    labels : array
        Their classes.
    models : int
        At least 4. In pairs: the second of a pair sees what the first did not, so each
        record is seen by half of the models.
    seed : int
        Of the halves; model number m is trained with seed ``seed + m``.
    """
    models = checks.integer("models", models, minimum=4)
    records = checks.integer("records", records, minimum=2)
    generator = np.random.default_rng(seed)
    inside = np.zeros((models, records), dtype=bool)
    for first in range(0, models, 2):
        chosen = generator.permutation(records)[: records // 2]
        inside[first, chosen] = True
        if first + 1 < models:
            inside[first + 1] = ~inside[first]
    truth = as_array(labels).astype(np.int64)
    scores = [
        confidence_score(train(np.flatnonzero(row), seed + number), truth)
        for number, row in enumerate(inside)
    ]
    return Shadows(np.stack(scores), inside, truth)


def _normal(
    scores: FloatArray, chosen: BoolArray, variance: str, missing: str
) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of each record's scores over the chosen models."""
    counts = chosen.sum(0)
    needed = 2 if variance == "record" else 1
    if counts.min() < needed:
        raise ValueError(
            f"some records have {missing} them among the shadow models (at least {needed} are "
            "needed): train more models"
        )
    mean = np.where(chosen, scores, 0.0).sum(0) / counts
    squares = (np.where(chosen, scores - mean, 0.0) ** 2).sum(0)
    if variance == "record":
        deviation = np.sqrt(squares / (counts - 1))
    else:
        freedom = int((counts - 1).sum())
        pooled = squares.sum() / freedom if freedom else 1.0
        deviation = np.full(mean.shape, np.sqrt(pooled))
    return mean, np.maximum(deviation, SMALLEST_DEVIATION)
