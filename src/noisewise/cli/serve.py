"""``noisewise serve``: an aggregation server of a federated study."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["serve"]


def serve(
    config: Annotated[Path, typer.Option(help="The server's configuration file (TOML).")],
    verbose: Annotated[bool, typer.Option(help="Log every release.")] = False,
) -> None:
    """Run an aggregation server until it is stopped.

    It keeps parties' shares, which say nothing alone, and answers analysts with noisy sums. All
    of its state is in the folder that the configuration names; it may be killed at any moment.

    Example: noisewise serve --config alpha.toml
    """
    from noisewise.federated.network import ServerSettings, run_server

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING)
    settings = ServerSettings.read(config)
    study = settings.study
    if study.noiseless_test:
        typer.echo("NOT PRIVATE: this study adds no noise. Made-up records only.", err=True)

    def ready(address: str) -> None:
        typer.echo(
            f"server {settings.name} at {address}: study {study.name}, round {study.round}, "
            f"fingerprint {study.fingerprint[:16]}"
        )

    run_server(settings, ready)
