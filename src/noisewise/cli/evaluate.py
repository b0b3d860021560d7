"""``noisewise evaluate``: a private report on a classifier's predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from noisewise.ecdf.evaluation import Evaluation
    from noisewise.privacy.statement import Statement

__all__ = ["evaluate", "read_predictions"]


def evaluate(
    predictions: Annotated[Path, typer.Argument(help="A .csv or .parquet file, one row a record.")],
    label: Annotated[str, typer.Option(help="Column of the true labels.")],
    score: Annotated[str, typer.Option(help="Column of the scores or probabilities.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the whole report.")],
    delta: Annotated[float, typer.Option(help="0 for pure differential privacy.")] = 0.0,
    pos_label: Annotated[
        str | None, typer.Option(help="The positive label, if labels are not 0/1 or -1/1.")
    ] = None,
    lower: Annotated[float, typer.Option(help="Public lower bound of the scores.")] = 0.0,
    upper: Annotated[float, typer.Option(help="Public upper bound of the scores.")] = 1.0,
    bins: Annotated[int, typer.Option(help="Thresholds of the curves.")] = 1024,
    groups: Annotated[int, typer.Option(help="Groups of the calibration.")] = 10,
    neighbors: Annotated[
        str, typer.Option(help="replace (number of rows is public) or add-remove.")
    ] = "replace",
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    statement: Annotated[
        Path | None, typer.Option(help="Write the privacy statement as JSON.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Charge this ledger before anything is shown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    show_true: Annotated[
        bool, typer.Option(help="Draw the true curves too. The report is then NOT private.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise, for trying out: NOT secret.")
    ] = None,
) -> None:
    r"""Release ROC, AUC, calibration and score quantiles within one privacy budget.

    \b
    noisewise evaluate predictions.parquet --label y --score p --epsilon 1 --report eval.html
    """
    from noisewise.ecdf.evaluation import private_evaluation

    for path in (report, statement):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"no folder at {str(path.parent)!r} for {path.name!r}")
    y, values, positive = read_predictions(predictions, label, score, pos_label)
    found = private_evaluation(
        y,
        values,
        epsilon=epsilon,
        delta=delta,
        bounds=(lower, upper),
        bins=bins,
        groups=groups,
        pos_label=positive,
        neighbors=neighbors,
        rng=seed,
    )
    promise = found.statement()
    if ledger is not None:
        charge(ledger, promise, f"noisewise evaluate {predictions.name}")
    errors = Console(stderr=True, highlight=False)
    if show_true:
        errors.print(
            "[bold red]NOT PRIVATE:[/] --show-true draws the true curves. No epsilon holds for "
            "this report: do not share it."
        )
    summary = found.summary()
    truth = (y, values, positive) if show_true else None
    if report is not None:
        from noisewise.cli.evaluation_report import write_report

        write_report(found, summary, report, source=predictions.name, truth=truth)
    if statement is not None:
        statement.write_text(promise.to_json() + "\n", "utf-8")
    if as_json:
        typer.echo(json.dumps({**summary, "statement": promise.to_dict()}, indent=2))
        return
    _show(summary, found)
    for path in (report, statement):
        if path is not None:
            typer.echo(f"written: {path}")


def read_predictions(
    path: Path, label: str, score: str, pos_label: str | None
) -> tuple[Any, Any, Any]:
    """Return labels, scores and the positive label in the type of the labels."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"no file at {str(path)!r}")
    readers: dict[str, Any] = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path.name!r}: only .csv and .parquet files can be read")
    try:
        frame: pd.DataFrame = reader(path)
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise for broken files
        raise ValueError(f"cannot read {str(path)!r}: {error}") from error
    for option, column in (("--label", label), ("--score", score)):
        if column not in frame.columns:
            known = ", ".join(map(repr, frame.columns[:20]))
            raise ValueError(f"{option} {column!r} is not a column of {path.name!r}: {known}")
    missing = {name: int(frame[name].isna().sum()) for name in (label, score)}
    for name, count in missing.items():
        if count:
            raise ValueError(f"column {name!r} has missing values; drop or impute them first")
    if not pd.api.types.is_numeric_dtype(frame[score]):
        raise ValueError(f"column {score!r} must hold numbers, got {frame[score].dtype}")
    labels = frame[label]
    positive: Any = pos_label
    if pos_label is None and not pd.api.types.is_numeric_dtype(labels):
        raise ValueError(
            f"column {label!r} does not hold numbers: say which label is positive, for example "
            "--pos-label yes"
        )
    if pos_label is not None and pd.api.types.is_numeric_dtype(labels):
        try:
            positive = float(pos_label)
        except ValueError as error:
            raise ValueError(
                f"--pos-label {pos_label!r} is not a number, but column {label!r} holds numbers"
            ) from error
    return labels.to_numpy(), frame[score].to_numpy(), positive


def charge(path: Path, promise: Statement, note: str) -> None:
    """Charge all releases of a statement to a ledger, or none of them."""
    from noisewise.errors import RelationError
    from noisewise.privacy.ledger import Ledger

    with Ledger.open(path) as book:
        if book.relation != promise.relation:
            raise RelationError(
                f"the ledger {path.name!r} counts under {book.relation}, this release is under "
                f"{promise.relation}: choose --neighbors to match"
            )
        book.charge(promise.history, note=note)


def _show(summary: dict[str, Any], found: Evaluation) -> None:
    from noisewise.cli.evaluation_report import rows_of
    from noisewise.privacy.statement import round_up

    promise = found.statement()
    title = f"epsilon {round_up(promise.epsilon)}, delta {promise.delta:g}, {promise.relation}"
    table = Table("measure", "private value", "95 % interval", title=title, title_justify="left")
    for name, value, interval in rows_of(summary):
        table.add_row(name, value, interval)
    Console(highlight=False).print(table)
