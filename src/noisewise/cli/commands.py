"""All subcommands of ``noisewise``, joined."""

from __future__ import annotations

import inspect
from typing import Any

import typer

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
from noisewise.cli.key import app as key
from noisewise.cli.ledger import app as ledger
from noisewise.cli.prove import prove
from noisewise.cli.schema import app as schema
from noisewise.cli.serve import serve
from noisewise.cli.study import app as study
from noisewise.cli.train import train
from noisewise.cli.verify import verify

__all__ = ["app"]

app = typer.Typer(
    name="noisewise",
    help="Learn from private data, with an epsilon that is true.",
    epilog="Exit codes: 0 done; 1 checked, and it does not hold (verify, prove, audit, debug, "
    "schema check, study check); 2 refused or wrong arguments; 3 not judged (debug); 130 stopped "
    "by Ctrl-C. NO_COLOR=1 prints plainly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
#: The commands by what a person wants to do, as help shows them.
TASKS: dict[str, list[Any]] = {
    "Train and evaluate": [("schema", schema), train, evaluate, ("datasets", datasets)],
    "Account": [("ledger", ledger), verify, budget],
    "Check": [debug, audit, prove, certify, ("bench", bench)],
    "Across parties": [("study", study), ("key", key), serve, contribute, collect],
}
for task, members in TASKS.items():
    for member in members:
        if isinstance(member, tuple):
            app.add_typer(member[1], name=member[0], rich_help_panel=task)
        else:
            app.command(rich_help_panel=task)(member)


def _flow(commands: typer.Typer) -> None:
    """Let the paragraphs of help fill the lines; a paragraph that is indented stays as it is."""
    for command in commands.registered_commands:
        paragraphs = inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
        command.help = "\n\n".join(
            text if text.startswith(" ") else " ".join(text.split()) for text in paragraphs
        )
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


_flow(app)


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
