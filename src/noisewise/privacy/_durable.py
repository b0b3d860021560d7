"""Files that are whole and on the disk when a function returns, and their owner's alone.

For all that must not be lost and that nobody else should read: ledgers, streams, checkpoints,
the state of servers and parties. What existed before with a wider mode gets the narrow one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from noisewise.errors import StateError

__all__ = ["private_file", "private_folder", "replace_file", "sync_folder"]


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a death on the way leaves the old one, or the new one, whole.

    Whatever the mode of the old one, only the owner may read and write the new one. The caller
    is the only one who writes this file at this moment.
    """
    partial = path.with_name(path.name + ".new")
    # Not opened but made: what a crash, or somebody else, left there has another mode or owner.
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
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


def private_folder(folder: Path) -> Path:
    """Return the folder, made if need be, with mode 0700 even if it existed with another.

    Raises
    ------
    StateError
        If it is no folder, or its mode cannot be changed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"no folder can be made at {str(folder)!r}: {error.strerror}") from error
    _narrow(folder, 0o700)
    return folder


def private_file(path: Path) -> None:
    """Take everybody else's rights to an existing file away (mode 0600 at most).

    Raises
    ------
    StateError
        If they cannot be taken away.
    """
    _narrow(path, 0o600)


def _narrow(path: Path, mode: int) -> None:
    if os.name != "posix":
        return
    have = stat.S_IMODE(path.stat().st_mode)
    if have & ~mode:
        try:
            path.chmod(have & mode)
        except OSError as error:
            raise StateError(
                f"{str(path)!r} has mode {have:04o}, so others may read or change it, and that "
                f"cannot be changed: {error.strerror}. Make it yours (chown) or choose another."
            ) from error
