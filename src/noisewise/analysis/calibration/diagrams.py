"""Reliability diagram and confidence histogram.

As in figures 6 and 8 of Bu, Wang, Dai and Long (2021).

Accuracy as bars, the gap to the mean confidence hatched over them, the diagonal of perfect
calibration; and how confidence is distributed, with lines at its mean and at the accuracy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisewise.analysis.calibration.metrics import Calibration

__all__ = ["confidence_histogram", "reliability_diagram"]

BAR, GAP, MEAN, RIGHT = "#2b6a99", "#c1440e", "#444444", "#2b6a99"


def reliability_diagram(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Draw accuracy against confidence; a bar below the diagonal is over-confident."""
    ax = _axes(ax)
    bins = calibration.bins
    keep = bins.filled
    left, width = bins.edges[:-1][keep], np.diff(bins.edges)[keep]
    low = np.minimum(bins.observed, bins.predicted)[keep]
    shape: dict[str, Any] = {"align": "edge", "linewidth": 0.6}
    ax.bar(left, bins.observed[keep], width, color=BAR, edgecolor="white", label="accuracy",
           **shape)  # fmt: skip
    ax.bar(left, np.abs(bins.gaps[keep]), width, bottom=low, color=(0.76, 0.27, 0.05, 0.25),
           edgecolor=GAP, hatch="//", label="gap to confidence", **shape)  # fmt: skip
    ax.plot([0, 1], [0, 1], color="black", linestyle=":", linewidth=1.2)
    ax.text(
        0.97,
        0.03,
        f"ECE {calibration.ece:.1%}\nMCE {calibration.mce:.1%}\nNLL {calibration.nll:.3f}",
        transform=ax.transAxes,
        ha="right",
        va="bottom",
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "0.8"},
    )
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(loc="upper left", fontsize="small")
    return ax


def confidence_histogram(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Draw the share of records in each bin of confidence."""
    ax = _axes(ax)
    bins = calibration.bins
    share = bins.counts / bins.counts.sum()
    height = share if calibration.strategy == "width" else share / np.diff(bins.edges)
    ax.bar(
        bins.edges[:-1], height, np.diff(bins.edges), align="edge", color="0.75", edgecolor="white"
    )
    ax.axvline(
        calibration.accuracy, color=RIGHT, linewidth=1.8,
        label=f"accuracy {calibration.accuracy:.1%}",
    )  # fmt: skip
    ax.axvline(
        calibration.confidence, color=GAP, linewidth=1.8, linestyle="--",
        label=f"mean confidence {calibration.confidence:.1%}",
    )  # fmt: skip
    ylabel = "share of records" if calibration.strategy == "width" else "density of records"
    # Room for the legend above the highest bar.
    ax.set(xlabel="confidence", ylabel=ylabel, xlim=(0, 1), ylim=(0, 1.35 * height.max()))
    ax.legend(loc="upper left", fontsize="small")
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(4.2, 4.2), layout="constrained")[1]
