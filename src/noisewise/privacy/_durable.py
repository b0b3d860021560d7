"""Files that are whole and on the disk when a function returns, for all that must not be lost."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace_file", "sync_folder"]


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a death on the way leaves the old one, or the new one, whole."""
    partial = path.with_name(path.name + ".new")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable; only POSIX has (and needs) this."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
