"""The HTML report of ``noisewise train``: one file, no network, no scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from noisewise.cli.training_job import Comparison, Data, Trained
from noisewise.privacy import PoissonGaussian
from noisewise.privacy.accounting import epsilon_of
from noisewise.privacy.statement import round_up
from noisewise.reports.page import Page

__all__ = ["write_training_report"]

_SIZE: dict[str, Any] = {"figsize": (4.8, 4.2), "layout": "constrained"}


def write_training_report(
    path: Path, data: Data, trained: Trained, rows: list[Comparison], series: Any
) -> Path:
    """Write curves, the privacy card, what bounding did, and how good the model is."""
    import matplotlib

    matplotlib.use("Agg")
    statement = trained.model.statement_
    page = Page(
        f"Private training on {data.name}",
        f"{len(data.y_train):,} records, (epsilon {round_up(statement.epsilon)}, delta "
        f"{statement.delta:g})-differentially private ({statement.relation.sentence}).",
    )
    page.warning(
        "The weights and the privacy statement may be published. The measurements below were taken "
        "on private records without noise and are covered by no epsilon: keep this page inside. To "
        "publish how good the model is, use noisewise evaluate."
    )
    measure = "R2" if data.regression else "accuracy"
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
    page.figures(
        (_epsilon_curve(statement), "Epsilon spent after each step"),
        (_bias_curve(series), "What bounding does to the gradient of a sample of records"),
    )
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
    if data.regression:
        page.heading("Predictions").figures((_scatter(data, trained), "Held-out records"))
    else:
        confusion, others = _quality(data, trained)
        page.heading("Quality on held-out records")
        page.figures((confusion, "Confusion matrix: rows are true classes"), *others)
    page.heading("Privacy statement").code(str(statement))
    page.paragraph("Check its JSON form with: noisewise verify statement.json")
    return page.write(path)


def _epsilon_curve(statement: Any) -> Any:
    """Epsilon as a function of the number of steps, from the statement alone."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(**_SIZE)
    event = next((e for e in statement.history if isinstance(e, PoissonGaussian)), None)
    if event is None:
        axes.text(0.5, 0.5, "one release", ha="center", transform=axes.transAxes)
        return figure
    counts = sorted({max(1, round(event.count * part)) for part in np.linspace(0, 1, 13)})
    values = [
        epsilon_of(
            [
                PoissonGaussian(
                    noise_multiplier=event.noise_multiplier,
                    sample_rate=event.sample_rate,
                    count=count,
                )
            ],
            delta=statement.delta,
            relation=statement.relation,
        )
        for count in counts
    ]
    axes.plot(counts, values, marker="o", markersize=3, color="#2b6a99")
    axes.set(xlabel="step", ylabel=f"epsilon at delta {statement.delta:g}", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bias_curve(series: Any) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(**_SIZE)
    steps = [m.step for m in series.measurements]
    axes.plot(steps, [m.cosine for m in series.measurements], label="cosine to the true gradient")
    clipped = [m.clipped_fraction for m in series.measurements]
    axes.plot(steps, clipped, label="share of clipped records", linestyle="--")
    axes.axhline(0, color="0.8", linewidth=0.8)
    axes.set(xlabel="step", ylim=(-1.05, 1.05))
    axes.legend(fontsize="small", loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _quality(data: Data, trained: Trained) -> tuple[Any, list[tuple[Any, str]]]:
    import matplotlib.pyplot as plt
    from sklearn.metrics import ConfusionMatrixDisplay

    from noisewise.analysis.figures import training_figures

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
        text_kw={"fontsize": 8 if len(names) <= 10 else 5},
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
