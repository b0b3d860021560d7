"""The command ``noisewise datasets``: which datasets there are, and where each is now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

import noisewise as nw
from noisewise.errors import DatasetError

if TYPE_CHECKING:
    from noisewise.datasets import DatasetInfo, Schema

__all__ = ["app"]

app = typer.Typer(
    help="List the datasets, with licence, source and where each is found now.",
    invoke_without_command=True,
    no_args_is_help=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Name = Annotated[str, typer.Argument(help="Name of a dataset, as the list shows it.")]
_HOSTS = {"archive.ics.uci.edu": "UCI", "raw.githubusercontent.com": "GitHub"}


@app.callback()
def datasets(context: typer.Context, as_json: AsJson = False) -> None:
    """List the datasets, with licence, source and where each is found now."""
    if context.invoked_subcommand is not None:
        return
    entries = [nw.datasets.info(name) for name in nw.datasets.list_datasets()]
    if as_json:
        _print_json([_facts(entry) for entry in entries])
        return
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    grid.add_column("name", no_wrap=True)
    grid.add_column("rows", justify="right", no_wrap=True)
    grid.add_column("size", justify="right", no_wrap=True)
    grid.add_column("licence", no_wrap=True)
    grid.add_column("source", no_wrap=True)
    grid.add_column("found in", no_wrap=True)
    for entry in entries:
        grid.add_row(
            entry.name,
            str(entry.rows),
            _size(entry.size),
            entry.licence.split(";")[0],
            _host(entry),
            _where(entry).removeprefix("$"),
        )
    console = Console()
    console.print(grid)
    console.print(
        "\nDetails and traps: noisewise datasets show NAME. In Python: "
        "noisewise.datasets.load(NAME)",
        style="dim",
    )


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one dataset: citation, checksums, traps and its public schema.

    Example: noisewise datasets show adult
    """
    entry = _known(name)
    if as_json:
        facts = _facts(entry)
        if entry.kind == "table":
            facts["schema"] = json.loads(nw.datasets.schema_for(name).to_json())
        _print_json(facts)
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(entry.title)}[/bold]")
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in (
        ("name", entry.name),
        ("kind", entry.kind),
        ("records", entry.dimensions),
        ("label", f"{entry.target} ({_label(entry)})"),
        ("licence", entry.licence),
        ("citation", entry.citation),
        ("page", entry.page),
        ("source", entry.source_url),
        ("file", f"{entry.filename}, {_size(entry.size)}"),
        ("sha256", entry.sha256),
        ("content", entry.content),
        ("found", _found(entry)),
    ):
        grid.add_row(label, escape(text))
    console.print(grid)
    if entry.notes:
        console.print("\n[bold]Mind[/bold]")
        for note in entry.notes:
            console.print(f"- {escape(note)}")
    if entry.kind == "table":
        _show_schema(console, nw.datasets.schema_for(name))


@app.command()
def path(
    name: Name,
    download: Annotated[bool, typer.Option("--download", help="Fetch it if need be.")] = False,
) -> None:
    """Print the path of the file of a dataset; fail if it is nowhere yet.

    Example: noisewise datasets path adult
    """
    entry = _known(name)
    if nw.datasets.find_file(entry) is None and download:
        try:
            nw.datasets.load(name)
        except DatasetError as error:
            _fail(str(error))
    place = nw.datasets.find_file(entry)
    if place is None:
        _fail(
            f"no file of {name!r} is found yet; `noisewise datasets path {name} --download` "
            f"fetches it into {nw.datasets.cache_folder()}"
        )
    typer.echo(place[1])


def _show_schema(console: Console, schema: Schema) -> None:
    console.print("\n[bold]Public schema[/bold]")
    console.print(f"from: {escape(schema.source)}")
    console.print(
        f"{schema.width} numbers a record, each in "
        f"{'-1..1' if schema.scale == 'symmetric' else '0..1'}; "
        f"norm of a record at most {schema.norm_bound:.4g}"
    )
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    grid.add_column("column", overflow="fold", max_width=34)
    grid.add_column("kind", no_wrap=True)
    grid.add_column("rule", overflow="fold")
    for name, column in schema.columns.items():
        grid.add_row(escape(name), column.kind, escape(column.describe()))
    console.print(grid)


def _known(name: str) -> DatasetInfo:
    try:
        return nw.datasets.info(name)
    except DatasetError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(2)


def _facts(entry: DatasetInfo) -> dict[str, Any]:
    place = nw.datasets.find_file(entry)
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "records": entry.rows,
        "columns": entry.columns,
        "shape": list(entry.shape),
        "target": entry.target,
        "classes": entry.classes,
        "licence": entry.licence,
        "citation": entry.citation,
        "page": entry.page,
        "source": entry.source_url,
        "filename": entry.filename,
        "size": entry.size,
        "sha256": entry.sha256,
        "content": entry.content,
        "notes": list(entry.notes),
        "place": None if place is None else place[0].label,
        "path": None if place is None else str(place[1]),
    }


def _found(entry: DatasetInfo) -> str:
    place = nw.datasets.find_file(entry)
    if place is None:
        return _where(entry)
    try:
        nw.datasets.read_verified(entry, place[1])
    except DatasetError as error:
        return f"{place[1]} is wrong: {error}"
    return f"{place[1]} ({place[0].label}, verified)"


def _where(entry: DatasetInfo) -> str:
    place = nw.datasets.find_file(entry)
    if place is not None:
        return place[0].label
    offline = any(not source.files for source in entry.sources)
    return "scikit-learn" if offline else "to download"


def _host(entry: DatasetInfo) -> str:
    host = urlsplit(entry.source_url).hostname or ""
    return _HOSTS.get(host, host.split(".")[-2])


def _label(entry: DatasetInfo) -> str:
    return f"{entry.classes} classes" if entry.classes else "regression"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
