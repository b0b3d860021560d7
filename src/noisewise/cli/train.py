"""``noisewise train``: from a table or pictures to a private model, its statement and a report."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from noisewise.cli.training_job import Comparison
    from noisewise.cli.training_run import Kept
    from noisewise.privacy import Statement
    from noisewise.release import SealedAccount

__all__ = ["train"]


def train(
    data: Annotated[str, typer.Argument(help="A registered dataset, or a .csv/.parquet file.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")],
    delta: Annotated[
        float | None, typer.Option(help="Default: 1/(10 n), down to a power of ten.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Public ranges and categories of a file: .toml or .json.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Label column: the schema's target.")] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Column that says who a row belongs to: protect all rows of one."),
    ] = None,
    gradients: Annotated[
        str,
        typer.Option(
            help="How one record's influence is bounded: auto, clipped, layerwise, automatic, "
            "factored, input-scaled or propagated."
        ),
    ] = "auto",
    hidden: Annotated[
        str, typer.Option(help="Hidden layers: auto, none, or sizes such as 64,32.")
    ] = "auto",
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 150,
    sample_rate: Annotated[
        float, typer.Option(help="Probability with which a record takes part in a step.")
    ] = 0.3,
    learning_rate: Annotated[float | None, typer.Option(help="Default: chosen.")] = None,
    test: Annotated[
        float, typer.Option(help="Part held out for measuring, if none is published.")
    ] = 0.2,
    evaluate: Annotated[
        float,
        typer.Option(
            help="Part of epsilon for measuring the model privately on held-out records, so that "
            "model and measures may be published under one statement. 0: measured without noise."
        ),
    ] = 0.0,
    threshold: Annotated[
        float, typer.Option(help="Probability from which --evaluate counts a record as positive.")
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option(help="Folder for model, statement and ledger.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Charge this ledger, beside other analyses; needs --out.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that was stopped in --out.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    compare: Annotated[
        bool, typer.Option(help="Train also without privacy and with flat clipping.")
    ] = False,
    preflight: Annotated[
        bool, typer.Option(help="Look at the records first; local, and not private.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise, for trying out: NOT secret.")
    ] = None,
) -> None:
    """Train a private model on a table or on pictures.

    A run with --out can be stopped (Ctrl-C) and resumed; every step is paid once.

    Example: noisewise train adult --epsilon 1 --report run.html
    """
    from noisewise.cli.outputs import check_files, check_folder
    from noisewise.cli.predictions import finite
    from noisewise.cli.training_job import Comparison, read_data, train_private
    from noisewise.cli.training_quality import (
        evaluation_events,
        local_measures,
        look_at_measuring,
        private_measures,
        seldom_yes,
        summary_of,
    )
    from noisewise.cli.training_run import begin, finishing
    from noisewise.release import compose
    from noisewise.working import working

    check_files(report, ledger)
    check_folder(out)
    _check_parts(test, evaluate, threshold)
    if out is None and (ledger is not None or resume):
        raise ValueError("--ledger and --resume need --out: what was paid for must be kept")
    console = Console(highlight=False, stderr=as_json)
    with working("reading the records"):
        records = read_data(data, schema, target, test, 0 if seed is None else seed, unit)
    console.print(
        f"{records.name}: {len(records.y_train):,} {records.words} to learn from, "
        f"{len(records.y_test):,} to measure with"
        + ("" if records.units is None else f"; each {records.units.name} is protected")
    )
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": "auto" if delta is None else delta,
        "gradients": gradients,
        "hidden_layer_sizes": _sizes(hidden),
        "steps": steps,
        "sample_rate": sample_rate,
        "learning_rate": "auto" if learning_rate is None else learning_rate,
        "random_state": seed,
        "preflight": preflight,
        "verbose": True,
    }
    if evaluate and preflight:
        _warn(look_at_measuring(records, evaluate * epsilon).warnings)
    kept = None
    if out is not None:
        said = {**settings, "data": records.name, "unit": unit, "evaluate": evaluate, "test": test}
        kept = begin(out, ledger, resume, f"train {records.name}", said)
    watched: list[Any] = []
    ended: list[Any] = []

    def watch(x: Any, y: Any) -> dict[str, Any]:
        if report is None:
            return {"callbacks": ended}
        from noisewise.analysis.clipping_bias import BiasCallback

        watched.append(BiasCallback(x, y, every=max(1, steps // 12), chunk=256))
        return {"callbacks": [*ended, *watched]}

    measured: Any = None
    numbers: dict[str, Any] | None = None
    share = evaluate * epsilon
    events = evaluation_events(records, share) if evaluate else ()
    with contextlib.ExitStack() as held:
        if kept is not None:
            ended.append(held.enter_context(finishing()))
        try:
            trained, account = train_private(records, settings, watch, kept, events, held)
            model = trained.model
            if evaluate:
                with warnings.catch_warnings(), working("measuring the model"):
                    # What is lost in the noise is said in the table.
                    warnings.simplefilter("ignore", RuntimeWarning)
                    measured = private_measures(records, model, share, account, seed)
                    numbers = summary_of(measured, threshold)
                parts = [model.statement_, measured.statement()]
                model.statement_ = compose(parts, model.statement_.delta)
            if kept is not None and account is not None:
                _keep(model, numbers, kept, account)
        except KeyboardInterrupt:
            _stopped(kept)
            raise typer.Exit(130) from None
    statement = model.statement_
    name = "private" if gradients == "auto" else f"private, {gradients}"
    rows = [Comparison(name, statement.epsilon, trained.score, trained.seconds)]
    if compare:
        rows += _others(records, model, settings)
    local = local_measures(records, model)
    if report is not None:
        from noisewise.cli.training_report import write_training_report

        with working("writing the report"):
            write_training_report(
                report, records, trained, rows, watched[0].series, measured, numbers
            )
    if as_json:
        content = {
            "statement": statement.to_dict(),
            "evaluation": numbers,
            "not_private": local,
            "out": None if out is None else str(out),
            "report": None if report is None else str(report),
        }
        typer.echo(json.dumps(finite(content), indent=2, default=str))
        return
    word = "R2" if records.regression else "accuracy"
    _show(console, rows, local, numbers, word, seldom_yes(model, local))
    if gradients == "auto" and not records.pictures:
        console.print(
            "Each record's gradient was clipped as a whole (--gradients clipped): the simplest "
            "and fastest choice, and on Adult none of the others is more than 0.2 points better "
            "(documentation: scikit-learn estimators, Defaults)."
        )
    if compare and seed is None and len(rows) > 2:
        console.print(
            "Two private models were trained on the same records. Publishing both costs the sum "
            "of their budgets."
        )
    _say_what_is_written(console, statement, kept, report, numbers is not None, ledger is None)


def _check_parts(test: float, evaluate: float, threshold: float) -> None:
    for name, part in (("--test", test), ("--evaluate", evaluate), ("--threshold", threshold)):
        if not 0 <= part < 1 or (name == "--test" and not part):
            raise ValueError(f"{name} must lie between 0 and 1, got {part}")


def _warn(texts: Iterable[str]) -> None:
    from noisewise.working import tell

    for text in texts:
        tell(f"Warning: {text}")


def _others(records: Any, model: Any, settings: dict[str, Any]) -> list[Comparison]:
    """Train what a private model is compared with: flat clipping, and no privacy."""
    from noisewise.cli.training_job import Comparison, train_plain, train_private
    from noisewise.working import working

    rows = []
    if settings["gradients"] not in ("auto", "clipped"):
        flat, _ = train_private(records, {**settings, "gradients": "clipped"})
        promise = flat.model.statement_.epsilon
        rows.append(Comparison("private, flat clipping", promise, flat.score, flat.seconds))
    with working("training without privacy, to compare"):
        plain = train_plain(records, model)
    return [*rows, Comparison("not private", None, plain.score, plain.seconds)]


def _keep(model: Any, numbers: dict[str, Any] | None, kept: Kept, account: SealedAccount) -> None:
    """Write down a finished run; the model last: where it lies, all that belongs to it lies too."""
    from noisewise.cli.predictions import finite
    from noisewise.estimators import save_estimator

    out = kept.folder
    (out / "statement.json").write_text(model.statement_.to_json() + "\n", "utf-8")
    if numbers is not None:
        text = json.dumps(finite(numbers), indent=2)
        (out / "evaluation.json").write_text(text + "\n", "utf-8")
    save_estimator(model, out)
    kept.finished(account)


def _say_what_is_written(
    console: Console,
    statement: Statement,
    kept: Kept | None,
    report: Path | None,
    measured: bool,
    own_ledger: bool,
) -> None:
    from noisewise.privacy import round_up

    if kept is None:
        console.print(str(statement))
    else:
        out = kept.folder
        console.print(
            f"Privacy statement: epsilon {round_up(statement.epsilon)}, delta {statement.delta:g}, "
            f"protecting {statement.unit}. To read it in full, with its assumptions: noisewise "
            f"verify {out}/statement.json"
        )
        _show_ledger(console, kept.ledger, round_up)
        parts = ["model", "statement", *["measures"] * measured, *["ledger"] * own_ledger]
        console.print(f"written: {out}/ ({', '.join(parts)})")
    if report is not None:
        console.print(f"written: {report}")


def _show(
    console: Console,
    rows: Any,
    local: dict[str, float],
    numbers: dict[str, Any] | None,
    word: str,
    seldom: str,
) -> None:
    from noisewise.cli.evaluation_report import measure_rows, says_no, unsure
    from noisewise.cli.predictions import finite
    from noisewise.privacy import round_up

    table = Table("model", f"{word} on held-out records", "epsilon", "seconds")
    for row in rows:
        promised = "none" if row.epsilon is None else round_up(row.epsilon)
        table.add_row(row.name, f"{row.score:.4f}", promised, f"{row.seconds:.1f}")
    console.print(table)
    found = ", ".join(f"{name} {value:.4g}" for name, value in local.items())
    console.print(f"On held-out records, without noise and NOT private: {found}.")
    if seldom and numbers is None:
        console.print(seldom)
    if numbers is None:
        console.print(
            "To publish how good the model is, train with --evaluate 0.2 (one budget, one "
            "statement) or use noisewise evaluate."
        )
        return
    table = Table("private measure", "value")
    for name, value in measure_rows(numbers):
        table.add_row(name, value)
    console.print(table)
    if unsure(numbers):
        console.print(unsure(numbers))
    elif "auc" in numbers and (
        told := says_no(numbers["base_rate"], numbers["recall"], numbers["threshold"])
    ):
        console.print(told)
    elif any(value is None for value in finite(numbers).values()):
        console.print(
            "Some measures are lost in the noise. More held-out rows (--test), a larger part of "
            "epsilon (--evaluate) or a larger epsilon would show them."
        )


def _show_ledger(console: Console, path: Path, round_up: Any) -> None:
    from noisewise.privacy import Ledger

    with Ledger.open(path) as book:
        delta = book.delta
        budget = "" if book.budget is None else f" of {book.budget[0]:g}"
        spent = round_up(book.spent())
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    console.print(
        f"{shown} now holds epsilon {spent}{budget} at delta {delta:g}, all analyses together: "
        f"noisewise ledger show {shown}"
    )


def _stopped(kept: Any) -> None:
    from noisewise.working import tell

    command = ""
    if kept is None:
        said = "Stopped. Nothing was kept or released. A run with --out can be resumed."
    elif not kept.checkpoint.exists():
        said = "Stopped before the first step: nothing was charged. The same command begins again."
    else:
        given = [part for part in sys.argv[1:] if part != "--resume"]
        said = (
            f"Stopped. The steps that were taken stay charged in {kept.ledger.name}. To go on "
            "where it stopped, without paying for a step twice:"
        )
        command = f"  noisewise {shlex.join(given)} --resume"
    tell(said)
    if command:
        typer.echo(command, err=True)  # in one piece, to be copied


def _sizes(text: str) -> Any:
    if text == "auto":
        return "auto"
    if text in ("none", "0", ""):
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--hidden must be auto, none or whole numbers with commas, got {text!r}"
        ) from None
