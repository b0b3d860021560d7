"""``noisewise key new``: a signing key of a party or analyst."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Signing keys of parties and analysts.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keep `new` a word of its own."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the party or analyst, as in the study.")],
    folder: Annotated[Path, typer.Option(help="Where to write the two files.")] = Path(),
) -> None:
    """Make a key on this machine: NAME.key stays here, NAME.public is sent to the organiser.

    Example: noisewise key new north
    """
    from noisewise.federated.network.setup import new_key

    public = new_key(name, folder)
    typer.echo(f"{folder / f'{name}.key'}: secret; it never leaves this machine")
    typer.echo(f"{public}: send this to whoever runs 'noisewise study new'")
    typer.echo(public.read_text("utf-8").strip())
