"""Curves and reliability diagrams that several analysis experiments draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from analysis_training import IMAGES, Outcome

from noisewise.analysis.calibration import (
    Calibration,
    confidence_histogram,
    measure,
    reliability_diagram,
)

__all__ = ["calibration_of", "curves", "diagrams"]


def calibration_of(outcome: Outcome) -> Calibration:
    return measure(outcome.test, outcome.test_labels, logits=True)


def curves(
    runs: Mapping[str, Sequence[Outcome]],
    name: str,
    title: str,
    *,
    classify: bool = True,
    last: float | None = None,
    **axis: Any,
) -> None:
    """Draw training loss, test loss and (for classifiers) test accuracy over the steps.

    Lines are means over seeds, bands their range; steps after `last` are left out.
    """
    panels = [("train_loss", "training loss"), ("test_loss", "test loss")]
    panels += [("accuracy", "test accuracy")] if classify else []
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.0 * len(panels), 3.9), layout="constrained"
    )
    for index, (label, many) in enumerate(runs.items()):
        style = {"color": "black", "linestyle": ":"} if "not private" in label else {}
        style = style or {"color": f"C{index}", "linestyle": ("-", "--", "-.")[index % 3]}
        for ax, (field, text) in zip(axes, panels, strict=True):
            values = np.stack([getattr(run, field) for run in many])
            ax.plot(many[0].steps, values.mean(0), label=label, **style)
            ax.fill_between(
                many[0].steps, values.min(0), values.max(0), color=style["color"], alpha=0.15,
                linewidth=0,
            )  # fmt: skip
            ax.set(xlabel="step", title=text, **(axis if "loss" in field else {}))
    for ax in axes:
        if last is not None:
            ax.set_xlim(0, last)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    seeds = max(len(many) for many in runs.values())
    spread = f", mean and range of {seeds} seeds" if seeds > 1 else ""
    figure.suptitle(title + spread, fontsize="medium")
    figure.savefig(IMAGES / f"{name}.png", dpi=95)
    plt.close(figure)


def diagrams(runs: Mapping[str, Outcome], name: str, title: str) -> None:
    """Draw reliability above confidence, one column for each run."""
    figure, axes = plt.subplots(
        2, len(runs), figsize=(3.5 * len(runs), 6.4), layout="constrained", height_ratios=(3, 2)
    )
    for column, (label, run) in zip(axes.T, runs.items(), strict=True):
        found = calibration_of(run)
        reliability_diagram(found, column[0])
        confidence_histogram(found, column[1])
        column[0].set_title(label, fontsize="medium")
    figure.suptitle(f"{title}, first seed", fontsize="medium")
    figure.savefig(IMAGES / f"{name}.png", dpi=85)
    plt.close(figure)
