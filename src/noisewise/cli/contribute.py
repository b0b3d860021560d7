"""``noisewise contribute``: a party's part in a federated study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from noisewise.federated import Records

__all__ = ["contribute", "read_records"]


def contribute(
    data: Annotated[
        str,
        typer.Option(
            help="A .csv or .parquet file, a folder of parquet files, or the URL of a database; "
            "one row a record."
        ),
    ],
    column: Annotated[str, typer.Option(help="Column of the values, scores or probabilities.")],
    config: Annotated[Path, typer.Option(help="The party's configuration file (TOML).")],
    label: Annotated[
        str | None, typer.Option(help="Column of the true labels, if the study needs them.")
    ] = None,
    pos_label: Annotated[
        str | None, typer.Option(help="The positive label, if labels are not 0/1 or -1/1.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="A SELECT; files are the table called data.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Name of a table of the database, instead of a query.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="How the file is written, and its public classes.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="Column that says whose row it is, in a study that protects patients or the "
            "like. Never shown or sent."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Withdraw an earlier contribution first, if no release has used it."
        ),
    ] = False,
    preflight: Annotated[
        bool, typer.Option(help="Look at the records first; local, and not private.")
    ] = True,
) -> None:
    """Share this party's records with the servers of a study, then go offline.

    Records become shares on this machine; every server gets one of them, and one alone says
    nothing. (In a study with route "masks" this command runs until the round is over: its sums,
    with its part of the noise, leave under masks that cancel with those of the others.) If it is
    interrupted, run it again: it goes on where it was.

    Example: noisewise contribute --data mine.parquet --column score --label y --config north.toml

    Example: noisewise contribute --data mine.parquet --column score --label y --unit patient_nbr
    --config north.toml

    Example: noisewise contribute --data duckdb:///scores.db --table visits --column age
    """
    from noisewise.cli.evaluate import is_engine
    from noisewise.cli.predictions import look_at_contribution
    from noisewise.federated.network import ClientSettings, contribution, rows_of
    from noisewise.working import tell

    settings = ClientSettings.read(config)
    records = read_records(
        data, column, label, pos_label, schema, query=query, table=table, unit=unit
    )
    if is_engine(data, query, table) and (rests_on := rows_of(settings.study)):
        typer.echo(f"taken for granted: {rests_on}", err=True)
    elif preflight:
        look = look_at_contribution(records.values, records.positive, settings.study)
        tell(str(look))
    receipt = contribution.contribute(settings, records, replace=replace, progress=typer.echo)
    typer.echo(
        f"done: contribution {receipt['contribution'][:16]} of {settings.signer.name} to study "
        f"{receipt['study']}, round {receipt['round']}. This machine is not needed any more."
    )


def read_records(
    where: str | Path,
    column: str,
    label: str | None,
    pos_label: str | None,
    schema: Path | None = None,
    *,
    query: str | None = None,
    table: str | None = None,
    unit: str | None = None,
) -> Records:
    """Return the records of a file or table; missing values and wrong types are refused.

    Of a table, only these columns are read; shares are made of every record, on this machine.
    """
    from noisewise.cli.evaluate import is_engine, positive_of, read_predictions, read_units
    from noisewise.federated import Records
    from noisewise.privacy import unit_codes

    if is_engine(str(where), query, table):
        from noisewise.ecdf import open_table
        from noisewise.ecdf.sources import column_of, open_source

        source = open_source(open_table(where, query=query, table=table))
        wanted = positive_of(source, label, pos_label) if label else None
        return Records(*column_of(source, column, label, wanted, unit).arrays(unit))
    labels, values, positive = read_predictions(
        Path(where), label or column, column, pos_label if label else None, schema
    )
    pair: tuple[Any, Any] = (labels, values)
    records = Records.of(values) if label is None else Records.of(pair, positive)
    if unit is None:
        return records
    codes = unit_codes(read_units(Path(where), unit, schema), len(records))
    return Records(records.values, records.positive, codes)
