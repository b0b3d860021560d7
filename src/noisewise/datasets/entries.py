"""All datasets by name, read from the files in ``registered/``, one for each.

`sha256` is of the prepared file (a parquet table or npz images), `content` is the
:func:`~noisewise.datasets.content_hash` of its values. Raw checksums are given only where a
publisher's or loader's own figure is known; every download is verified by its content
whatever the raw file is.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from noisewise.datasets.registry import Checksum, DatasetInfo, RemoteFile, Source
from noisewise.datasets.toml import parse_toml

__all__ = ["ENTRIES"]


def _file(stored: Mapping[str, Any]) -> RemoteFile:
    checksums = tuple(
        (name, Checksum(algorithm, digest))
        for name, algorithm, digest in stored.get("checksums", ())
    )
    members = tuple(stored.get("members", ()))
    return RemoteFile(stored["url"], members, checksums, stored.get("name", ""))


def _entry(name: str, stored: dict[str, Any]) -> DatasetInfo:
    sources = tuple(
        Source(source["layout"], tuple(map(_file, source.get("files", ()))))
        for source in stored.pop("sources")
    )
    splits = tuple((part, first, end) for part, first, end in stored.pop("splits", ()))
    # What is left is as the class has it, lists for tuples.
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
    }
    return DatasetInfo(name=name, sources=sources, splits=splits, **plain)


def _read() -> dict[str, DatasetInfo]:
    found = {}
    for file in files("noisewise.datasets").joinpath("registered").iterdir():
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            found[name] = _entry(name, parse_toml(file.read_text("utf-8")))
    return dict(sorted(found.items()))


ENTRIES: dict[str, DatasetInfo] = _read()
