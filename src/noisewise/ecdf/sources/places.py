"""Tables by their address: a database URL with a query, a file, a folder of parquet files."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noisewise.ecdf.sources.pushed import quietly

__all__ = ["is_url", "open_table", "read_place", "shown"]

#: Whole numbers that are no numbers: 007 and 7 are two people.
_PADDED = r"^\s*[+-]?0[0-9]"
#: Names that DuckDB gives columns of a file without a line of names.
_MADE_UP = re.compile(r"column\d+")
EXTRA = "pip install 'noisewise[warehouse]'"


def is_url(where: Any) -> bool:
    """Whether this is the address of a database rather than a path."""
    return isinstance(where, str) and "://" in where


def open_table(where: str | Path, *, query: str | None = None, table: str | None = None) -> Any:
    """Return a table of a database, or of files, as something that `data=` takes.

    Parameters
    ----------
    where : str or Path
        The URL of a database as Ibis takes it (``duckdb:///scores.db``, ``sqlite:///scores.db``,
        ``postgres://user@host/database``, ...), a ``.parquet`` or ``.csv`` file, or a folder of
        parquet files.
    query : str, optional
        A SELECT. For files, the table is called ``data``.
    table : str, optional
        Name of a table of the database, instead of a query.

    Examples
    --------
    >>> import tempfile, pathlib, pandas, noisewise as nw
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> pandas.DataFrame({"age": [30.0, 41.0, 57.0]}).to_parquet(folder / "part.parquet")
    >>> young = open_table(folder, query="select age from data where age < 50")
    >>> F = nw.ecdf.dp_ecdf("age", data=young, bounds=(0, 128), bins=128, epsilon=1.0)
    """
    if query is not None and table is not None:
        raise ValueError("give a query or the name of a table, not both")
    if not is_url(where):
        return _file(Path(where), query, table)
    if query is None and table is None:
        raise ValueError(f"{shown(str(where))!r} is a database: say which query, or which table")
    kind, _, rest = str(where).partition("://")
    connection = _engine_file(kind, rest) if kind in ("duckdb", "sqlite") else None
    if connection is None:
        ibis = _imported("ibis")
        connection = quietly(f"connect to {shown(str(where))!r}", lambda: ibis.connect(str(where)))
    if query is not None:
        return _selected(lambda: connection.sql(query))
    return quietly(f"find table {table!r}", lambda: connection.table(table))


def _selected(ask: Callable[[], Any]) -> Any:
    """Return what a query selects."""
    found = quietly("take this query", ask)
    if found is None:
        raise ValueError("the query selects nothing: give one SELECT")
    return found


def _engine_file(kind: str, rest: str) -> Any:
    """Return a connection to a database that is one file; it is never made, or written to.

    As SQLAlchemy writes it, three slashes and a path: of the current folder or, with a fourth
    slash, of the root.
    """
    name = rest.partition("?")[0].removeprefix("/")
    path = Path(name)
    if not name or not path.is_file():
        raise ValueError(f"no database at {name!r}")
    if kind == "duckdb":  # itself: its relations are taken as they are
        duckdb = _imported("duckdb")
        connect = lambda: duckdb.connect(str(path), read_only=True)  # noqa: E731
    else:
        ibis = _imported("ibis")
        connect = lambda: ibis.sqlite.connect(path)  # noqa: E731
    return quietly(f"open the database at {name!r}", connect)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"databases are reached through {name}: {EXTRA}") from error


def read_place(where: str | Path) -> Any:
    """Return the table at a path."""
    return open_table(where)


def _file(path: Path, query: str | None, table: str | None) -> Any:
    if table is not None:
        raise ValueError(f"{str(path)!r} is no database: files have a query, or neither")
    if not path.exists():
        raise ValueError(f"no file or folder at {str(path)!r}")
    suffix = path.suffix.lower()
    if path.is_dir():
        if next(path.rglob("*.parquet"), None) is None:
            raise ValueError(f"{str(path)!r} holds no .parquet files")
    elif suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path.name!r}: only .csv and .parquet files and folders can be read")
    is_csv = suffix == ".csv" and path.is_file()
    if importlib.util.find_spec("duckdb") is None:
        if query is not None:
            raise ImportError(f"queries of files are run by DuckDB: {EXTRA}")
        return quietly(f"read {str(path)!r}", lambda: _arrow(path, is_csv))
    import duckdb

    def read() -> Any:
        connection = duckdb.connect()
        if is_csv:
            return _typed(connection, str(path))
        return connection.read_parquet(str(path / "**" / "*.parquet" if path.is_dir() else path))

    data = quietly(f"read {str(path)!r}", read)
    return data if query is None else _selected(lambda: data.query("data", query))


def _typed(connection: Any, path: str) -> Any:
    """Read a file of text with DuckDB; what would lose zeros in front as a number stays text."""
    # All rows are looked at for the types, as pandas does.
    found = connection.read_csv(path, sample_size=-1)
    whole = [n for n, kind in zip(found.columns, found.dtypes, strict=True) if "INT" in str(kind)]
    if not whole:
        return found
    options = {"sample_size": -1, "header": not all(map(_MADE_UP.fullmatch, found.columns))}
    texts = connection.read_csv(path, dtype=dict.fromkeys(whole, "VARCHAR"), **options)
    asked = ", ".join(
        f"coalesce(bool_or(regexp_matches({_quoted(name)}, '{_PADDED}')), false)" for name in whole
    )
    (answers,) = texts.aggregate(asked).fetchall()
    padded = [name for name, is_padded in zip(whole, answers, strict=True) if is_padded]
    if not padded:
        return found
    return connection.read_csv(path, dtype=dict.fromkeys(padded, "VARCHAR"), **options)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _arrow(path: Path, is_csv: bool) -> Any:
    """Return the same with PyArrow."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.dataset as ds

    if not is_csv:
        return ds.dataset(path, format="parquet")

    def read(texts: list[str]) -> Any:
        kinds = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
        return ds.dataset(path, format=ds.CsvFileFormat(convert_options=kinds))

    schema = ds.dataset(path, format="csv").schema
    padded = set()
    whole = [field.name for field in schema if pa.types.is_integer(field.type)]
    for batch in read(whole).scanner(columns=whole).to_batches() if whole else ():
        for name in whole:
            if pc.any(pc.match_substring_regex(batch[name], _PADDED)).as_py():
                padded.add(name)
    return read(sorted(padded))


def shown(url: str) -> str:
    """Return an address without what may be a password."""
    kind, _, rest = url.partition("://")
    return f"{kind}://{rest.rpartition('@')[2].partition('?')[0]}"
