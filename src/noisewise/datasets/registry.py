"""What is known of every dataset: size, licence, source, checksums, traps.

The entries themselves are in :mod:`noisewise.datasets.entries`; here is their shape
and the look-up by name.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from typing import Literal

from noisewise.errors import DatasetError

__all__ = ["Checksum", "DatasetInfo", "RemoteFile", "Source", "info", "list_datasets"]

Kind = Literal["table", "text", "images"]


@dataclass(frozen=True)
class Checksum:
    """A digest that was published, or measured, for one raw file."""

    algorithm: Literal["md5", "sha256"]
    digest: str

    def matches(self, content: bytes) -> bool:
        """Whether `content` has this digest."""
        return hashlib.new(self.algorithm, content).hexdigest() == self.digest


@dataclass(frozen=True)
class RemoteFile:
    """One public file, and what to take out of it.

    `members` names the files inside an archive (``a.zip>b.csv`` for an archive inside
    an archive); without members the file is taken as it is, a ``.gz`` unpacked.
    `checksums` pairs the names of raw files with their digests; `name` replaces the last
    part of the address as the name of a plain file.
    """

    url: str
    members: tuple[str, ...] = ()
    checksums: tuple[tuple[str, Checksum], ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Source:
    """Files that together hold a dataset, and the layout by which they are parsed."""

    layout: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class DatasetInfo:
    """All that is public about one dataset.

    Attributes
    ----------
    rows, columns : int
        Records in all parts, and columns with the label (0 for images).
    shape : tuple of int
        Of one image, else empty.
    target : str
        Label column; `y_train` for images.
    classes : int
        Number of classes, 0 for regression.
    licence, citation, page : str
        As its publisher states them; `page` is the place to read more.
    filename, size, sha256 : str, int, str
        The prepared file that folders are searched for.
    content : str
        :func:`noisewise.datasets.content_hash` of the values, which verifies any copy.
    sources : tuple of Source
        Where it is downloaded from, in order of preference.
    ids : tuple of str
        Columns that number records or persons, and are not features.
    splits : tuple of (name, first row, row after the last)
        Parts the publisher made.
    notes : tuple of str
        Traps and repairs.
    """

    name: str
    title: str
    kind: Kind
    rows: int
    columns: int
    target: str
    classes: int
    licence: str
    citation: str
    page: str
    filename: str
    size: int
    sha256: str
    content: str
    sources: tuple[Source, ...]
    ids: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    splits: tuple[tuple[str, int, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source_url(self) -> str:
        """Address of the first file of the preferred source."""
        return next(source.files[0].url for source in self.sources if source.files)

    @property
    def dimensions(self) -> str:
        """Records times columns, or the shape of an image, in words."""
        per_record = "x".join(map(str, self.shape)) if self.shape else str(self.columns)
        return f"{self.rows} x {per_record}"


def list_datasets() -> tuple[str, ...]:
    """Names that :func:`noisewise.datasets.load` knows, in alphabetical order.

    Examples
    --------
    >>> "adult" in list_datasets()
    True
    """
    from noisewise.datasets.entries import ENTRIES

    return tuple(sorted(ENTRIES))


def info(name: str) -> DatasetInfo:
    """Return what is known of a dataset; an unknown name is told its nearest neighbours.

    Examples
    --------
    >>> info("adult").licence
    'CC BY 4.0'
    """
    from noisewise.datasets.entries import ENTRIES

    if name in ENTRIES:
        return ENTRIES[name]
    wanted = str(name).lower().replace("-", "_").replace(" ", "_")
    near = difflib.get_close_matches(wanted, ENTRIES, n=3, cutoff=0.5)
    near += [known for known in sorted(ENTRIES) if wanted and wanted in known and known not in near]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "no name is near to it."
    raise DatasetError(f"unknown dataset {name!r}: {hint} All names: {', '.join(sorted(ENTRIES))}")
