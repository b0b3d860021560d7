"""Files that are whole and on the disk when a function returns, and their owner's alone.

For all that must not be lost and that nobody else should read: ledgers, streams, checkpoints,
the state of servers and parties. What existed before with a wider mode gets the narrow one. What
exists and is no regular file (a device, a pipe, a folder) is left as it is, and refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from noisewise.errors import StateError

__all__ = [
    "open_regular",
    "private_file",
    "private_folder",
    "replace_file",
    "sync_folder",
    "write_anew",
]


def open_regular(path: Path, flags: int, *, follow: bool = True) -> int:
    """Open a file for its owner alone; a device or a pipe is refused, and never waited for.

    Unless links are to be followed, one is refused as well: of a name that nobody else was asked
    for, it leads to a file that is none of ours.

    Raises
    ------
    OSError
    """
    for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOCTTY"):
        flags |= getattr(os, name, 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if path.is_symlink():  # where the system has no such flag
            raise OSError(errno.ELOOP, "it is a link to another file", os.fspath(path))
    _require_regular(path)  # to open a device may already do something
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def write_anew(path: Path, data: bytes) -> None:
    """Write a file through to the disk, in place of an old one; a death leaves a part of it."""
    # Not opened but made: what a crash, or somebody else, left there has another mode or owner.
    _require_regular(path)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a death on the way leaves the old one, or the new one, whole.

    Whatever the mode of the old one, only the owner may read and write the new one. The caller
    is the only one who writes this file at this moment.

    Raises
    ------
    OSError
        Also if there is something that is no regular file.
    """
    _require_regular(path)
    partial = path.with_name(path.name + ".new")
    write_anew(partial, data)
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
        If they cannot be taken away, or it is no regular file.
    """
    try:
        _require_regular(path)
    except OSError as error:
        raise StateError(f"{str(path)!r} cannot be used: {error.strerror}") from error
    _narrow(path, 0o600)


def _require_regular(path: Path) -> None:
    """Raise if there is something at this place, or behind this link, that is no regular file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path)


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


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
