"""Pictures of private measures without a curve: of several classes, and of predicted numbers.

They are drawn from released numbers alone, so they cost no privacy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noisewise.ecdf import PrivateConfusion
from noisewise.reports import Page

__all__ = ["picture"]

_SIZE: dict[str, Any] = {"figsize": (5.2, 4.6), "layout": "constrained"}
_LARGE: Any = {"font.size": 13, "lines.linewidth": 2.5}


def picture(page: Page, found: Any) -> None:
    """Draw what was measured on several classes, or on predicted numbers."""
    import matplotlib.pyplot as plt

    with plt.rc_context(_LARGE):
        if isinstance(found, PrivateConfusion):
            _confusion(page, found)
        else:
            _errors(page, found)


def _confusion(page: Page, found: PrivateConfusion) -> None:
    """Which class was taken for which, and a table of the classes."""
    import matplotlib.pyplot as plt

    names = [str(name) for name in found.classes]
    counts = np.maximum(found.counts, 0.0)
    totals = found.counts.sum(axis=1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    figure, axes = plt.subplots(**_SIZE)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for row, column in np.ndindex(*shares.shape):
        # The colours' own ends: black and white are exchanged in the dark.
        ink = image.cmap(0.0 if shares[row, column] > 0.5 else 1.0)
        axes.text(column, row, f"{shares[row, column]:.2f}", ha="center", va="center", color=ink)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=45 if len(names) > 2 else 0)
    axes.set_yticks(places, names)
    axes.set(xlabel="predicted class", ylabel="true class")
    page.figures(
        (figure, "Which class was taken for which, privately: each row is a true class and adds "
         "up to 1"),
    )  # fmt: skip
    page.table(
        ("class", "records", "share of all", "of these found"),
        [
            (name, f"{total:.0f}", f"{share:.1%}", f"{recall:.1%}" if total > 1 else _LOST)
            for name, total, share, recall in zip(
                names, totals, found.base_rates, found.recalls, strict=True
            )
        ],
    )


_LOST = "lost in the noise"


def _errors(page: Page, found: Any) -> None:
    """The error beside that of always saying the mean, which follows from it and from R²."""
    import matplotlib.pyplot as plt

    error, r2 = found.root_mean_squared_error, found.r2
    if math.isnan(r2) or math.isnan(error) or r2 >= 1.0:
        return
    low, high = found.root_mean_squared_error_interval()
    bars = {"always the mean": error / math.sqrt(1.0 - r2), "the model": error}
    figure, axes = plt.subplots(figsize=(5.2, 2.6), layout="constrained")
    axes.barh(list(bars), list(bars.values()), color=["#b0bec5", "#00796b"], height=0.6)
    for place, value in enumerate(bars.values()):
        axes.text(value, place, f" {value:.3g}", va="center")
    if math.isfinite(high):
        axes.plot([low, high], [0.72, 0.72], color="#e8590c", marker="|", markersize=9)
        axes.set_xlim(0, 1.2 * max(high, *bars.values()))
    axes.set_xlabel("root mean squared error")
    axes.spines[["top", "right"]].set_visible(False)
    page.figures(
        (figure, "How far predictions are off, privately, beside always saying the mean. The line "
         "at the bar holds the true error with probability 95 %"),
    )  # fmt: skip
