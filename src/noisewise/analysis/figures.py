"""Figures with captions for reports: what ``train --report`` and ``evaluate --report`` show.

Each function returns (figure, caption) pairs, in order; the report places them. Captions say
whether a figure is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from noisewise.analysis.calibration import (
    confidence_histogram,
    measure,
    reliability_diagram,
)

if TYPE_CHECKING:
    from noisewise.analysis.calibration import PrivateReliability
    from noisewise.analysis.clipping_bias import BiasSeries
    from noisewise.ecdf import PrivateCalibration

__all__ = ["evaluation_figures", "prediction_histogram", "training_figures"]

Captioned = list[tuple[Figure, str]]


def training_figures(
    logits: Any = None,
    labels: Any = None,
    *,
    bias: BiasSeries | None = None,
    held_out: str = "public test records",
    bins: int = 15,
) -> Captioned:
    """Return the figures of a finished training.

    Parameters
    ----------
    logits, labels : array or tensor, optional
        Of records that were not trained on; their calibration is drawn without noise.
    bias : BiasSeries, optional
        What was measured during training.
    held_out : str
        What those records are, for the caption.
    bins : int
        Of the calibration.
    """
    found: Captioned = []
    if logits is not None:
        calibration = measure(logits, labels, logits=True, bins=bins)
        first, left = _square()
        reliability_diagram(calibration, left)
        found.append((first, f"Reliability on {held_out}, {bins} bins; no noise was added"))
        second, right = _square()
        confidence_histogram(calibration, right)
        found.append((second, f"Confidence on {held_out}; no noise was added"))
    if bias is not None and bias.measurements:
        found.append((bias.plot(), "What bounding did to the gradient. NOT PRIVATE: do not share"))
    return found


def evaluation_figures(found: PrivateReliability, level: float = 0.95) -> Captioned:
    """Return the figures of a private calibration; they are as private as their statement."""
    first, left = _square()
    found.reliability.plot(left)
    left.set(xlabel="confidence", ylabel="accuracy")
    second = _histogram(
        found.reliability,
        {"accuracy": found.accuracy, "mean confidence": found.confidence},
        "confidence",
    )
    low, high = found.reliability.ece_interval(level)
    return [
        (
            first,
            f"Private reliability, ECE {found.ece:.3f} ({low:.3f} to {high:.3f} at {level:.0%}); "
            "bars are two standard errors of the noise",
        ),
        (second, "Private distribution of the confidence"),
    ]


def prediction_histogram(found: PrivateCalibration) -> Figure:
    """Draw where a binary classifier's predictions lie, beside how often the event happened.

    Read off the groups of a private calibration, so it costs nothing more.
    """
    counts = np.maximum(found.counts, 0.0)
    total = max(float(counts.sum()), 1.0)
    lines = {
        "share of positives": float(counts @ found.prob_true) / total,
        "mean prediction": float(counts @ found.prob_pred) / total,
    }
    return _histogram(found, lines, "predicted probability")


def _histogram(found: PrivateCalibration, lines: dict[str, float], label: str) -> Figure:
    """Groups may differ in width, so their density is drawn; and two lines."""
    figure, axes = _square()
    widths = np.diff(found.edges)
    counts = np.maximum(found.counts, 0.0)
    density = counts / max(float(counts.sum()), 1.0) / np.maximum(widths, 1e-12)
    axes.bar(found.edges[:-1], density, widths, align="edge", color="0.75", edgecolor="white")
    styles = [("#2b6a99", "-"), ("#c1440e", "--")]
    for (name, value), (colour, style) in zip(lines.items(), styles, strict=True):
        axes.axvline(value, color=colour, linestyle=style, label=f"{name} {value:.1%}")
    room = 1.25 * max(float(density.max()), 1e-12)  # for the legend
    axes.set(xlabel=label, ylabel="density", xlim=(0, 1), ylim=(0, room))
    axes.legend(loc="upper center", fontsize="small")
    return figure


def _square() -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    return figure, figure.subplots()
