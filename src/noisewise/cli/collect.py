"""``noisewise collect``: an analyst asks the servers of a federated study for a curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from noisewise.federated.network import ClientSettings, Taken
    from noisewise.privacy import Statement

__all__ = ["collect"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NOT_PRIVATE = "NOT PRIVATE: a test without noise. No epsilon holds for this result."


def collect(
    config: Annotated[Path, typer.Option(help="The analyst's configuration file (TOML).")],
    curve: Annotated[
        str, typer.Option(help="ecdf (with quantiles), histogram, roc (with AUC), hosmer-lemeshow.")
    ] = "roc",
    epsilon: Annotated[float, typer.Option(help="What this release may cost.")] = 1.0,
    delta: Annotated[float, typer.Option(help="0 for pure differential privacy.")] = 0.0,
    groups: Annotated[int, typer.Option(help="Groups of the Hosmer-Lemeshow test.")] = 10,
    quantile: Annotated[
        list[float] | None, typer.Option(help="A quantile of the ecdf; may be repeated.")
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="How many must have contributed; by default all.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="A name for a new release of a question that was asked before.")
    ] = "",
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curve as a picture.")] = None,
    table: Annotated[Path | None, typer.Option(help="Write the curve as .csv.")] = None,
    statement: Annotated[
        Path | None, typer.Option(help="Write the privacy statement as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Only show who has contributed and what is spent.")
    ] = False,
) -> None:
    """Ask for a private curve of the records of all parties.

    The same question gives the same answer again, at no cost, also after a crash.

    Example: noisewise collect --config analyst.toml --curve roc --epsilon 0.5 --plot roc.png
    """
    from noisewise.cli.outputs import check_files
    from noisewise.federated.network import ClientSettings, RemoteAggregator, progress_of

    settings = ClientSettings.read(config)
    if progress:
        typer.echo(json.dumps(progress_of(settings), indent=2))
        return
    check_files(report, plot, table, statement)
    taken: list[Taken] = []
    aggregator = RemoteAggregator(settings, name=name, parties=parties, told=taken.append)
    found = _ask(aggregator, settings, curve, epsilon, delta, groups)
    numbers = _numbers(found, curve, quantile or list(QUANTILES))
    promise = None if aggregator.noiseless else found.statement()
    if promise is None:
        Console(stderr=True, highlight=False).print(f"[bold red]{NOT_PRIVATE}[/]")
    if plot is not None:
        _draw(found, curve, plot)
    if table is not None:
        _frame(found, curve).to_csv(table, index=False)
    if report is not None:
        from noisewise.cli.collect_report import write_report

        if promise is None:
            write_report(found, curve, _rows(numbers), None, taken, settings, report, NOT_PRIVATE)
        else:
            write_report(found, curve, _rows(numbers), promise, taken, settings, report)
    if statement is not None and promise is not None:
        statement.write_text(promise.to_json() + "\n", "utf-8")
    if as_json:
        whole = {**numbers, "statement": None if promise is None else promise.to_dict()}
        typer.echo(json.dumps(whole, indent=2))
        return
    _show(numbers, promise, taken)
    for path in (report, plot, table, statement):
        if path is not None and path.exists():
            typer.echo(f"written: {path}")


def _ask(
    aggregator: Any, settings: ClientSettings, curve: str, epsilon: float, delta: float, groups: int
) -> Any:
    from noisewise import federated
    from noisewise.federated import EcdfQuestion, HistogramQuestion, RocQuestion
    from noisewise.federated.network import curve_domain
    from noisewise.privacy.randomness import resolve

    study = settings.study
    if curve not in study.curves:
        raise ValueError(
            f"study {study.name!r} has no curve {curve!r}; it has: {', '.join(study.curves)}"
        )
    if curve == "hosmer-lemeshow":
        return federated.hosmer_lemeshow(
            None, aggregator, epsilon=epsilon, delta=delta, groups=groups, bins=study.bins,
            relation=study.relation,
        )  # fmt: skip
    kinds = {"ecdf": EcdfQuestion, "histogram": HistogramQuestion, "roc": RocQuestion}
    question = kinds[curve](
        curve_domain(study, curve), epsilon, delta, study.relation, protects=study.protects
    )
    return question.answer(aggregator.ask(question, (), resolve(None)))


def _numbers(found: Any, curve: str, wanted: list[float]) -> dict[str, Any]:
    """Return the main numbers of a curve."""
    if curve == "roc":
        low, high = found.auc_interval(0.95)
        return {
            "AUC": float(found.auc),
            "AUC, 95 % interval": [float(low), float(high)],
            "positives": float(found.release.positives),
            "negatives": float(found.release.negatives),
        }
    if curve == "ecdf":
        return {f"quantile {q:g}": float(found.quantile(q)) for q in wanted}
    if curve == "histogram":
        return {
            f"{low:.4g} to {high:.4g}": float(count)
            for low, high, count in zip(
                found.edges[:-1], found.edges[1:], found.counts, strict=True
            )
        }
    return {
        "Hosmer-Lemeshow statistic": float(found.statistic),
        "p-value": float(found.p_value),
        "noise-aware p-value": float(found.noise_aware_p_value),
    }


def _frame(found: Any, curve: str) -> pd.DataFrame:
    import pandas as pd

    if curve == "histogram":
        columns = {"low": found.edges[:-1], "high": found.edges[1:], "count": found.counts}
        frame: pd.DataFrame = pd.DataFrame(columns)
        return frame
    whole: pd.DataFrame = found.to_frame()
    return whole


def _axes(found: Any, curve: str, axes: Axes) -> None:
    if curve != "hosmer-lemeshow":
        found.plot(axes)
        return
    import numpy as np

    frame = found.to_frame()
    middle = (frame["low"] + frame["high"]) / 2
    axes.bar(
        middle, frame["observed_1"] - frame["expected_1"], width=0.8 * np.diff([*frame["low"], 1.0])
    )
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set(xlabel="predicted probability", ylabel="observed minus expected positives")


def _draw(found: Any, curve: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.6, 5.2), layout="constrained")
    _axes(found, curve, axes)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _rows(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return " to ".join(f"{part:.4f}" for part in value)
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.0f}"

    return [(name, text(value)) for name, value in numbers.items()]


def _show(numbers: dict[str, Any], promise: Statement | None, taken: list[Taken]) -> None:
    from noisewise.privacy import round_up

    title = NOT_PRIVATE
    if promise is not None:
        title = f"epsilon {round_up(promise.epsilon)}, delta {promise.delta:g}, {promise.relation}"
    table = Table("measure", "value", title=title, title_justify="left")
    for name, value in _rows(numbers):
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    for release in taken:
        console.print(f"release {release.name}: {release.contributions} contributions")
