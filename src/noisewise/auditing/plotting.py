"""A picture of an audit: the two groups of scores, and the ROC curve on log-log axes.

Privacy is lost in the tails, so the ROC curve is drawn on logarithmic axes (Carlini
et al., 2022), with the line that the claim does not allow to be crossed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from noisewise.auditing.result import AuditResult

__all__ = ["audit_pictures", "draw"]

_IN, _OUT, _CLAIM, _BOUND = "#c1440e", "#2b6a99", "#444444", "#7a3e9d"


def draw(result: AuditResult, path: Path) -> Path:
    """Draw `result` into a file whose suffix decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _distributions(left, result)
    _roc(right, result)
    claim = "" if result.claimed_epsilon is None else f", claimed {result.claimed_epsilon:.3g}"
    figure.suptitle(
        f"Audit ({result.method}): epsilon ≥ {math.floor(1e3 * result.epsilon_lower_bound) / 1e3:g}"
        f"{claim} at delta {result.delta:g}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def audit_pictures(result: AuditResult) -> tuple[Figure, Figure]:
    """Return scores and ROC curve as two pictures, large enough for a report."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 13, "lines.linewidth": 2.5}):
        first, second = (Figure(figsize=(5.6, 5.0), layout="constrained") for _ in range(2))
        _distributions(first.subplots(), result)
        _roc(second.subplots(), result)
    return first, second


def _distributions(axes: Any, result: AuditResult) -> None:
    inside, outside = result.scores.inside, result.scores.outside
    both = np.concatenate([inside, outside])
    edges = np.linspace(both.min(), both.max() + 1e-12, 61)
    for values, colour, name in ((outside, _OUT, "out"), (inside, _IN, "in")):
        label = f"{name} ({values.size:,})"
        axes.hist(values, bins=edges, density=True, alpha=0.55, color=colour, label=label)
    if result.bound.threshold is not None:
        axes.axvline(result.bound.threshold, color=_BOUND, linestyle=":", label="threshold")
    axes.set(xlabel="score", ylabel="density", title="Scores of canaries")
    axes.legend(frameon=False)


def _roc(axes: Any, result: AuditResult) -> None:
    inside, outside = np.sort(result.scores.inside), np.sort(result.scores.outside)
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    true_positive = 1 - np.searchsorted(inside, thresholds, side="left") / inside.size
    false_positive = 1 - np.searchsorted(outside, thresholds, side="left") / outside.size
    floor = 0.5 / outside.size
    low = min(floor, 0.5 / inside.size)
    axes.step(
        np.append(floor, np.maximum(false_positive, floor)),
        np.append(low, np.maximum(true_positive, low)),
        where="post",
        color=_IN,
        label="attack",
    )
    rate = np.geomspace(floor, 1.0, 400)
    axes.plot(rate, rate, color="#aaaaaa", linewidth=1, label="guessing")
    lines = [(result.epsilon_lower_bound, _BOUND, "lower bound", "--")]
    noise = result.bound.noise_multiplier
    if result.scores.observed == "batch" and noise is not None and math.isfinite(noise):
        # Through the noise the bound speaks for a whole curve, which says more than a line.
        curve = ndtr(ndtri(rate) + result.relation.sum_factor / noise)
        label = f"Gaussian noise of multiplier {noise:.3g} (lower bound)"
        axes.plot(rate, curve, color=_BOUND, linestyle="--", label=label)
        lines = []
    title = "ROC curve of the attack"
    if result.scores.observed == "step":
        title += " on one step"
    if (
        result.noise is not None
        and result.noise.sample_rate < 1
        and result.noise.observed == "batch"
    ):
        # The claim counts on sampling, this attack did without: no line to compare with.
        title += " on a known batch"
    elif result.claimed_epsilon is not None:
        lines.insert(0, (result.claimed_epsilon, _CLAIM, "claim", "-"))
    for epsilon, colour, name, style in lines:
        allowed = _allowed(rate, epsilon, result.delta)
        label = f"most that epsilon {epsilon:.3g} allows ({name})"
        axes.plot(rate, allowed, color=colour, linestyle=style, label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(floor, 1.15),
        ylim=(low, 1.15),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
        title=title,
    )
    axes.legend(frameon=False, loc="lower right", fontsize=10)


def _allowed(rate: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """Largest true-positive rate under (epsilon, delta)-DP."""
    growth = math.exp(min(epsilon, 700.0))
    return np.minimum(1.0, np.minimum(growth * rate + delta, 1 - (1 - delta - rate) / growth))
