"""Load a dataset by name from wherever it is, verified, or say what was tried."""

from __future__ import annotations

import warnings

import pandas as pd

from noisewise.datasets import registry
from noisewise.datasets.content import Images, Table, content_hash
from noisewise.datasets.download import Transfer, fetch
from noisewise.datasets.parse import Content, parse
from noisewise.datasets.places import cache_folder, places, read_verified, store
from noisewise.datasets.raw import unpack
from noisewise.datasets.registry import DatasetInfo, Source
from noisewise.datasets.schemas import schema_for
from noisewise.errors import DatasetError

__all__ = ["load", "load_images", "load_table"]


def load(name: str, *, download: bool = True, transfer: Transfer | None = None) -> Table | Images:
    """Load one of the datasets of :func:`list_datasets`.

    The prepared file is looked for in ``$NOISEWISE_DATA``, in the user's cache and in the
    package, in this order; else the public source is downloaded, parsed and put into the
    cache. Whatever the way, the values are those of the pinned checksum.

    Parameters
    ----------
    name : str
    download : bool
        Whether the network may be used.
    transfer : Transfer, optional
        Time and size limits of a download.

    Returns
    -------
    Table or Images

    Raises
    ------
    DatasetError
        If the name is unknown, if a file that was found is not the dataset, or if no
        place has it; the message lists all that was tried and what to do there.

    Examples
    --------
    >>> adult = load("adult")
    >>> len(adult.frame), adult.target
    (48842, 'income')
    """
    entry = registry.info(name)
    tried = []
    for place in places():
        path = place.path(entry)
        if path is not None:
            return _result(entry, read_verified(entry, path))
        where = "none" if place.folder is None else f"{place.folder} has no {entry.filename}"
        tried.append(f"{place.label}: {where}; {place.advice}")
    for source in entry.sources:
        if source.files and not download:
            tried.append(f"download: not allowed (download=False) from {source.files[0].url}")
            continue
        try:
            content = _obtain(entry, source, transfer or Transfer())
        except DatasetError as error:
            tried.append(f"download: {error}; check the connection or fetch the file elsewhere")
            continue
        if source.files:
            _keep(entry, content)
        return _result(entry, content)
    lines = "".join(f"\n  {number}. {line}" for number, line in enumerate(tried, 1))
    raise DatasetError(
        f"dataset {name!r} was found nowhere and could not be downloaded. Tried:{lines}\n"
        f"More about it: {entry.page}"
    )


def load_table(name: str, *, download: bool = True, transfer: Transfer | None = None) -> Table:
    """Load a table or text set; as :func:`load`, with one type for type checkers."""
    found = _kind(name, images=False) and load(name, download=download, transfer=transfer)
    assert isinstance(found, Table)
    return found


def load_images(name: str, *, download: bool = True, transfer: Transfer | None = None) -> Images:
    """Load an image set; as :func:`load`, with one type for type checkers."""
    found = _kind(name, images=True) and load(name, download=download, transfer=transfer)
    assert isinstance(found, Images)
    return found


def _kind(name: str, *, images: bool) -> bool:
    kind = registry.info(name).kind
    if (kind == "images") is not images:
        raise DatasetError(f"dataset {name!r} holds {kind}; use load({name!r})")
    return True


def _obtain(entry: DatasetInfo, source: Source, transfer: Transfer) -> Content:
    raw: dict[str, bytes] = {}
    for remote in source.files:
        raw |= unpack(remote, fetch(remote.url, transfer))
    content = parse(source.layout, raw)
    measured = content_hash(content)
    if measured != entry.content:
        origin = source.files[0].url if source.files else source.layout
        raise DatasetError(
            f"what {origin} holds is not the dataset {entry.name!r}: its content hash is "
            f"{measured}, expected {entry.content}; it was not used"
        )
    return content


def _keep(entry: DatasetInfo, content: Content) -> None:
    try:
        store(entry, content, cache_folder())
    except OSError as error:
        warnings.warn(
            f"the dataset {entry.name!r} could not be kept in {cache_folder()} ({error}) and "
            "will be downloaded again next time",
            stacklevel=3,
        )


def _result(entry: DatasetInfo, content: Content) -> Table | Images:
    if not isinstance(content, pd.DataFrame):
        return Images(name=entry.name, info=entry, **content)
    hidden = {entry.target, *entry.ids, *(("split",) if entry.kind == "text" else ())}
    features = tuple(str(column) for column in content.columns if column not in hidden)
    schema = schema_for(entry.name) if entry.kind == "table" else None
    return Table(entry.name, content, entry.target, features, schema, entry)
