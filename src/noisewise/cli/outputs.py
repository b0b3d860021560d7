"""Places for results, looked at before anything is spent."""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_files", "check_folder"]


def check_files(*paths: Path | None) -> None:
    """Refuse files that cannot be written: a result that is paid for must find its place."""
    for path in paths:
        if path is None:
            continue
        _check_parent(path)
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder: name a file in it, such as "
                             f"{str(path / 'report.html')!r}")  # fmt: skip


def check_folder(path: Path | None) -> None:
    """Refuse a folder that cannot be made."""
    if path is None:
        return
    _check_parent(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file, and a folder is needed: give another --out")


def _check_parent(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise ValueError(f"no folder at {str(path.parent)!r} for {path.name!r}")
