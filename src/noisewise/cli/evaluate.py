"""``noisewise evaluate``: a private report on a classifier's predictions."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from noisewise.ecdf import Evaluation

_Span: TypeAlias = "tuple[float | None, float | None]"

__all__ = ["evaluate", "is_engine", "positive_of", "read_predictions", "read_table", "read_units"]


def evaluate(
    predictions: Annotated[
        str,
        typer.Argument(
            help="A .csv or .parquet file, a folder of parquet files, or the URL of a database; "
            "one row a record."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the whole report.")],
    label: Annotated[str | None, typer.Option(help="Column of the true labels.")] = None,
    score: Annotated[
        str | None, typer.Option(help="Column of the scores, probabilities or predictions.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Instead of both: a folder of noisewise train; its held-out rows."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="How the file is written, and its public classes.")
    ] = None,
    regression: Annotated[
        bool, typer.Option("--regression", help="Labels are numbers: release R2, MAE and RMSE.")
    ] = False,
    query: Annotated[
        str | None, typer.Option(help="A SELECT; files are the table called data.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Name of a table of the database, instead of a query.")
    ] = None,
    delta: Annotated[float, typer.Option(help="0 for pure differential privacy.")] = 0.0,
    pos_label: Annotated[
        str | None, typer.Option(help="The positive label, if labels are not 0/1 or -1/1.")
    ] = None,
    lower: Annotated[
        float | None, typer.Option(help="Public lower bound of the scores; default 0.")
    ] = None,
    upper: Annotated[
        float | None, typer.Option(help="Public upper bound of the scores; default 1.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Score from which a record counts as positive.")
    ] = 0.5,
    bins: Annotated[int, typer.Option(help="Thresholds of the curves.")] = 1024,
    groups: Annotated[int, typer.Option(help="Groups of the calibration.")] = 10,
    unit: Annotated[
        str | None,
        typer.Option(help="Column that says whose row it is: protect a patient, not a visit."),
    ] = None,
    max_per_unit: Annotated[
        int, typer.Option(help="Rows of a unit that count, at most; a public number.")
    ] = 1,
    relation: Annotated[
        str, typer.Option(help="add-remove, or replace-one (number of rows is public).")
    ] = "add-remove",
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
    preflight: Annotated[
        bool, typer.Option(help="Look at the records first; local, and not private.")
    ] = True,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise, for trying out: NOT secret.")
    ] = None,
) -> None:
    """Release ROC, AUC, calibration and score quantiles within one privacy budget.

    Example: noisewise evaluate scores.csv --label y --score p --epsilon 1

    Example: noisewise evaluate patients.csv --model model --epsilon 0.5

    Example: noisewise evaluate duckdb:///scores.db --query "select y, p from t" --epsilon 1

    Databases and folders are asked for grouped counts; their records stay where they are.
    """
    from noisewise.cli.outputs import check_files
    from noisewise.ecdf import private_confusion, private_evaluation, private_regression_errors
    from noisewise.working import working

    check_files(report, statement)
    if unit is not None and model is not None:
        raise ValueError("--model knows whose rows they are: leave --unit out")
    given = lower, upper
    if is_engine(predictions, query, table):
        if show_true or model is not None or regression or schema is not None:
            raise ValueError(
                "--show-true, --model, --regression and --schema need every record, and those of "
                "a database or folder are not read: export them to a .parquet file"
            )
        asked = _of_engine(predictions, query, table, label, score, pos_label, unit, ledger, given)
    elif model is not None:
        if label is not None or score is not None:
            raise ValueError("--model brings labels and scores: leave --label and --score out")
        asked = _of_model(Path(predictions), model, ledger, given)
    elif label is None or score is None:
        raise ValueError("give --label and --score, the columns of the file, or --model FOLDER")
    else:
        columns = Path(predictions), label, score, pos_label, schema
        asked = _of_file(*columns, regression, unit, ledger, given)
    lower, upper = asked.span
    if asked.regression and (lower is None or upper is None):
        raise ValueError(
            "a regression needs the public range of its target: --lower LOWEST --upper HIGHEST"
        )
    bounds = 0.0 if lower is None else lower, 1.0 if upper is None else upper
    curves = asked.classes is None and not asked.regression
    if curves and not min(bounds) <= threshold <= max(bounds):
        raise ValueError(
            f"--threshold {threshold:g} lies outside the range of the scores, {bounds[0]:g} to "
            f"{bounds[1]:g}: no record, or every one, would count as positive"
        )
    if preflight:
        _look(asked, epsilon, delta, None if model is not None else Path(predictions), schema)
    with (
        _account(ledger, f"evaluate {_title(predictions)}") as account,
        warnings.catch_warnings(),
        working("measuring"),
    ):
        # What is lost in the noise is said in the table.
        warnings.simplefilter("ignore", RuntimeWarning)
        common: dict[str, Any] = {
            "epsilon": epsilon,
            "relation": relation,
            "units": asked.units,
            "max_per_unit": max_per_unit,
            "seed": seed,
            "ledger": account,
        }
        if asked.classes is not None:
            measured: Any = private_confusion(
                asked.labels, asked.scores, classes=asked.classes, **common
            )
        elif asked.regression:
            measured = private_regression_errors(
                asked.labels, asked.scores, bounds=bounds, **common
            )
        else:
            found = private_evaluation(
                asked.labels,
                asked.scores,
                delta=delta,
                bounds=bounds,
                bins=bins,
                groups=groups,
                pos_label=asked.positive,
                data=asked.engine,
                **common,
            )
            summary = found.summary(threshold=threshold)
    if ledger is None:
        _say_uncharged(model)
    if asked.classes is not None or asked.regression:
        _publish(measured, statement, as_json, report, _title(predictions))
        return
    if show_true:
        Console(stderr=True, highlight=False).print(
            "[bold red]NOT PRIVATE:[/] --show-true draws the true curves. No epsilon holds for "
            "this report: do not share it."
        )
    truth = (asked.labels, asked.scores, asked.positive) if show_true else None
    _publish_curves(found, summary, statement, as_json, report, _title(predictions), truth)


def _say_uncharged(model: Path | None) -> None:
    from noisewise.working import tell

    book = None if model is None else model / "ledger.jsonl"
    known = book is not None and book.is_file()
    tell(
        "This was charged to no ledger: epsilon adds to that of every other analysis of these "
        "records. To have it added up, give "
        + (f"--ledger {book}." if known else "--ledger (noisewise ledger create begins one).")
    )


@dataclass(frozen=True)
class _Asked:
    """What is measured.

    Attributes
    ----------
    labels, scores : object
        Columns, or their names in the table of an engine.
    positive : object
        The positive label.
    span : (float or None, float or None)
        Public range of scores or target.
    units : Units, optional
        Whose rows they are.
    classes : list, optional
        Of a model with several.
    engine : object, optional
        The table of a database or folder, which counts.
    regression : bool
    """

    labels: Any
    scores: Any
    positive: Any
    span: _Span
    units: Any = None
    classes: list[Any] | None = None
    engine: Any = None
    regression: bool = False


def _of_engine(
    where: str,
    query: str | None,
    table: str | None,
    label: str | None,
    score: str | None,
    pos_label: str | None,
    unit: str | None,
    ledger: Path | None,
    span: _Span,
) -> _Asked:
    from noisewise.release import Units, name_of_unit

    source, y, values, positive = read_table(where, query, table, label, score, pos_label, unit)
    units = None if unit is None else Units(unit, name=name_of_unit(ledger, unit))
    return _Asked(y, values, positive, span, units, engine=source)


def _of_model(path: Path, model: Path, ledger: Path | None, span: _Span) -> _Asked:
    from noisewise.cli.predictions import of_model
    from noisewise.working import working

    with working("reading the records and predicting"):
        said = of_model(path, model)
    regression = said.span is not None
    span = span if said.span is None else said.span
    units = _named(said.units, ledger)
    return _Asked(said.labels, said.scores, None, span, units, said.classes, None, regression)


def _of_file(
    path: Path,
    label: str,
    score: str,
    pos_label: str | None,
    schema: Path | None,
    regression: bool,
    unit: str | None,
    ledger: Path | None,
    span: _Span,
) -> _Asked:
    from noisewise.working import working

    if label == score:
        raise ValueError(
            f"--label and --score are both {label!r}: one is what happened, the other what the "
            "model said"
        )
    with working("reading the predictions"):
        y, values, positive = read_predictions(path, label, score, pos_label, schema, regression)
    units = None if unit is None else _named(read_units(path, unit, schema), ledger)
    return _Asked(y, values, positive, span, units, regression=regression)


def _named(units: Any, ledger: Path | None) -> Any:
    """Return units as the ledger calls them."""
    from noisewise.release import Units, name_of_unit

    return None if units is None else Units(units, name=name_of_unit(ledger, str(units.name)))


def _look(
    asked: _Asked, epsilon: float, delta: float, file: Path | None, schema: Path | None
) -> None:
    """Look at the records before they cost anything; of an engine's, at the names alone."""
    from noisewise.cli.predictions import look_at_predictions, read_columns
    from noisewise.datasets import look_at_names, look_at_names_alone
    from noisewise.working import tell

    if asked.engine is not None:
        look = look_at_names_alone(asked.engine.columns) if asked.units is None else None
        if look is not None and look.warnings:
            tell(str(look))
    elif asked.classes is None and not asked.regression:
        look = look_at_predictions(
            asked.labels, asked.scores, asked.positive, *asked.span, epsilon, asked.units, delta
        )
        if asked.units is None and file is not None:
            look += look_at_names(read_columns(file, "", "", schema))
        tell(str(look))
        look.require()


def read_predictions(
    path: Path,
    label: str,
    score: str,
    pos_label: str | None,
    schema: Path | None = None,
    regression: bool = False,
) -> tuple[Any, Any, Any]:
    """Return labels, scores and the positive label in the type of the labels."""
    import pandas as pd

    from noisewise.cli.predictions import read_columns

    frame = read_columns(path, label, score, schema)
    for option, column in (("--label", label), ("--score", score)):
        if column not in frame.columns:
            known = ", ".join(map(repr, frame.columns[:20]))
            raise ValueError(f"{option} {column!r} is not a column of {path.name!r}: {known}")
    missing = {name: int(frame[name].isna().sum()) for name in (label, score)}
    for name, count in missing.items():
        if count:
            raise ValueError(
                f"column {name!r} has missing values: leave such rows out, or put a public "
                "constant there; a rule that looks at one row at a time costs no privacy"
            )
    if not pd.api.types.is_numeric_dtype(frame[score]):
        raise ValueError(f"column {score!r} must hold numbers, got {frame[score].dtype}")
    labels = frame[label]
    positive: Any = pos_label
    if regression and not pd.api.types.is_numeric_dtype(labels):
        raise ValueError(f"column {label!r} must hold numbers, got {labels.dtype}")
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


def is_engine(where: str, query: str | None, table: str | None) -> bool:
    """Whether an engine counts: a database, a folder, or any file with a query."""
    from noisewise.ecdf.sources import is_url

    return query is not None or table is not None or is_url(where) or Path(where).is_dir()


def read_table(
    where: str,
    query: str | None,
    table: str | None,
    label: str | None,
    score: str | None,
    pos_label: str | None,
    unit: str | None = None,
) -> tuple[Any, str, str, Any]:
    """Return a table, names of its columns, and the positive label in the type of the labels."""
    from noisewise.ecdf import open_table
    from noisewise.ecdf.sources import open_source

    source = open_source(open_table(where, query=query, table=table))
    others = [name for name in source.columns if name != unit]
    if label is None and score is None and len(others) == 2:
        label, score = others
    if label is None or score is None:
        known = ", ".join(map(repr, source.columns[:20]))
        raise ValueError(
            f"say which columns to use, --label and --score, or select two of them: {known}"
        )
    return source, label, score, positive_of(source, label, pos_label)


def positive_of(source: Any, label: str, pos_label: str | None) -> Any:
    """Return the positive label in the type of a column of a table."""
    if pos_label is None or label not in source.columns or not source.is_numeric(label):
        return pos_label
    if source.is_boolean(label):  # whose words the table knows: "yes" of a CSV file is true
        return pos_label
    try:
        return float(pos_label)
    except ValueError as error:
        raise ValueError(
            f"--pos-label {pos_label!r} is not a number, but column {label!r} holds numbers"
        ) from error


def _title(where: str) -> str:
    """Return a name for the report, without the user and password of a URL."""
    from noisewise.ecdf.sources import is_url, shown

    return shown(where) if is_url(where) else Path(where).name


def read_units(path: Path, column: str, schema: Path | None = None) -> Any:
    """Return whose rows they are; the identifiers are never shown."""
    from noisewise.cli.predictions import read_columns

    frame = read_columns(path, "", "", schema)
    if column not in frame.columns:
        known = ", ".join(map(repr, frame.columns[:20]))
        raise ValueError(f"--unit {column!r} is not a column of {path.name!r}: {known}")
    if bool(frame[column].isna().any()):
        raise ValueError(
            f"column {column!r} has missing identifiers: whose rows those are is unknown, so "
            "nobody's can be bounded. Drop these rows, or give each an identifier of its own."
        )
    return frame[column]


@contextlib.contextmanager
def _account(ledger: Path | None, about: str) -> Iterator[Any]:
    """Give the account in that ledger; the notes say which analysis it was."""
    from noisewise.privacy import Ledger
    from noisewise.release import LedgerAccount

    if ledger is None:
        yield None
        return
    with Ledger.open(ledger) as book:
        yield LedgerAccount(book, book.relation, book.unit, about=about)


def _publish(
    found: Any, statement: Path | None, as_json: bool, report: Path | None, source: str
) -> None:
    """Write and show measures without curves: of several classes, or of a number."""
    from noisewise.cli.evaluation_report import measure_rows, unsure
    from noisewise.cli.predictions import finite
    from noisewise.privacy import round_up

    promise = found.statement()
    if statement is not None:
        statement.write_text(promise.to_json() + "\n", "utf-8")
    if report is not None:
        from noisewise.cli.evaluation_report import write_measures

        write_measures(found, report, source=source)
    if as_json:
        content = {**found.summary(), "statement": promise.to_dict()}
        typer.echo(json.dumps(finite(content), indent=2))
        return
    title = f"epsilon {round_up(promise.epsilon)}, protecting {promise.unit}"
    table = Table("measure", "private value", title=title, title_justify="left")
    summary = found.summary()
    for name, value in measure_rows(summary):
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    if unsure(summary):
        console.print(unsure(summary))
    for path in (report, statement):
        if path is not None:
            typer.echo(f"written: {path}")


def _publish_curves(
    found: Evaluation,
    summary: dict[str, Any],
    statement: Path | None,
    as_json: bool,
    report: Path | None,
    source: str,
    truth: tuple[Any, Any, Any] | None,
) -> None:
    """Write and show measures with their curves."""
    from noisewise.cli.predictions import finite
    from noisewise.working import working

    promise = found.statement()
    if report is not None:
        from noisewise.cli.evaluation_report import write_report

        with working("writing the report"):
            write_report(found, summary, report, source=source, truth=truth)
    if statement is not None:
        statement.write_text(promise.to_json() + "\n", "utf-8")
    if as_json:
        typer.echo(json.dumps(finite({**summary, "statement": promise.to_dict()}), indent=2))
        return
    _show(summary, found)
    for path in (report, statement):
        if path is not None:
            typer.echo(f"written: {path}")


def _show(summary: dict[str, Any], found: Evaluation) -> None:
    from noisewise.cli.evaluation_report import rows_of, says_no, unsure
    from noisewise.privacy import round_up

    promise = found.statement()
    title = (
        f"epsilon {round_up(promise.epsilon)}, delta {promise.delta:g}, protecting {promise.unit}"
    )
    table = Table("measure", "private value", "95 % interval", title=title, title_justify="left")
    for name, value, interval in rows_of(summary):
        table.add_row(name, value, interval)
    console = Console(highlight=False)
    console.print(table)
    said = unsure(summary) or says_no(summary["base_rate"], summary["recall"], summary["threshold"])
    if said:
        console.print(said)
