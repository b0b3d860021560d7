"""One run of ``noisewise train`` that is kept: its name, its ledger, how to go on after a stop.

A kept run charges its ledger step by step under its own name, so that whoever resumes it, twice or
from a copy, can take no step that is not paid for. The folder holds the name and the settings of
the run (``run.json``) and a checkpoint; both follow from released weights and settings alone.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from noisewise.estimators import open_fit_account
from noisewise.files import replace_file
from noisewise.privacy import Ledger
from noisewise.release import UNIT_NAME, SealedAccount
from noisewise.training import Callback, PrivateRun

__all__ = ["Kept", "begin", "finishing"]

#: Steps after which a checkpoint is written.
EVERY = 10


@dataclass(frozen=True)
class Kept:
    """A run in a folder.

    Parameters
    ----------
    folder : Path
    ledger : Path
    name : str
        Under which its steps are charged.
    resume : bool
        Whether it was begun before.
    """

    folder: Path
    ledger: Path
    name: str
    resume: bool

    @property
    def checkpoint(self) -> Path:
        """Where training is saved."""
        return self.folder / "training.checkpoint"

    def options(self, book: Ledger) -> dict[str, Any]:
        """Options of the call of ``fit``."""
        return {
            "ledger": book,
            "name": self.name,
            "checkpoint": self.checkpoint,
            "checkpoint_every": EVERY,
            "resume": self.resume,
        }

    @contextlib.contextmanager
    def open(
        self, model: Any, rows: int, of_units: bool = False
    ) -> Iterator[tuple[Ledger, SealedAccount]]:
        """Open the ledger; a new run that does not fit its budget is refused here."""
        resolved = model._plan(rows, model._unit(UNIT_NAME if of_units else None)).resolve(
            rows, of_units=of_units
        )
        account = open_fit_account(self.ledger, self.name, resolved, model._beside())
        try:
            if not self.resume:
                account.require_room(resolved)
        finally:
            account.close()
        with Ledger.open(self.ledger) as book:
            yield book, SealedAccount(book, self.name, self.folder)

    def finished(self, account: SealedAccount) -> None:
        """Remove what only a stopped run needs."""
        account.forget()
        self.checkpoint.unlink(missing_ok=True)


class _Ended(Callback):
    """Knows whether the last step was taken."""

    ended = False

    def on_end(self, run: PrivateRun) -> None:
        self.ended = True


@contextlib.contextmanager
def finishing() -> Iterator[Callback]:
    """Let Ctrl-C wait from the last step on; the callback is told of the steps.

    What is left takes a moment, and nobody wants to stop and resume for it.
    """
    watch = _Ended()

    def heard(number: int, frame: FrameType | None) -> None:
        if not watch.ended:
            signal.default_int_handler(number, frame)
        print("All steps are taken and paid for: finishing.", file=sys.stderr)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or current_thread() is not main_thread():
        yield watch
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield watch
    finally:
        signal.signal(signal.SIGINT, before)


def begin(
    folder: Path, ledger: Path | None, resume: bool, name: str, settings: dict[str, Any]
) -> Kept:
    """Begin a run in a folder, or find the one that was stopped there."""
    record = folder / "run.json"
    text = json.dumps(settings, sort_keys=True, default=str)
    if (folder / "estimator.json").exists():
        raise ValueError(
            f"{str(folder)!r} holds a finished model; give another --out, or remove the folder if "
            "nobody needs it (what it cost stays in the ledger)"
        )
    if resume:
        if not record.exists() or not (folder / "training.checkpoint").exists():
            raise ValueError(
                f"there is no stopped run in {str(folder)!r}: run.json or training.checkpoint is "
                "missing. Begin without --resume; what was spent stays in the ledger"
            )
        found = json.loads(record.read_text("utf-8"))
        if found["settings"] != json.loads(text):
            changed = sorted(
                key
                for key in found["settings"].keys() | settings.keys()
                if found["settings"].get(key) != json.loads(text).get(key)
            )
            raise ValueError(
                f"the run in {str(folder)!r} was begun with other settings ({', '.join(changed)}); "
                "resume it with the same ones, or begin another in another folder"
            )
        return Kept(folder, Path(found["ledger"]), found["name"], True)
    # Without a checkpoint no step was taken, so nothing was charged under its name.
    if record.exists() and (folder / "training.checkpoint").exists():
        raise ValueError(
            f"{str(folder)!r} holds a run that was stopped: go on with --resume, or give another "
            "--out (what was spent stays spent)"
        )
    folder.mkdir(exist_ok=True)
    place = (folder / "ledger.jsonl" if ledger is None else ledger).absolute()
    kept = Kept(folder, place, f"{name} {secrets.token_hex(4)}", False)
    content = {"name": kept.name, "ledger": str(place), "settings": json.loads(text)}
    replace_file(record, (json.dumps(content, indent=2) + "\n").encode())
    return kept
