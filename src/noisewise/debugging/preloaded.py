"""Many runs of one Python script without importing torch each time.

A check runs a script some hundred times, and importing torch takes longer than a few steps of
training. Where the command is plainly ``python script.py ...`` with the interpreter that runs
the check, each run is a fork of a process that has imported torch (`fork_server`) and nothing
else of ours: same arguments, same folder, fresh seeds, own memory. Everything else is started
as it stands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = ["Preloaded", "can_be_preloaded", "shared"]


def can_be_preloaded(words: Sequence[str]) -> bool:
    """Whether a command is ``python script.py ...`` for the interpreter that runs this."""
    if not hasattr(os, "fork") or len(words) < 2 or not words[1].endswith(".py"):
        return False
    found = shutil.which(words[0])
    if found is None:
        return False
    # Links may lead to the same binary from different environments, so folders must agree too.
    here, there = Path(sys.executable), Path(found)
    same_place = here.parent.resolve() == there.parent.resolve()
    return same_place and here.resolve() == there.resolve()


class Preloaded:
    """A process that runs scripts in forks of itself."""

    def __init__(self) -> None:
        server = Path(__file__).with_name("fork_server.py")
        self._process = subprocess.Popen(
            [sys.executable, str(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._end = weakref.finalize(self, _stop, self._process)

    def run(self, words: Sequence[str], timeout: float) -> tuple[int | None, str]:
        """Run ``script.py arguments``; return the exit code (``None``: too slow) and the log."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile(prefix="noisewise-log-") as log:
            request = {"words": list(words), "timeout": timeout, "log": log.name}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            text = Path(log.name).read_text("utf-8", errors="replace")
        if not answer:
            raise RuntimeError("the process that runs the script has died")
        code: int | None = json.loads(answer)
        return code, text


@cache
def shared() -> Preloaded:
    """Return the one process that serves all commands; it ends with this one."""
    return Preloaded()


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.stdout is not None:
        process.stdout.close()
    process.wait(timeout=10)
