"""What an attack achieved: AUC, by class too, and the true-positive rate where few are accused.

An average such as AUC hides what matters: an attack that finds one record in a hundred with
certainty has an AUC near 1/2 (Carlini et al., 2022). So the rate at a false-positive rate of
0.1 % and the ROC curve on logarithmic axes stand beside it. An attack is a lower bound on what
can be learnt: a bad result of one attack proves no privacy. Not private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import beta, norm
from sklearn.metrics import roc_auc_score, roc_curve

from noisewise import checks
from noisewise.analysis.inputs import BoolArray, FloatArray, IntArray, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AttackResult", "as_members"]


def as_members(members: Any, records: int | None = None) -> BoolArray:
    """Return who was in the training data as bools, with both kinds among them."""
    array = as_array(members)
    if array.ndim != 1 or (records is not None and array.size != records):
        wanted = "" if records is None else f" ({records})"
        raise ValueError(f"members must say yes or no for each record{wanted}, got {array.shape}")
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise ValueError("members must be bools, or 0 and 1")
    inside = array.astype(bool)
    if inside.all() or not inside.any():
        raise ValueError("an attack needs records that were trained on and records that were not")
    return inside


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Scores of an attack on records whose membership is known.

    Parameters
    ----------
    scores : array
        Larger means "more likely trained on".
    members : array of bool
        Whether each record was.
    labels : array of int, optional
        Classes, for results by class.
    name : str
        The attack.

    Examples
    --------
    >>> found = AttackResult([0.9, 0.8, 0.3, 0.1], [1, 0, 1, 0])
    >>> found.auc
    0.75
    """

    scores: FloatArray
    members: BoolArray
    labels: IntArray | None = None
    name: str = "attack"

    def __post_init__(self) -> None:
        scores = as_array(self.scores).astype(np.float64)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise ValueError("scores must be one finite number for each record")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "members", as_members(self.members, scores.size))
        if self.labels is not None:
            labels = as_array(self.labels).astype(np.int64)
            if labels.shape != scores.shape:
                raise ValueError(f"labels must be one for each of the {scores.size} records")
            object.__setattr__(self, "labels", labels)

    @cached_property
    def auc(self) -> float:
        """Area under the ROC curve; 0.5 is guessing."""
        return float(roc_auc_score(self.members, self.scores))

    def auc_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return limits for the AUC by the variance of DeLong et al. (1988)."""
        level = checks.fraction("level", level)
        inside, outside = np.sort(self.scores[self.members]), np.sort(self.scores[~self.members])
        won = _placements(inside, outside)
        lost = 1 - _placements(outside, inside)
        variance = sum(v.var(ddof=1) / v.size for v in (won, lost) if v.size > 1)
        margin = float(norm.isf((1 - level) / 2)) * math.sqrt(float(variance))
        return max(0.0, self.auc - margin), min(1.0, self.auc + margin)

    def auc_by_class(self) -> dict[int, float]:
        """Return the AUC within each class; NaN if it has members only, or none."""
        if self.labels is None:
            raise ValueError("this result knows no labels: pass labels=... to the attack")
        found = {}
        for k in np.unique(self.labels):
            own = self.labels == k
            inside = self.members[own]
            both = inside.any() and not inside.all()
            found[int(k)] = float(roc_auc_score(inside, self.scores[own])) if both else math.nan
        return found

    def true_positive_rate(self, false_positive_rate: float = 1e-3) -> float:
        """Return the largest true-positive rate with at most this false-positive rate.

        Nothing is interpolated. With fewer than 1/rate non-members it allows no false
        positive at all, and understates what the attack could do.
        """
        return self._at(false_positive_rate) / int(self.members.sum())

    def true_positive_interval(
        self, false_positive_rate: float = 1e-3, level: float = 0.95
    ) -> tuple[float, float]:
        """Return Clopper-Pearson limits for that rate, the threshold taken as given."""
        level = checks.fraction("level", level)
        found, total = self._at(false_positive_rate), int(self.members.sum())
        tail = (1 - level) / 2
        low = float(beta.ppf(tail, found, total - found + 1)) if found else 0.0
        high = float(beta.isf(tail, found + 1, total - found)) if found < total else 1.0
        return low, high

    def _at(self, rate: float) -> int:
        rate = checks.probability("false_positive_rate", rate, zero=True)
        outside = np.sort(self.scores[~self.members])
        allowed = math.floor(rate * outside.size + 1e-9)
        if allowed >= outside.size:
            return int(self.members.sum())
        threshold = outside[outside.size - 1 - allowed]
        return int((self.scores[self.members] > threshold).sum())

    def roc(self) -> tuple[FloatArray, FloatArray]:
        """Return false- and true-positive rates over all thresholds."""
        fpr, tpr, _ = roc_curve(self.members, self.scores, drop_intermediate=False)
        return np.asarray(fpr), np.asarray(tpr)

    def summary(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            "auc": self.auc,
            "tpr_at_0.1%_fpr": self.true_positive_rate(1e-3),
            "tpr_at_1%_fpr": self.true_positive_rate(1e-2),
            "members": float(self.members.sum()),
            "non_members": float((~self.members).sum()),
        }

    def plot(
        self,
        ax: Axes | None = None,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        **line: Any,
    ) -> Axes:
        """Draw the ROC curve on logarithmic axes, with what (epsilon, delta)-DP allows."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")[1]
        low = 0.5 / int((~self.members).sum())
        fpr, tpr = self.roc()
        style = {"label": f"{self.name}: AUC {self.auc:.3f}", "linewidth": 1.5, **line}
        ax.step(np.maximum(fpr, low), np.maximum(tpr, low), where="post", **style)
        rate = np.geomspace(low, 1.0, 300)
        if not any(line.get_label() == "guessing" for line in ax.get_lines()):
            ax.plot(rate, rate, color="0.6", linewidth=0.8, linestyle="--", label="guessing")
        if epsilon is not None:
            epsilon = checks.positive("epsilon", epsilon, zero=True)
            growth = math.exp(min(epsilon, 700.0))
            most = np.minimum(growth * rate + delta, 1 - (1 - delta - rate) / growth)
            label = f"most that epsilon {math.ceil(1e3 * epsilon) / 1e3:g} allows"
            ax.plot(rate, np.minimum(most, 1.0), color="black", linestyle=":", label=label)
        ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.05))
        ax.set(xlabel="false-positive rate", ylabel="true-positive rate")
        ax.legend(loc="lower right", fontsize="small")
        return ax


def _placements(values: FloatArray, others: FloatArray) -> FloatArray:
    """Share of sorted `others` below each value, ties counted half."""
    below = np.searchsorted(others, values, side="left")
    upto = np.searchsorted(others, values, side="right")
    return np.asarray((below + upto) / (2 * others.size))
