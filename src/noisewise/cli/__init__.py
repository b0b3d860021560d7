"""The ``noisewise`` command. Each subcommand is a small module; this one joins them."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from noisewise._version import __version__
from noisewise.cli.audit import audit
from noisewise.cli.bench import app as bench
from noisewise.cli.budget import budget
from noisewise.cli.certify import certify
from noisewise.cli.collect import collect
from noisewise.cli.contribute import contribute
from noisewise.cli.datasets import app as datasets
from noisewise.cli.debug import debug
from noisewise.cli.evaluate import evaluate
from noisewise.cli.prove import prove
from noisewise.cli.serve import serve
from noisewise.cli.train import train
from noisewise.cli.verify import verify
from noisewise.errors import NoisewiseError

__all__ = ["app", "main"]

app = typer.Typer(
    name="noisewise",
    help="Learn from private data, with an epsilon that is true.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(train)
app.command()(budget)
app.command()(verify)
app.command()(certify)
app.command()(prove)
app.command()(evaluate)
app.command()(audit)
app.command()(debug)
app.command()(serve)
app.command()(contribute)
app.command()(collect)
app.add_typer(datasets, name="datasets")
app.add_typer(bench, name="bench")


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Join the subcommands; typer needs a function to hang options on."""


def main() -> None:
    """Run the command; refusals become one clear sentence and exit code 2."""
    try:
        app()
    except (NoisewiseError, ValueError) as error:
        Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {_escape(str(error))}")
        sys.exit(2)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
