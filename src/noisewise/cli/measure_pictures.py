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
    """The errors with their intervals, and that of always saying the mean, which R² tells."""
    import matplotlib.pyplot as plt

    squared, r2 = found.root_mean_squared_error, found.r2
    rows = {
        "root mean\nsquared error": (squared, found.root_mean_squared_error_interval()),
        "mean\nabsolute error": (found.mean_absolute_error, found.mean_absolute_error_interval()),
    }
    figure, axes = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    for place, (value, (low, high)) in enumerate(rows.values()):
        most = high if math.isfinite(high) else value
        axes.plot([low, most], [place, place], color="#80cbc4", linewidth=9)
        if value > 0:  # else the noise has left nothing of it
            axes.plot(value, place, "o", color="#00796b", markersize=11, label=_ONCE[place])
    if squared > 0 and r2 < 1.0:
        mean = squared / math.sqrt(1.0 - r2)
        axes.plot(mean, 0, "D", color="#e8590c", markersize=10, label="always saying the mean")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(ylim=(-0.6, 1.6), xlabel="in units of the target")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize="small")
    page.figures(
        (figure, "How far predictions are off, privately. Each band holds the true error with "
         "probability 95 %"),
    )  # fmt: skip


#: One of the points is named in the legend.
_ONCE = ("_", "the model")
