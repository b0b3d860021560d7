"""``noisewise key new``: a signing key of a party or analyst, or a server's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Keys of parties, analysts and servers.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keep `new` a word of its own."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the party, analyst or server.")],
    folder: Annotated[Path, typer.Option(help="Where to write the two files.")] = Path(),
    host: Annotated[
        str | None,
        typer.Option(
            help="For a server without a certificate of a public authority: the name under which "
            "it is reached. Then NAME.tls.key stays here and NAME.crt is sent."
        ),
    ] = None,
) -> None:
    """Make a key on this machine: NAME.key stays here, NAME.public is sent to the organiser.

    Example: noisewise key new north

    Example: noisewise key new alpha --host alpha.example
    """
    from noisewise.federated.network import new_certificate, new_key

    if host is not None:
        certificate = new_certificate(name, host, folder)
        typer.echo(f"{folder / f'{name}.tls.key'}: secret; it never leaves this machine")
        typer.echo(f"{certificate}: send this to whoever runs 'noisewise study new'; for a year")
        return
    public = new_key(name, folder)
    typer.echo(f"{folder / f'{name}.key'}: secret; it never leaves this machine")
    typer.echo(f"{public}: send this to whoever runs 'noisewise study new'")
    typer.echo(public.read_text("utf-8").strip())
