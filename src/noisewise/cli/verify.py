"""``noisewise verify``: derive the epsilon of a statement again, from the file alone."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from noisewise.privacy import Signer, Statement, Verification

__all__ = ["verify"]


#: Within which a statement is verified or given up.
SECONDS = 60.0


def verify(
    statement: Annotated[Path, typer.Argument(help="A statement, as written by to_json().")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    signature: Annotated[
        Path | None,
        typer.Option(help="Its signature: ssh-keygen -Y sign -n file -f KEY statement.json"),
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option(help="Whose signatures count: a list of allowed signers, see ssh-keygen(1)."),
    ] = None,
) -> None:
    """Check a privacy statement, and who signed it. Exit code 0 if it holds, 1 if not.

    Example: noisewise verify trained/statement.json
    """
    from noisewise.errors import SignatureError, StatementError
    from noisewise.files import decode, read_foreign, read_foreign_text
    from noisewise.privacy import Statement, verify as run, verify_signature

    if (signature is None) != (signer is None):
        raise typer.BadParameter("--signature and --signer belong together: give both or none")
    signed_by: Signer | None = None
    try:
        data = read_foreign(statement)  # once: what is verified is what was signed
        if signature is not None and signer is not None:
            signed_by = verify_signature(
                data, read_foreign_text(signature), read_foreign_text(signer)
            )
        claim = Statement.from_json(decode(data, ascii(str(statement))))
        outcome = run(claim, seconds=SECONDS)
    except (StatementError, SignatureError) as error:
        _reject(str(error), as_json)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(_plain(claim, outcome, signed_by), indent=2, allow_nan=False))
    else:
        _show(claim, outcome, signed_by)
    raise typer.Exit(0 if outcome.ok else 1)


def _reject(reason: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"ok": False, "problems": [reason]}))
    else:
        Console(highlight=False).print(f"[bold red]REJECTED[/] {escape(reason)}")


def _plain(claim: Statement, outcome: Verification, signed_by: Signer | None) -> dict[str, Any]:
    assumed = [*claim.premises, *claim.assumptions]
    fields = {"ok": outcome.ok, **asdict(outcome), "assumptions": assumed}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            fields[name] = str(value)  # JSON has no word for it
    return fields | {"signed_by": None if signed_by is None else asdict(signed_by)}


def _show(claim: Statement, outcome: Verification, signed_by: Signer | None) -> None:
    from noisewise.privacy import other_accountant, round_up

    console = Console(highlight=False)
    other = other_accountant(claim.accountant)
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
    console.print("It covers no more, and holds only if all of this is true:")
    for sentence in (*claim.premises, *claim.assumptions):
        console.print(f"  - {escape(''.join(c if c.isprintable() else '?' for c in sentence))}")
    for problem in outcome.problems:
        console.print(f"[bold red]WRONG[/] {escape(problem)}")
    if signed_by is not None:
        who = escape(ascii(signed_by.principals)[1:-1])
        console.print(f"[bold green]SIGNED[/] by {who}, {escape(signed_by.key)}")
    else:
        console.print("who stated it is not checked: see --signature and --signer")
