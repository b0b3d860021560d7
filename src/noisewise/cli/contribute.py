"""``noisewise contribute``: a party's part in a federated study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from noisewise.federated.domain import Records

__all__ = ["contribute", "read_records"]


def contribute(
    data: Annotated[Path, typer.Option(help="A .csv or .parquet file, one row a record.")],
    column: Annotated[str, typer.Option(help="Column of the values, scores or probabilities.")],
    config: Annotated[Path, typer.Option(help="The party's configuration file (TOML).")],
    label: Annotated[
        str | None, typer.Option(help="Column of the true labels, if the study needs them.")
    ] = None,
    pos_label: Annotated[
        str | None, typer.Option(help="The positive label, if labels are not 0/1 or -1/1.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Withdraw an earlier contribution first, if no release has used it."
        ),
    ] = False,
) -> None:
    r"""Share this party's records with the servers of a study, then go offline.

    Records become shares on this machine; every server gets one of them, and one alone says
    nothing. (In a study with route "masks" this command runs until the round is over: its sums,
    with its part of the noise, leave under masks that cancel with those of the others.) If it is
    interrupted, run it again: it goes on where it was.

    \b
    noisewise contribute --data mine.parquet --column score --label y --config north.toml
    """
    from noisewise.federated.network import contribution
    from noisewise.federated.network.settings import ClientSettings

    settings = ClientSettings.read(config)
    records = read_records(data, column, label, pos_label)
    receipt = contribution.contribute(settings, records, replace=replace, progress=typer.echo)
    typer.echo(
        f"done: contribution {receipt['contribution'][:16]} of {settings.signer.name} to study "
        f"{receipt['study']}, round {receipt['round']}. This machine is not needed any more."
    )


def read_records(path: Path, column: str, label: str | None, pos_label: str | None) -> Records:
    """Return the records of a file; missing values and wrong types are refused."""
    from noisewise.cli.evaluate import read_predictions
    from noisewise.federated.domain import Records

    labels, values, positive = read_predictions(
        path, label or column, column, pos_label if label else None
    )
    if label is None:
        return Records.of(values)
    pair: tuple[Any, Any] = (labels, values)
    return Records.of(pair, positive)
