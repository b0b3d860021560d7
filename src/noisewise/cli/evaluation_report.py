"""The HTML report of ``noisewise evaluate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.cli.curve_charts import precision_chart, roc_chart
from noisewise.cli.measure_pictures import picture
from noisewise.ecdf import Evaluation, as_labelled
from noisewise.reports import Chart, Page, promised, seeded

__all__ = [
    "measure_rows",
    "quality",
    "ranking",
    "rows_of",
    "says_no",
    "unsure",
    "write_measures",
    "write_report",
]

#: How measures are called that people know by another name.
_NAMES = {
    "r2": "R²",
    "mean_absolute_error_noise": "noise of that error",
    "base_rates": "share of",
    "recalls": "recall of",
}
_LOST = "lost in the noise"
#: Recall below which a model hardly ever says yes.
_SELDOM = 0.2
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
    page = Page(
        "Private evaluation",
        f"How well the predictions of {source} separate and how far they can be believed.",
    )
    rows = None
    if truth is not None:
        page.warning(
            "NOT PRIVATE: the true curves are drawn (--show-true). No epsilon holds for this "
            "file. Do not share it."
        )
        rows = as_labelled(*truth)
    page.answer(
        promised(promise),
        quality(summary),
        mood="bad" if rows is not None else "unsure" if seeded(promise) else "good",
        steps=_steps(rows, seeded(promise)),
    )
    page.heading("Ranking")
    ranking(page, found, rows)
    size: dict[str, Any] = {"figsize": (5.2, 4.6), "layout": "constrained"}
    with plt.rc_context({"font.size": 13, "lines.linewidth": 2.5}):
        if found.calibration is not None:
            _calibration(page, found, rows, size)
        else:
            page.paragraph(
                "Scores are not probabilities (bounds other than 0 and 1): no calibration."
            )
    page.heading("All numbers")
    page.table(("measure", "private value", "95 % interval"), rows_of(summary))
    return page.statement(promise).reproduce().write(path)


def write_measures(found: Any, path: Path, *, source: str) -> Path:
    """Write the report of measures without curves: of several classes, or of a number."""
    import matplotlib

    matplotlib.use("Agg")
    promise, summary = found.statement(), found.summary()
    page = Page("Private evaluation", f"How good the predictions of {source} are.")
    page.answer(
        promised(promise),
        quality(summary),
        mood="unsure" if seeded(promise) else "good",
        steps=_steps(None, seeded(promise))[0 if seeded(promise) else 1 :],
    )
    page.heading("Class by class" if "base_rates" in summary else "Errors")
    picture(page, found)
    page.heading("All numbers")
    page.table(("measure", "private value"), measure_rows(summary))
    return page.statement(promise).reproduce().write(path)


def ranking(page: Page, found: Evaluation, rows: Any = None) -> None:
    """Draw the released curves, with a slider over their thresholds."""
    if np.isnan(found.roc.auc):
        page.paragraph("The noise hides one of the two classes: there is no curve to draw.")
        return
    page.charts(
        (
            _with_truth(roc_chart(found.roc), rows, "roc"),
            "ROC curve. The region holds the true curve with probability 95 %. Moving the "
            "threshold reads released numbers and costs no privacy.",
        ),
        (
            _with_truth(precision_chart(found.roc), rows, "precision"),
            "Precision over recall; at low recall there are few records and much noise.",
        ),
    )


def unsure(summary: dict[str, Any]) -> str:
    """Say that the quality cannot be told from guessing, if that is so."""
    if "r2_interval" in summary:
        low = summary["r2_interval"][0]
        if low is not None and low > 0:
            return ""
        return (
            "The interval of R² holds 0: at this epsilon these records cannot tell the model from "
            "one that always says the mean. Measure on more records, spend more, or declare a "
            "narrower public range of the target: the noise grows with it."
        )
    if "auc" not in summary:
        return ""
    low, high = summary["auc_interval"]
    if not math.isnan(summary["auc"]) and not low <= 0.5 <= high:
        return ""
    return (
        "The interval of the AUC holds 0.5: at this epsilon these records cannot tell the model "
        "from guessing. Rates at one threshold are as uncertain. Measure on more records, or spend "
        "more."
    )


def says_no(base_rate: float, recall: float, threshold: float) -> str:
    """Say that a model which hardly ever says yes wants a lower threshold, if that is so."""
    if not (0 < base_rate < threshold / 2 and recall < _SELDOM):
        return ""
    return (
        f"From probability {threshold:g} on, the model hardly ever says yes, because yes is rare. "
        f"Choose a lower threshold, such as --threshold {max(0.01, base_rate):.2g}; the ROC curve "
        "shows what each one finds."
    )


def quality(summary: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return title, headline and words on how good a model is, from private measures."""
    title = "How good it is"
    if "auc" not in summary:
        first = "r2" if "r2" in summary else "accuracy"
        meaning = (
            unsure(summary) or "1 is perfect; 0 is no better than always saying the mean."
            if first == "r2"
            else _beside_the_commonest(summary["base_rates"])
        )
        low, high = summary[f"{first}_interval"]
        true = (
            f"The true value may be anything up to {_shown(high)} (95 %)."
            if low is None or math.isinf(low)
            else f"The true value lies between {_shown(low)} and {_shown(high)} (95 %)."
        )
        if first == "r2" and unsure(summary):
            return title, _LOST, [meaning]
        return title, f"{_NAMES.get(first, first)} {_shown(summary[first])}", [true, meaning]
    low, high = summary["auc_interval"]
    if math.isnan(summary["auc"]) or (low < 0.01 and high > 0.99):
        return (
            title,
            _LOST,
            [
                "There are too few records of one class for this epsilon: the area under the ROC "
                "curve (AUC) may be anything.",
                "Take more records or a larger epsilon.",
            ],
        )
    texts = [
        f"The true area lies between {low:.3f} and {high:.3f} (95 %).",
        unsure(summary) or "1 is perfect, 0.5 is guessing.",
    ]
    if "ece" in summary:
        least, most = summary["ece_interval"]
        texts.append(
            f"Predicted probabilities are off by {summary['ece']:.1%} on average ({least:.1%} to "
            f"{most:.1%})."
        )
    if seldom := says_no(summary["base_rate"], summary["recall"], summary["threshold"]):
        texts.append(seldom)
    return title, f"AUC {summary['auc']:.3f}", texts


def _beside_the_commonest(base_rates: dict[str, float]) -> str:
    """Say what accuracy must be compared with."""
    name = max(base_rates, key=lambda one: base_rates[one])
    return (
        "The share of records whose class is predicted. Whoever always says "
        f"{name!r} is right in about {base_rates[name]:.0%}."
    )


def _steps(rows: Any, trial: bool) -> list[str]:
    if rows is not None:
        return ["Look, then delete this page.", "Make one without --show-true to share."]
    if trial:
        return ["Look, and try settings.", "Then run it once, without --seed, to share it."]
    return [
        "Choose a threshold with the slider below: it costs nothing.",
        "Share this page: its statement is below, and --statement writes it to a file that others "
        "can verify.",
        "Every further question to these records adds to epsilon: keep a ledger (--ledger).",
    ]


def _with_truth(chart: Chart, rows: Any, kind: str) -> Chart:
    """Add the true curve, if it was asked for."""
    if rows is None:
        return chart
    from sklearn.metrics import precision_recall_curve, roc_curve

    if kind == "roc":
        fpr, tpr, _ = roc_curve(rows[:, 0], rows[:, 1])
        return chart.line("true (NOT private)", fpr, tpr, "dashed")
    precision, recall, _ = precision_recall_curve(rows[:, 0], rows[:, 1])
    return chart.line("true (NOT private)", recall[::-1], precision[::-1], "dashed")


def _calibration(page: Page, found: Evaluation, rows: Any, size: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    from noisewise.analysis import prediction_histogram

    calibration = found.calibration
    assert calibration is not None
    page.heading("Calibration")
    figure, axes = plt.subplots(**size)
    calibration.plot(axes)
    if rows is not None:
        from noisewise.ecdf import group_of

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
        (
            figure,
            "Reliability: what happened over what was predicted. Bars are two standard errors of "
            "the noise",
        ),
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
                f"{row.prob_true:.4f}" if row.usable else _LOST,
                f"{row.standard_error:.4f}",
            )
            for row in frame.rename(columns={"count": "records"}).itertuples()
        ],
    )


def measure_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return private measures as rows of text, each with its interval if it has one."""
    if "auc" not in summary:
        rows = []
        for name, value in summary.items():
            if isinstance(value, dict):  # one number for each class
                what = _NAMES.get(name, name)
                rows += [(f"{what} {key}", _shown(item)) for key, item in value.items()]
            elif not name.endswith("_interval"):
                told = _NAMES.get(name, name.replace("_", " "))
                rows.append((told, _with_interval(summary, name)))
        return rows
    return [
        (name, f"{value} ({interval})" if interval else value)
        for name, value, interval in rows_of(summary)
    ]


def _with_interval(summary: dict[str, Any], name: str) -> str:
    if f"{name}_interval" not in summary:
        return _shown(summary[name])
    low, high = summary[f"{name}_interval"]
    least = "anything" if low is None or math.isinf(low) else _shown(low)
    # Noise that exceeds a sum of squares leaves an error of 0, and an R² of 1.
    lost = unsure(summary) if name == "r2" else summary[name] == 0.0
    return f"{_LOST if lost else _shown(summary[name])} ({least} to {_shown(high)})"


def _shown(value: Any) -> str:
    if value is None or value != value:
        return _LOST
    if isinstance(value, list):
        return " to ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def rows_of(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the summary as rows of text."""

    def interval(name: str) -> str:
        low, high = summary[name]
        return f"{low:.4f} to {high:.4f}"

    def number(name: str) -> str:
        return _LOST if math.isnan(summary[name]) else f"{summary[name]:.4f}"

    rows = [
        ("AUC", number("auc"), interval("auc_interval")),
        ("positives", f"{summary['positives']:.0f}", ""),
        ("negatives", f"{summary['negatives']:.0f}", ""),
        ("base rate", f"{summary['base_rate']:.4f}", ""),
        (f"recall at {summary['threshold']:g}", number("recall"), interval("recall_interval")),
        (
            f"precision at {summary['threshold']:g}",
            number("precision"),
            interval("precision_interval"),
        ),
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
