"""The HTML report of ``noisewise train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from noisewise.cli.evaluation_report import measure_rows, quality, ranking
from noisewise.cli.measure_pictures import picture
from noisewise.cli.training_job import Comparison, Data, Trained
from noisewise.cli.training_quality import local_measures, seldom_yes
from noisewise.ecdf import Evaluation
from noisewise.privacy import epsilon_of, round_up
from noisewise.privacy.events import with_count
from noisewise.reports import Chart, Page, promised, seeded

__all__ = ["write_training_report"]

#: What may be published, without and with private measures.
_PUBLIC = (
    "The weights and the privacy statement may be published. How good the model is may be measured "
    "privately, with noisewise evaluate. The measurements",
    "The weights, the privacy statement and the private measures may be published. All other "
    "measurements",
)
_SIZE: dict[str, Any] = {"figsize": (5.2, 4.6), "layout": "constrained"}
_LARGE: Any = {"font.size": 13, "lines.linewidth": 2.5}


def write_training_report(
    path: Path,
    data: Data,
    trained: Trained,
    rows: list[Comparison],
    series: Any,
    measured: Any = None,
    numbers: dict[str, Any] | None = None,
) -> Path:
    """Write curves, the privacy card, what bounding did, and how good the model is.

    `measured` and its `numbers` are private measures from the same budget: they may be published.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    statement = trained.model.statement_
    page = Page(
        f"Private training on {data.name}",
        f"{len(data.y_train):,} {data.words} to learn from, {len(data.y_test):,} to measure with.",
    )
    measure = "R2" if data.regression else "accuracy"
    local = local_measures(data, trained.model)
    seldom = seldom_yes(trained.model, local)
    without_noise = (
        "How good it is",
        _headline(local, measure, rows[0].score),
        [
            ", ".join(f"{name} {value:.3g}" for name, value in local.items()) + ".",
            *([seldom] if seldom else []),
            _beside(rows, measure),
            "Measured on held-out records without noise: for your eyes only.",
        ],
    )
    page.answer(
        promised(statement),
        without_noise if numbers is None else quality(numbers),
        mood="unsure" if seeded(statement) else "good",
        steps=[
            "Train once more without --seed before anything is published."
            if seeded(statement)
            else "Publish the weights and statement.json: both are covered by epsilon.",
            "Keep this page to yourself. To publish how good the model is: noisewise evaluate."
            if measured is None
            else "Publish evaluation.json too: the same epsilon covers it. Keep this page to "
            "yourself.",
            "Anyone can check the promise: noisewise verify statement.json.",
        ],
    )
    page.warning(
        f"{_PUBLIC[measured is not None]} below were taken on private records without noise and "
        "are covered by no epsilon: keep this page to yourself."
    )
    if numbers is not None:
        page.heading("Private measures: may be published")
        if isinstance(measured, Evaluation):
            ranking(page, measured)
        else:
            picture(page, measured)
        page.table(("measure", "private value"), measure_rows(numbers))
    page.heading("Result")
    page.table(
        ("model", f"{measure} on held-out records", "epsilon", "seconds"),
        [
            (
                row.name,
                f"{row.score:.4f}",
                "none" if row.epsilon is None else round_up(row.epsilon),
                f"{row.seconds:.1f}",
            )
            for row in rows
        ],
    )
    page.heading("Privacy over training")
    rest = "; calibration and measuring make up the rest" if len(statement.history) > 1 else ""
    spent = _epsilon_curve(statement), f"Epsilon spent after each step of training{rest}"
    if series.measurements:
        bias = "What bounding does to the gradient of a sample of records"
        page.charts(spent, (_bias_curve(series), bias))
        _layers(page, series)
    else:
        page.charts(spent)
        page.paragraph(
            "All steps were taken before the run was stopped and resumed; what bounding did to "
            "the gradients is not known any more."
        )
    with plt.rc_context(_LARGE):
        if data.regression:
            page.heading("Predictions").figures((_scatter(data, trained), "Held-out records"))
        else:
            confusion, others = _quality(data, trained)
            page.heading("Quality on held-out records")
            page.figures((confusion, "Confusion matrix: rows are true classes"), *others)
    return page.statement(statement).reproduce().write(path)


def _layers(page: Page, series: Any) -> None:
    page.heading("Layer by layer, at the last measurement")
    page.table(
        ("group", "parameters", "sensitivity", "clipped", "cosine", "signal to noise"),
        [
            (
                group.name,
                f"{group.parameters:,}",
                f"{group.sensitivity:.4g}",
                f"{group.clipped_fraction:.0%}",
                f"{group.cosine:.3f}",
                f"{group.signal_to_noise:.3g}",
            )
            for group in series.measurements[-1].groups
        ],
    )


def _headline(local: dict[str, float], measure: str, score: float) -> str:
    """Return the number that says most: where one class is rare, accuracy says little."""
    return f"AUC {local['AUC']:.3f}" if "AUC" in local else f"{measure} {score:.3f}"


def _beside(rows: list[Comparison], measure: str) -> str:
    """Say what privacy cost, if that was measured."""
    plain = [row.score for row in rows if row.epsilon is None]
    if not plain:
        return "Run with --compare to see what privacy costs."
    return f"The same network without privacy: {measure} {plain[0]:.3f}."


def _epsilon_curve(statement: Any) -> Chart:
    """Epsilon as a function of the number of steps, from the statement alone."""
    event = max(statement.history, key=lambda event: event.count)
    counts = sorted({max(1, round(event.count * part)) for part in np.linspace(0, 1, 13)})
    values = [
        epsilon_of(
            with_count(event, count),
            delta=statement.delta,
            relation=statement.relation,
            accountant=statement.accountant,
        )
        for count in counts
    ]
    chart = Chart("step", "epsilon", f"Epsilon grows with the steps to {round_up(values[-1])}")
    chart.x_range, chart.y_range = (0.0, float(counts[-1])), (0.0, 1.05 * max(values))
    return chart.line("epsilon", counts, values)


def _bias_curve(series: Any) -> Chart:
    steps = [m.step for m in series.measurements]
    chart = Chart(
        "step",
        "share",
        "Cosine between the bounded and the true gradient, and share of clipped records, over the "
        "steps",
        y_range=(min(0.0, *(m.cosine for m in series.measurements)), 1.0),
    )
    chart.line("cosine to the true gradient", steps, [m.cosine for m in series.measurements])
    clipped = [m.clipped_fraction for m in series.measurements]
    return chart.line("share of clipped records", steps, clipped, "dashed")


def _quality(data: Data, trained: Trained) -> tuple[Any, list[tuple[Any, str]]]:
    import matplotlib.pyplot as plt
    from sklearn.metrics import ConfusionMatrixDisplay

    from noisewise.analysis import training_figures

    model = trained.model
    probabilities = model.predict_proba(data.x_test)
    codes = np.searchsorted(model.classes_, np.asarray(data.y_test))
    first, axes = plt.subplots(**_SIZE)
    names = [str(name) for name in model.classes_]
    ConfusionMatrixDisplay.from_predictions(
        codes,
        probabilities.argmax(1),
        labels=range(len(names)),
        display_labels=names,
        normalize="true",
        values_format=".2f" if len(names) <= 10 else ".1f",
        cmap="Blues",
        ax=axes,
        colorbar=False,
        xticks_rotation=45 if max(map(len, names)) > 3 else "horizontal",
        text_kw={"fontsize": 14 if len(names) <= 4 else 9 if len(names) <= 10 else 6},
    )
    scores = np.log(np.maximum(probabilities, 1e-300))
    return first, training_figures(scores, codes, held_out="held-out records")


def _scatter(data: Data, trained: Trained) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(**_SIZE)
    predicted = trained.model.predict(data.x_test)
    truth = np.asarray(data.y_test, dtype=float)
    axes.scatter(truth, predicted, s=4, alpha=0.3, color="#2b6a99")
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    axes.plot(ends, ends, color="black", linestyle=":", linewidth=1)
    axes.set(xlabel="true", ylabel="predicted")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
