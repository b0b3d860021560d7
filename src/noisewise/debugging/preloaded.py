"""Many runs of one Python script without importing torch each time.

A check runs a script some hundred times, and importing torch, Opacus, JAX or transformers takes
longer than a few steps of training. Where the command is plainly ``python script.py ...``, each
run is a fork of a process of that interpreter which has imported what the script imports
(`fork_server`) and nothing of ours: same arguments, same folder, fresh seeds, own memory.
Everything else is started as it stands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = ["Preloaded", "can_be_preloaded", "shared"]


def can_be_preloaded(words: Sequence[str]) -> bool:
    """Whether a command is ``python script.py ...`` for some interpreter of Python."""
    if not hasattr(os, "fork") or len(words) < 2 or not words[1].endswith(".py"):
        return False
    found = shutil.which(words[0])
    return found is not None and Path(found).name.startswith("python")


class Preloaded:
    """A process that runs scripts in forks of itself."""

    def __init__(self, interpreter: str, script: str) -> None:
        server = Path(__file__).with_name("fork_server.py")
        self._process = subprocess.Popen(
            [interpreter, str(server), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._end = weakref.finalize(self, _stop, self._process)

    def run(
        self, words: Sequence[str], timeout: float, seed: int | None = None
    ) -> tuple[int | None, str]:
        """Run ``script.py arguments``; return the exit code (``None``: too slow) and the log.

        With a seed, the global generators of Python, numpy and torch start from it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile(prefix="noisewise-log-") as log:
            request = {"words": list(words), "timeout": timeout, "log": log.name, "seed": seed}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            text = Path(log.name).read_text("utf-8", errors="replace")
        if not answer:
            raise RuntimeError("the process that runs the script has died")
        code: int | None = json.loads(answer)
        return code, text


@cache
def shared(interpreter: str, script: str) -> Preloaded:
    """Return the one process that serves all runs of a script; it ends with this one."""
    return Preloaded(interpreter, script)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.stdout is not None:
        process.stdout.close()
    process.wait(timeout=10)
