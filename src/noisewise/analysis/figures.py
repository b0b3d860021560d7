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

__all__ = ["evaluation_figures", "training_figures"]

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
    second, right = _square()
    edges = found.reliability.edges
    counts = np.maximum(found.reliability.counts, 0.0)
    share = counts / max(counts.sum(), 1.0)
    right.bar(edges[:-1], share, np.diff(edges), align="edge", color="0.75", edgecolor="white")
    right.axvline(found.accuracy, color="#2b6a99", label=f"accuracy {found.accuracy:.1%}")
    label = f"mean confidence {found.confidence:.1%}"
    right.axvline(found.confidence, color="#c1440e", linestyle="--", label=label)
    right.set(xlabel="confidence", ylabel="share of records", xlim=(0, 1))
    right.legend(loc="upper left", fontsize="small")
    low, high = found.reliability.ece_interval(level)
    return [
        (
            first,
            f"Private reliability, ECE {found.ece:.3f} ({low:.3f} to {high:.3f} at {level:.0%}); "
            "bars are two standard errors of the noise",
        ),
        (second, "Private distribution of the confidence"),
    ]


def _square() -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    return figure, figure.subplots()
