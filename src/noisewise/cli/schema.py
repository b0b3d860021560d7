"""The command ``noisewise schema``: begin, check and show the public description of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["app"]

app = typer.Typer(
    help="Describe a table by public ranges and categories, in a file that people can read.",
    no_args_is_help=True,
)


@app.command()
def draft(
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    target: Annotated[str | None, typer.Option(help="Column to be predicted.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="Column that says whose row it is, e.g. patient_id.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: TABLE.toml.")
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(help="Lines above the names, such as a title. Default: found by --target."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a schema with names and kinds; ranges and categories are left for you.

    No range and no category is taken from the rows: those would be published with
    the schema, and no epsilon covers them.

    Example: noisewise schema draft patients.csv --target outcome
    """
    from noisewise.datasets import draft_schema
    from noisewise.working import working

    place = table.with_suffix(".toml") if out is None else out
    if place.exists() and not force:
        raise ValueError(f"{str(place)!r} exists; give another --out, or --force to replace it")
    with working("reading the table"):
        text = draft_schema(str(table), target=target, unit=unit, name=place.name, skip=skip)
    place.write_text(text, "utf-8")
    waiting = text.count('= "?"')
    typer.echo(f"written: {place}")
    typer.echo(f"{waiting} entries are left for you: replace each ? from public knowledge, then")
    typer.echo(f"  noisewise schema check {place} {table}")


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="The schema, .toml or .json.")],
    table: Annotated[
        Path | None, typer.Argument(help="The table, to be looked at on this machine only.")
    ] = None,
) -> None:
    """Tell all problems of a schema at once, and how the table fits it.

    What is said of the table are exact counts: hints for you, never to be published.
    Exit code 0 if training can begin, 1 if not.

    Example: noisewise schema check patients.toml patients.csv
    """
    from noisewise.datasets import Schema, SchemaError, look_at
    from noisewise.working import working

    console = Console(highlight=False)
    try:
        found = Schema.read(schema)
    except SchemaError as error:
        console.print(
            f"[bold red]Not yet:[/] {escape(str(error))}", soft_wrap=not console.is_terminal
        )
        raise typer.Exit(1) from None
    console.print(
        f"{escape(schema.name)} is complete: {len(found.columns)} columns become {found.width} "
        f"numbers a row."
    )
    if table is None:
        return
    with working("looking at the table"):
        looked = look_at(table, found)
    console.print(str(looked), markup=False, soft_wrap=not console.is_terminal)
    if looked.stops:
        raise typer.Exit(1)
    if found.target is not None:
        of = "" if found.unit is None else f" --unit 'one {found.unit}'"
        book = f"{table.stem}.ledger"
        typer.echo("Next:")
        typer.echo(f"  noisewise ledger create {book} --epsilon 2 --delta 1e-6{of}")
        typer.echo(f"  noisewise train {table} --schema {schema} --epsilon 1 --delta 1e-6 \\")
        typer.echo(f"      --ledger {book} --out model --report run.html")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered dataset, or a .json/.toml schema.")],
) -> None:
    """Print a finished schema as TOML: a registered dataset shows how one looks.

    Example: noisewise schema show adult
    """
    from noisewise.datasets import Schema, schema_for

    path = Path(name)
    found = Schema.read(path) if path.suffix in (".json", ".toml") else schema_for(name)
    typer.echo(found.to_toml(), nl=False)


@app.command()
def kinds() -> None:
    """List the kinds of columns and the keys of each.

    Example: noisewise schema kinds
    """
    typer.echo(_KINDS, nl=False)


_KINDS = """\
kind          keys (first ones are needed)
number        range = [0, 120]; transform = "log1p" | "sqrt" | "signed_log1p";
              missing = "indicator" | "zero"; or fill = 37.0, a public number
category      values = ["north", "south"]; other = true (unknown values get a
              number of their own); missing = true; ignore_case = true
ordered       values = ["low", "middle", "high"], from first to last; missing
yes/no        yes = ["ja"], no = ["nein"]; default: the usual words; missing
date          range = [2010-01-01, 2030-12-31]; format = "%d.%m.%Y" or a
              list of formats; missing
codes         groups = { heart = [[390, 459]], lung = [[460, 519]] }
identifier    names a person or a thing; never learnt from
drop          reason = "free text"; not used

A target is of kind yes/no, category or number. File format, version and all
keys: docs/schemas.md
"""
