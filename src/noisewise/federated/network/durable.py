"""Files that are on the disk when a function returns, and that only their owner may read.

Also if the file was there before with a wider mode.
"""

from __future__ import annotations

import os
from pathlib import Path

from noisewise.privacy._durable import sync_folder

__all__ = ["replace", "write"]


def write(path: Path, data: bytes) -> None:
    """Write a file through to the disk; a death on the way leaves a part of it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Write a file so that a death on the way leaves the old one, or the new one, whole."""
    partial = path.with_name(path.name + ".new")
    write(partial, data)
    os.replace(partial, path)
    sync_folder(path.parent)
