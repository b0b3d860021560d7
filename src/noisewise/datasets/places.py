"""Where a prepared file is looked for, in order, and what to do in each place.

1. the folder that ``NOISEWISE_DATA`` names; 2. the user's cache; 3. the package itself
(Adult only). Downloads come after these and end in the cache.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import platformdirs
import pyarrow

from noisewise.datasets.content import content_hash
from noisewise.datasets.parse import Content
from noisewise.datasets.registry import DatasetInfo
from noisewise.errors import DatasetError

__all__ = ["Place", "cache_folder", "find_file", "places", "read_verified", "store"]

VARIABLE = "NOISEWISE_DATA"


@dataclass(frozen=True)
class Place:
    """A folder that may hold prepared files, and how to make it do so."""

    label: str
    folder: Path | None
    advice: str

    def path(self, info: DatasetInfo) -> Path | None:
        """Return the file of a dataset if this place has it."""
        if self.folder is None:
            return None
        candidate = self.folder / info.filename
        return candidate if candidate.is_file() else None


def cache_folder() -> Path:
    """Folder for downloads: the user's cache, by the rules of the operating system."""
    return Path(platformdirs.user_cache_dir("noisewise", appauthor=False)) / "datasets"


def places() -> tuple[Place, ...]:
    """List all places in the order in which they are searched."""
    named = os.environ.get(VARIABLE)
    return (
        Place(
            f"${VARIABLE}",
            Path(named).expanduser() if named else None,
            f"set {VARIABLE} to a folder that holds the file",
        ),
        Place("cache", cache_folder(), "put the file there, or allow the download"),
        Place(
            "package",
            Path(__file__).resolve().parent / "bundled",
            "nothing to do: only adult is shipped with the package",
        ),
    )


def find_file(info: DatasetInfo) -> tuple[Place, Path] | None:
    """Return the first place that has the file, without opening it."""
    for place in places():
        path = place.path(info)
        if path is not None:
            return place, path
    return None


def read_verified(info: DatasetInfo, path: Path) -> Content:
    """Read a prepared file; it must have the pinned SHA-256 or the pinned content."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error}") from error
    measured = hashlib.sha256(stored).hexdigest()
    try:
        content = _decode(info, stored)
        values = info.content if measured == info.sha256 else content_hash(content)
    except (ValueError, KeyError, OSError, pyarrow.ArrowException, zipfile.BadZipFile) as error:
        raise _wrong_file(info, path, measured) from error
    if values != info.content:
        raise _wrong_file(info, path, measured)
    return content


def _wrong_file(info: DatasetInfo, path: Path, measured: str) -> DatasetError:
    return DatasetError(
        f"{path} is not the dataset {info.name!r}: its SHA-256 is {measured}, expected "
        f"{info.sha256}, and its values differ too. It was not used. Delete or replace it; "
        "without it the next place is searched."
    )


def _decode(info: DatasetInfo, stored: bytes) -> Content:
    if info.kind != "images":
        return pd.read_parquet(io.BytesIO(stored), engine="pyarrow")
    with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def store(info: DatasetInfo, content: Content, folder: Path) -> Path:
    """Write a prepared file so that it is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{info.name}-", suffix=".part", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if isinstance(content, pd.DataFrame):
                content.to_parquet(stream, engine="pyarrow", compression="zstd", index=False)
            else:
                arrays: dict[str, Any] = dict(content)
                np.savez_compressed(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        target = folder / info.filename
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
