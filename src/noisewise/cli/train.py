"""``noisewise train``: from a table or pictures to a private model, its statement and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["train"]


def train(
    data: Annotated[str, typer.Argument(help="A registered dataset, or a .csv/.parquet file.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")],
    delta: Annotated[
        float | None, typer.Option(help="Default: 1/(10 n), down to a power of ten.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="JSON of the public ranges and categories, for a file.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Label column, if not the schema's.")] = None,
    gradients: Annotated[
        str,
        typer.Option(
            help="auto, clipped, layerwise, automatic, factored, input-scaled or propagated."
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
    out: Annotated[
        Path | None, typer.Option(help="Folder for model, statement and ledger.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    compare: Annotated[
        bool, typer.Option(help="Train also without privacy and with flat clipping.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise, for trying out: NOT secret.")
    ] = None,
) -> None:
    r"""Train a private model on a table or on pictures.

    \b
    noisewise train adult --epsilon 1 --gradients factored --report run.html
    """
    from noisewise.cli.training_job import Comparison, read_data, train_plain, train_private
    from noisewise.estimators import save_estimator
    from noisewise.privacy.statement import round_up

    for path in (report, out):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"no folder at {str(path.parent)!r} for {path.name!r}")
    if not 0 < test < 1:
        raise ValueError(f"--test must lie between 0 and 1, got {test}")
    console = Console(highlight=False)
    records = read_data(data, schema, target, test, 0 if seed is None else seed)
    console.print(
        f"{records.name}: {len(records.y_train):,} records to learn from, "
        f"{len(records.y_test):,} to measure with"
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
        "verbose": True,
    }
    watched: list[Any] = []

    def more(x: Any, y: Any) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if report is not None:
            from noisewise.analysis.clipping_bias import BiasCallback

            watched.append(BiasCallback(x, y, every=max(1, steps // 12), chunk=256))
            options["callbacks"] = list(watched)
        if out is not None:
            options["ledger"] = out / f"ledger-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        return options

    if out is not None:
        out.mkdir(exist_ok=True)
    trained = train_private(records, settings, more)
    statement = trained.model.statement_
    rows = [Comparison(f"private, {gradients}", statement.epsilon, trained.score, trained.seconds)]
    if compare:
        if gradients not in ("auto", "clipped"):
            flat = train_private(records, {**settings, "gradients": "clipped"})
            promise = flat.model.statement_.epsilon
            rows.append(Comparison("private, flat clipping", promise, flat.score, flat.seconds))
        plain = train_plain(records, trained.model)
        rows.append(Comparison("not private", None, plain.score, plain.seconds))
    measure = "R2" if records.regression else "accuracy"
    table = Table("model", f"{measure} on held-out records", "epsilon", "seconds")
    for row in rows:
        promised = "none" if row.epsilon is None else round_up(row.epsilon)
        table.add_row(row.name, f"{row.score:.4f}", promised, f"{row.seconds:.1f}")
    console.print(table)
    console.print(
        f"The {measure} above was measured without noise: to publish it, use noisewise evaluate."
    )
    if compare and seed is None and len(rows) > 2:
        console.print(
            "Two private models were trained on the same records. Publishing both costs the sum "
            "of their budgets."
        )
    console.print(str(statement))
    if out is not None:
        save_estimator(trained.model, out)
        (out / "statement.json").write_text(statement.to_json() + "\n", "utf-8")
        console.print(f"written: {out}/ (model, statement, ledger)")
    if report is not None:
        from noisewise.cli.training_report import write_training_report

        write_training_report(report, records, trained, rows, watched[0].series)
        console.print(f"written: {report}")


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
