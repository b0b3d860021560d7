"""The file of a stream: held by one counter, which knows every byte of it.

The lock is on the file itself, for as long as the counter lives, and the file is never replaced:
it has two places, each with a hash, of which every save writes the older one through to the disk.
A death on the way leaves the other. Before each save the counter compares the file with what it
wrote last, so a file that was deleted, exchanged or changed meanwhile ends the counter and not the
promise. Between two counters a small file beside it, ending in ``.seen``, remembers the last save,
so that an older copy is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from noisewise.errors import LedgerError, LedgerRolledBackError
from noisewise.files import locked, private_file, replace_file
from noisewise.privacy import LedgerHead, Seen, Witness

__all__ = ["StreamState"]

_FORMAT, _VERSION = "noisewise-streaming-counter", 2
#: Bytes of each of the two places.
_PLACE = 2048


class StreamState:
    """The file in which a counter keeps its state.

    Parameters
    ----------
    path : path
    create : bool
        Whether to make the file if there is none.

    Raises
    ------
    LedgerError
        If another counter holds it, or it is no regular file.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool) -> None:
        self.path = Path(os.path.realpath(path))  # other names of it have the same lock
        self._witness = Witness(self.path)
        self._held = contextlib.ExitStack()
        self._saves = 0
        #: Of the last save.
        self.digest: str | None = None
        if create and not self.path.exists() and self._witness.read() is not None:
            raise self._rolled_back("there was a stream here, and its file is gone")
        self._hold(create)

    def _hold(self, create: bool) -> None:
        try:
            self._descriptor = self._held.enter_context(
                locked(self.path, create=create, patience=0.0)
            )
            self._bytes = self._read()
        except TimeoutError as error:
            raise LedgerError(f"{str(self.path)!r} is in use by another counter") from error
        except FileNotFoundError as error:
            raise LedgerError(
                f"cannot resume from {str(self.path)!r}: no stream is kept there"
            ) from error
        except OSError as error:
            self.close()
            raise LedgerError(
                f"no state can be kept at {str(self.path)!r}: {error.strerror}"
            ) from error

    @classmethod
    def begin(cls, path: str | os.PathLike[str]) -> StreamState:
        """Hold a file for a new stream; it must not exist, or be empty."""
        made = cls(path, create=True)
        if made._bytes:
            made.close()
            raise LedgerError(
                f"{str(made.path)!r} exists: continue it with StreamingCounter.resume, so that no "
                "item is counted twice; start a new one only for a new stream"
            )
        return made

    def load(self) -> dict[str, Any]:
        """Return the state that was saved last.

        Raises
        ------
        LedgerRolledBackError
            If a later one was here.
        ValueError
            If there is none.
        """
        places = [self._bytes[:_PLACE], self._bytes[_PLACE:]]
        whole = [found for place in places if (found := _unseal(place)) is not None]
        if not whole:
            return self._take_over()
        private_file(self.path)  # now that it is known to be a stream's
        digest, state = max(whole, key=lambda found: int(found[1]["saves"]))
        self._saves, self.digest = int(state["saves"]), digest
        seen = self._witness.read()
        if seen is not None and (
            self._saves < seen.head.entries
            or (self._saves == seen.head.entries and digest != seen.head.digest)
        ):
            raise self._rolled_back("it was replaced by an older copy or by another stream")
        self._witness.remember(Seen(LedgerHead(self._saves, digest)))
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write a state through to the disk, unless the file is not as this counter left it."""
        try:
            there = os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            there = False
        if not there or self._read() != self._bytes:
            raise LedgerError(
                f"{str(self.path)!r} was deleted, exchanged or changed while this counter used it. "
                "Nothing was released; look who else uses it, and put the newest copy back."
            )
        private_file(self.path)
        saves = self._saves + 1
        content = {"format": _FORMAT, "version": _VERSION, **state, "saves": saves}
        digest, place = _seal(content)
        start = _PLACE * (saves % 2)
        before = self._bytes.ljust(start, b"\0")
        try:
            self._write(start, place)
        except OSError:
            # Not durable, so not released: what was there before is the state.
            with contextlib.suppress(OSError):
                self._write(start, before[start : start + _PLACE].ljust(_PLACE, b"\0"))
            raise
        self._bytes = before[:start] + place + before[start + _PLACE :]
        self._saves, self.digest = saves, digest
        self._witness.remember(Seen(LedgerHead(saves, digest)))

    def close(self) -> None:
        """Let another counter have the file."""
        self._held.close()

    def _write(self, start: int, place: bytes) -> None:
        os.lseek(self._descriptor, start, os.SEEK_SET)
        if os.write(self._descriptor, place) != len(place):
            raise OSError("the state was written in part only")
        os.fsync(self._descriptor)

    def _read(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, 4 * _PLACE)

    def _take_over(self) -> dict[str, Any]:
        """Read the form of version 0.1, a file of JSON that was replaced at each save."""
        state = json.loads(self._bytes.decode("utf-8"))
        if not isinstance(state, dict):
            raise ValueError("it holds no state of a streaming counter")
        if state.get("format") != _FORMAT or state.get("version") != 1:
            raise LedgerError(f"{str(self.path)!r} is not the state of a streaming counter")
        _, place = _seal({**state, "version": _VERSION, "saves": 0})
        replace_file(self.path, place)
        self._held.close()  # of the file that was replaced
        self._hold(create=False)
        return self.load()

    def _rolled_back(self, what: str) -> LedgerRolledBackError:
        return LedgerRolledBackError(
            f"{str(self.path)!r}: {what}, so items that were counted would be counted again with "
            f"new noise. Put the newest copy back. This is known from {str(self._witness.path)!r}; "
            "remove that file only for a new stream."
        )


def _seal(content: dict[str, Any]) -> tuple[str, bytes]:
    body = json.dumps(content, allow_nan=False).encode()
    digest = hashlib.sha256(body).hexdigest()
    place = f"{digest} ".encode() + body
    if len(place) >= _PLACE:
        raise ValueError("the state does not fit its file")
    return digest, place.ljust(_PLACE - 1) + b"\n"


def _unseal(place: bytes) -> tuple[str, dict[str, Any]] | None:
    digest, body = place[:64], place[65:].rstrip()
    if len(place) != _PLACE or hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    state = json.loads(body)
    known = (state.get("format"), state.get("version")) == (_FORMAT, _VERSION)
    return (digest.decode(), state) if known else None
