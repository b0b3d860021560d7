"""Runs scripts in forked copies of an interpreter that has imported torch already.

Started as a file of its own by `preloaded`, never imported: a script must find nothing in the
interpreter that it would not find in a fresh one, apart from torch and numpy being quick to
import. One request per line on standard input, one answer per line on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import runpy
import signal
import sys
import time
import traceback
from typing import Any


def _child(request: dict[str, Any]) -> int:
    """Become the script; return its exit code."""
    with open(request["log"], "wb") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # A fresh interpreter would have seeded these from the operating system.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    script = request["words"][0]
    sys.argv = list(request["words"])
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(request: dict[str, Any]) -> int | None:
    """Return the exit code of a forked run, ``None`` if it took too long."""
    child = os.fork()
    if child == 0:
        code = _child(request)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    end = time.monotonic() + float(request["timeout"])
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.02, 1.5 * pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _serve() -> None:
    # What nearly every training script imports; torch's optimizers load the last one.
    for name in ("numpy", "torch", "torch.utils.data", "torch._dynamo"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
