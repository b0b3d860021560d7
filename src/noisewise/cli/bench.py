"""The command ``noisewise bench``: contests that anybody can run again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Contests that anybody can run again.")


@app.callback()
def _root() -> None:
    """Keep ``mutants`` a subcommand, also while it is the only one."""


@app.command()
def mutants(
    rounds: Annotated[
        list[str] | None, typer.Option("--round", help="Rounds of bugs (if not given: all)")
    ] = None,
    bug: Annotated[list[str] | None, typer.Option(help="Single bugs by name")] = None,
    effort: Annotated[str, typer.Option(help="quick, default or thorough")] = "default",
    correct: Annotated[int, typer.Option(help="How many runs of correct variants")] = 0,
    others: Annotated[bool, typer.Option(help="Run the other tools too")] = True,
    store: Annotated[
        Path | None, typer.Option(help="File in which results are kept, to go on later")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds")] = float("inf"),
    out: Annotated[Path | None, typer.Option(help="Write the tables here, as Markdown")] = None,
) -> None:
    """Run the bug finder and other tools on training with known bugs.

    Exit code 1 if a bug is missed or correct training is accused.

    Example: noisewise bench mutants
    """
    from noisewise.cli.mutant_contest import (
        TOOLS,
        Contest,
        Store,
        judge_correct,
        judge_mutant,
    )
    from noisewise.debugging import mutants as catalogue

    console = Console(highlight=False)
    kept = Store(store)
    tools = tuple(tool for tool in TOOLS if tool.installed and (others or "audit" not in tool.name))
    contest = Contest(effort, tools)
    chosen = catalogue.mutants(*(rounds or ()))
    if bug:
        chosen = tuple(mutant for mutant in chosen if mutant.bug in bug)
    if not chosen:
        raise ValueError(f"no such bugs; rounds are {', '.join(catalogue.ROUNDS)}")
    end = time.monotonic() + seconds
    for mutant in chosen:
        if time.monotonic() > end:
            break
        row = judge_mutant(kept, mutant, effort, tools)
        contest.bugs.append((mutant, row))
        console.print(f"{mutant.number:4d} {mutant.bug}: {', '.join(row['bugs']) or 'MISSED'}")
    for index in range(correct):
        if time.monotonic() > end:
            break
        found = judge_correct(kept, index, effort)
        contest.correct.append(found)
        if found["verdict"] == "bug":
            console.print(f"[bold red]accused[/] {found}")
    table = Table(title="Bugs caught")
    for name in ("tool", "bugs", ""):
        table.add_column(name)
    for line in contest.leaders():
        table.add_row(*line)
    console.print(table)
    if correct:
        console.print(
            f"correct variants: {len(contest.correct)} runs, {len(contest.alarms)} accused"
        )
    if out is not None:
        out.write_text(contest.markdown(), encoding="utf-8")
    missed = any(row["verdict"] != "bug" for _, row in contest.bugs)
    raise typer.Exit(1 if missed or contest.alarms else 0)
