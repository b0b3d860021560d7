"""Released curves as charts of a report: every number in them was released already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reports import Chart, Thresholds

if TYPE_CHECKING:
    from noisewise.ecdf import PrivateECDF, PrivateROC

__all__ = ["ecdf_chart", "precision_chart", "roc_chart"]


def roc_chart(roc: PrivateROC, level: float = 0.95) -> Chart:
    """Draw a ROC curve with its region, and a slider over the thresholds of its grid."""
    from noisewise.ecdf import values_of_steps

    fpr, tpr, _ = roc.compact()
    chart = Chart(
        "false positive rate",
        "true positive rate",
        f"Private ROC curve, area {roc.auc:.3f}, with the region that holds the true curve with "
        f"probability {level:.0%}",
        (0.0, 1.0),
        (0.0, 1.0),
    )
    band = roc.confidence_band(level)
    x = np.linspace(0.0, 1.0, 201)
    # Steps: between two thresholds the curve is monotone and nothing more is known.
    low = values_of_steps(x, band.fpr_high, band.tpr_low, side="left")
    high = values_of_steps(x, band.fpr_low, band.tpr_high, side="right")
    chart.band(x, low, high)
    chart.line("true positive rate", fpr, tpr).line("guessing", [0, 1], [0, 1], "dotted")
    rates = np.clip(roc.tpr[1:], 0, 1), np.clip(roc.fpr[1:], 0, 1)
    return chart.with_slider(
        Thresholds(
            roc.thresholds[1:],
            *rates,
            max(float(roc.release.positives), 0.0),
            max(float(roc.release.negatives), 0.0),
        )
    )


def precision_chart(roc: PrivateROC) -> Chart:
    """Draw precision over recall, read off the same release."""
    from noisewise.ecdf import average_precision, precision_recall

    precision, recall, _ = precision_recall(roc)
    order = np.argsort(recall, kind="stable")
    alt = f"Private precision over recall, average precision {average_precision(roc):.3f}"
    chart = Chart("recall", "precision", alt, (0.0, 1.0), (0.0, 1.0))
    return chart.line("precision", recall[order], precision[order])


def ecdf_chart(curve: PrivateECDF, level: float = 0.95) -> Chart:
    """Draw a distribution with its band."""
    edges: Any = curve.grid.edges
    band = curve.confidence_band(level)

    def steps(values: Any) -> Any:
        return np.concatenate([[0.0], values])

    chart = Chart(
        "value",
        "share of records at most this",
        f"Private distribution with its {level:.0%} band; the median is {curve.quantile(0.5):.4g}",
        (float(edges[0]), float(edges[-1])),
        (0.0, 1.0),
    )
    chart.band(edges, steps(band.low.probabilities), steps(band.high.probabilities))
    return chart.line("share", edges, steps(curve.probabilities))
