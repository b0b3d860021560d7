"""Curves, reliability diagrams and tables that several analysis experiments draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from analysis_training import IMAGES, Outcome, Setup

from noisewise.analysis.calibration import (
    Calibration,
    confidence_histogram,
    measure,
    reliability_diagram,
)

__all__ = ["calibration_of", "curves", "diagrams", "print_table"]


def calibration_of(outcome: Outcome) -> Calibration:
    return measure(outcome.test, outcome.test_labels, logits=True)


def curves(
    runs: Mapping[str, Outcome], name: str, title: str, *, classify: bool = True, **axis: Any
) -> None:
    """Draw training loss, test loss and (for classifiers) test accuracy over the steps."""
    panels = [("train_loss", "training loss"), ("test_loss", "test loss")]
    panels += [("accuracy", "test accuracy")] if classify else []
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.0 * len(panels), 3.5), layout="constrained"
    )
    for index, (label, run) in enumerate(runs.items()):
        style = {"color": "black", "linestyle": ":"} if "not private" in label else {}
        style = style or {"color": f"C{index}", "linestyle": ("-", "--", "-.")[index % 3]}
        for ax, (field, text) in zip(axes, panels, strict=True):
            ax.plot(run.steps, getattr(run, field), label=label, **style)
            ax.set(xlabel="step", title=text, **(axis if "loss" in field else {}))
    axes[0].legend(fontsize="x-small")
    figure.suptitle(title, fontsize="medium")
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
    figure.suptitle(title, fontsize="medium")
    figure.savefig(IMAGES / f"{name}.png", dpi=85)
    plt.close(figure)


def print_table(runs: Mapping[str, tuple[Setup, Outcome]], title: str) -> None:
    """Print what Table 2 of paper 003 holds, and more."""
    print(f"\n{title}\n")
    print("| method | epsilon | accuracy % | NLL | ECE % | MCE % | classwise ECE % | conf. % |")
    print("|---|---|---|---|---|---|---|---|")
    for label, (_, run) in runs.items():
        c = calibration_of(run)
        epsilon = "none" if np.isinf(run.epsilon) else f"{np.ceil(100 * run.epsilon) / 100:.2f}"
        cells = [f"{100 * c.accuracy:.1f}", f"{c.nll:.3f}"]
        cells += [f"{100 * v:.1f}" for v in (c.ece, c.mce, c.classwise_ece, c.confidence)]
        print(f"| {label} | {epsilon} | " + " | ".join(cells) + " |")
