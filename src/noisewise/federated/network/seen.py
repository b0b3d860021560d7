"""The marks that a party or an analyst has seen of each server, kept as long as the round."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.headers import number_of
from noisewise.federated.network.reading import read_json
from noisewise.federated.network.study import Study
from noisewise.files import private_folder, replace_file

__all__ = ["SeenMarks"]


@dataclass
class SeenMarks:
    """The latest mark of each server.

    Parameters
    ----------
    path : Path
        Of the file that remembers them.
    """

    path: Path
    _marks: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, state: Path, study: Study) -> SeenMarks:
        """Return what was seen in this round, in the folder that an outbox has too."""
        folder = state / f"{study.name}-{study.round}-{study.fingerprint[:12]}"
        found = cls(folder / "marks.json")
        found._read()
        return found

    def latest(self, server: str) -> str | None:
        """Return the latest mark of a server."""
        return self._marks.get(server)

    def take(self, server: str, shown: str | None, mark: str | None) -> None:
        """Take the mark of an answer to a request that brought `shown` along.

        Raises
        ------
        NetworkError
            If the server has forgotten the mark that it was shown.
        """
        try:
            number = 0 if mark is None else number_of(mark)
        except ValueError:
            number = 0
        if shown is not None and number < number_of(shown):
            raise NetworkError(
                f"server {server!r} shows an older state than before: it was restored from a "
                "backup and has forgotten what it released. Do not believe its answers; start a "
                "new round."
            )
        with self._lock:
            before = self._marks.get(server)
            if mark is not None and (before is None or number > number_of(before)):
                self._read()  # another process of this member may have seen more
                self._marks[server] = mark
                private_folder(self.path.parent.parent)
                private_folder(self.path.parent)
                replace_file(self.path, json.dumps(self._marks, sort_keys=True).encode())

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            found = {
                str(name): str(mark) for name, mark in read_json(self.path.read_bytes()).items()
            }
            numbers = {name: number_of(mark) for name, mark in found.items()}
        except (ValueError, AttributeError) as error:
            raise NetworkError(
                f"{str(self.path)!r} cannot be read ({error}); delete it if you are sure that no "
                "server was restored from a backup"
            ) from error
        for name, mark in found.items():
            if name not in self._marks or numbers[name] > number_of(self._marks[name]):
                self._marks[name] = mark
