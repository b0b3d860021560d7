"""The HTML report of ``noisewise evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from noisewise.ecdf.evaluation import Evaluation
from noisewise.ecdf.labelled import as_labelled
from noisewise.ecdf.precision_recall import average_precision, precision_recall
from noisewise.privacy.statement import round_up
from noisewise.reports.page import Page

__all__ = ["rows_of", "write_report"]

TRUE = {"color": "#c62828", "linewidth": 1.5, "linestyle": ":", "label": "true (NOT private)"}


def write_report(
    found: Evaluation,
    summary: dict[str, Any],
    path: Path,
    *,
    source: str,
    truth: tuple[Any, Any, Any] | None = None,
) -> Path:
    """Write the report.

    Parameters
    ----------
    found : Evaluation
    summary : dict
        Its numbers.
    path : Path
    source : str
        Name of the data, for the title.
    truth : tuple, optional
        Labels, scores and positive label, to draw the true curves; then it is not private.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    promise = found.statement()
    lead = (
        f"{source}: the private numbers below come from releases that together are "
        f"(epsilon {round_up(promise.epsilon)}, delta {promise.delta:g})-differentially private "
        f"({promise.relation.sentence})."
    )
    page = Page("Private evaluation", lead)
    rows = None
    if truth is not None:
        page.warning(
            "NOT PRIVATE: the true curves are drawn (--show-true). No epsilon holds for this "
            "file. Do not share it."
        )
        rows = as_labelled(*truth)
    page.heading("Summary")
    page.table(("measure", "private value", "95 % interval"), rows_of(summary))
    page.heading("Ranking")
    size: dict[str, Any] = {"figsize": (4.8, 4.6), "layout": "constrained"}
    roc_figure, axes = plt.subplots(**size)
    if np.isnan(found.roc.auc):
        axes.text(0.5, 0.5, "a class has no (private) records", ha="center")
    else:
        found.roc.plot(axes)
    curve_figure, other = plt.subplots(**size)
    precision, recall, _ = precision_recall(found.roc)
    other.plot(recall, precision, label=f"private, AP {average_precision(found.roc):.3f}")
    other.set(xlabel="recall", ylabel="precision", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    if rows is not None:
        _true_ranking(rows, axes, other)
    axes.legend(loc="lower right", fontsize="small")
    other.legend(loc="lower left", fontsize="small")
    page.figures(
        (roc_figure, "ROC curve; the region holds the true curve with probability 95 %"),
        (curve_figure, "Precision and recall; at low recall few records and much noise"),
    )
    if found.calibration is not None:
        _calibration(page, found, rows, size)
    else:
        page.paragraph("Scores are not probabilities (bounds other than 0 and 1): no calibration.")
    page.heading("Privacy statement").code(str(promise))
    page.paragraph("Check the JSON form of this statement with: noisewise verify statement.json")
    return page.write(path)


def _true_ranking(rows: Any, axes: Any, other: Any) -> None:
    from sklearn.metrics import precision_recall_curve, roc_curve

    fpr, tpr, _ = roc_curve(rows[:, 0], rows[:, 1])
    axes.plot(fpr, tpr, **TRUE)
    precision, recall, _ = precision_recall_curve(rows[:, 0], rows[:, 1])
    other.plot(recall, precision, **TRUE)


def _calibration(page: Page, found: Evaluation, rows: Any, size: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    from noisewise.analysis.figures import prediction_histogram

    calibration = found.calibration
    assert calibration is not None
    page.heading("Calibration")
    figure, axes = plt.subplots(**size)
    calibration.plot(axes)
    if rows is not None:
        from noisewise.ecdf.group_sums import group_of

        group = group_of(rows[:, 1], calibration.sums.cuts)
        count = np.maximum(np.bincount(group, minlength=calibration.sums.groups), 1)
        true = np.bincount(group, rows[:, 0], calibration.sums.groups) / count
        mean = np.bincount(group, rows[:, 1], calibration.sums.groups) / count
        axes.plot(mean, true, **TRUE)
        axes.legend(loc="upper left", fontsize="small")
    scores, other = plt.subplots(**size)
    share = np.linspace(0, 1, 201)
    other.plot(found.quantiles(share), share)
    other.set(xlabel="score", ylabel="share of records below", ylim=(-0.01, 1.01))
    page.figures(
        (figure, "Reliability; bars are two standard errors of the noise"),
        (prediction_histogram(calibration), "Where the predictions lie, by calibration group"),
        (scores, "Distribution of the scores"),
    )
    frame = calibration.to_frame()
    page.table(
        ("group", "records", "mean prediction", "share of positives", "standard error"),
        [
            (
                f"{row.low:.4f} to {row.high:.4f}",
                f"{row.records:.0f}",
                f"{row.prob_pred:.4f}",
                f"{row.prob_true:.4f}" if row.usable else "lost in the noise",
                f"{row.standard_error:.4f}",
            )
            for row in frame.rename(columns={"count": "records"}).itertuples()
        ],
    )


def rows_of(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the summary as rows of text."""

    def interval(name: str) -> str:
        low, high = summary[name]
        return f"{low:.4f} to {high:.4f}"

    rows = [
        ("AUC", f"{summary['auc']:.4f}", interval("auc_interval")),
        ("positives", f"{summary['positives']:.0f}", ""),
        ("negatives", f"{summary['negatives']:.0f}", ""),
    ]
    for q, value in summary["score_quantiles"].items():
        rows.append((f"score quantile {q}", f"{value:.4f}", ""))
    if "ece" in summary:
        test = summary["hosmer_lemeshow"]
        rows += [
            ("calibration error (ECE)", f"{summary['ece']:.4f}", interval("ece_interval")),
            ("Hosmer-Lemeshow statistic", f"{test['statistic']:.2f}", ""),
            ("  its p-value", f"{test['p_value']:.4f}", ""),
            ("  noise-aware p-value", f"{test['noise_aware_p_value']:.4f}", ""),
        ]
    return rows
