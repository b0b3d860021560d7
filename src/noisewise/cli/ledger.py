"""The command ``noisewise ledger``: begin a ledger, and see what was spent by whom for what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from noisewise.privacy import Ledger

__all__ = ["app", "rows_of"]

app = typer.Typer(
    help="Begin a ledger, and see what was spent by whom for what.", no_args_is_help=True
)
_STEP = re.compile(r"(?P<run>.*): step \d+")


@app.command()
def create(
    path: Annotated[Path, typer.Argument(help="File of the new ledger.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Budget that no charge may exceed; default: none.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the budget.")] = 1e-6,
    unit: Annotated[str, typer.Option(help="What is protected.")] = "one record",
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
) -> None:
    """Begin a ledger for one dataset: every analysis of it is charged there.

    Example: noisewise ledger create hospital.ledger --epsilon 3 --delta 1e-6
    """
    from noisewise.privacy import Ledger

    if not path.absolute().parent.is_dir():
        raise ValueError(f"no folder at {str(path.parent)!r} for {path.name!r}")
    Ledger.create(path, epsilon=epsilon, delta=delta, unit=unit, relation=relation).close()
    allowed = "adds up, without a budget" if epsilon is None else f"epsilon {epsilon:g}"
    typer.echo(f"written: {path} ({allowed}, delta {delta:g}, {relation}, {unit})")
    typer.echo(f"Give --ledger {path} to train and evaluate, or ledger= in Python.")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="File of a ledger.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what was spent by whom for what, together and what is left.

    Example: noisewise ledger show hospital.ledger
    """
    from noisewise.privacy import Ledger, round_up

    with Ledger.open(path) as ledger:
        rows = rows_of(ledger)
        delta = ledger.delta
        spent = ledger.spent() if rows else 0.0
        budget = ledger.budget
        bounds = [row["unit_rows"] for row in rows if row["unit_rows"] is not None]
        most = max(bounds, default=None)
        about = f"{ledger.relation}, {ledger.unit}"
        if most is not None:
            where = "" if len(bounds) == len(rows) else " in releases that say so"
            about += f", of which at most {most} row{'s' if most > 1 else ''} count{where}"
    if as_json:
        content = {
            "spent": spent, "delta": delta, "budget": None if budget is None else budget[0],
            "protects": about, "unit_rows": most, "charges": rows,
        }  # fmt: skip
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False)
    if not rows:
        allowed = "no budget" if budget is None else f"epsilon {budget[0]:g}"
        typer.echo(f"nothing was spent yet; {allowed} at delta {delta:g} ({about})")
        return
    columns = ["what", "releases", "kind", *(["rows of a unit"] if bounds else []), "epsilon alone"]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        alone = round_up(row["epsilon"])
        counted = ["all" if row["unit_rows"] is None else str(row["unit_rows"])] if bounds else []
        table.add_row(escape(row["what"]), str(row["releases"]), row["kind"], *counted, alone)
    console.print(table)
    if budget is None:
        total = f"epsilon {round_up(spent)} at delta {delta:g}; no budget was set"
    else:
        left = max(0.0, budget[0] - spent)
        total = (
            f"epsilon {round_up(spent)} of epsilon {budget[0]:g} at delta {delta:g}, so about "
            f"{left:.3g} is left"
        )
    more = " All releases are added up by one accountant, which needs less than the sum."
    console.print(f"Together: {total} ({about}).{more if len(rows) > 1 else ''}")


def rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Return one row for each analysis, in the order in which they began."""
    from noisewise.privacy import epsilon_of, rows_of_units, tightest
    from noisewise.privacy.events import simplify

    groups: dict[tuple[str, str], list[Any]] = {}
    for event, note in ledger.entries:
        found = _STEP.fullmatch(note)
        what = found["run"] if found else (note or "without a note")
        groups.setdefault((what, event.kind), []).append(event)
    rows = []
    for (what, kind), events in groups.items():
        history = simplify(events)
        delta = ledger.delta
        accountant = ledger.accountant if delta else tightest(history)
        alone = epsilon_of(history, delta=delta, relation=ledger.relation, accountant=accountant)
        rows.append(
            {
                "what": what,
                "releases": sum(event.count for event in events),
                "kind": kind,
                "epsilon": alone,
                "unit_rows": rows_of_units(history),
            }
        )
    return rows
