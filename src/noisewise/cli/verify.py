"""``noisewise verify``: derive the epsilon of a statement again, from the file alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["verify"]


def verify(
    statement: Annotated[Path, typer.Argument(help="A statement, as written by to_json().")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check a privacy statement. Exit code 0 if it holds, 1 if not."""
    from noisewise.errors import StatementError
    from noisewise.privacy import Statement
    from noisewise.privacy.statement import round_up
    from noisewise.privacy.verification import read_statement
    from noisewise.privacy.verification import verify as run

    console = Console(highlight=False)
    try:
        claim: Statement = read_statement(statement)
    except StatementError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "problems": [str(error)]}))
        else:
            console.print(f"[bold red]REJECTED[/] {error}", markup=True)
        raise typer.Exit(1) from error
    outcome = run(claim)
    if as_json:
        typer.echo(json.dumps({"ok": outcome.ok, **asdict(outcome)}, indent=2))
        raise typer.Exit(0 if outcome.ok else 1)
    other = "rdp" if claim.accountant == "pld" else "pld"
    table = Table("epsilon", "derived by", title=f"delta {claim.delta:g}, {claim.relation}")
    rows = [
        (outcome.stated, "the statement itself"),
        (outcome.recomputed, f"its accountant again ({claim.accountant})"),
        (outcome.other, f"the other accountant ({other})"),
        (outcome.independent, "an independent accountant"),
    ]
    for value, source in rows:
        table.add_row("not applicable" if value is None else round_up(value, 6), source)
    console.print(table)
    if outcome.ok:
        console.print("[bold green]HOLDS[/] the epsilon follows from the statement's own fields")
    for problem in outcome.problems:
        console.print(f"[bold red]WRONG[/] {problem}")
    raise typer.Exit(0 if outcome.ok else 1)
