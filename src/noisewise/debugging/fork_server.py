"""Runs a script in forked copies of an interpreter that has imported what the script imports.

Started as a file of its own by `preloaded`, never imported, and needs nothing but Python: a
script must find nothing in the interpreter that it would not find in a fresh one, apart from
its packages being quick to import. What it imports is read from its text and from the modules
in its own folder; those are not imported beforehand, since they may do things. One request per
line on standard input, one answer per line on standard output.
"""

from __future__ import annotations

import ast
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
    seed = request.get("seed")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(None if seed is None else seed % 2**32)
    if seed is not None and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
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


def _imports(path: str, seen: set[str]) -> list[tuple[str, str]]:
    """Return (module, name in it) for what a file and the files beside it import."""
    if path in seen or not os.path.exists(path):
        return []
    seen.add(path)
    try:
        with open(path, encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
    except (SyntaxError, UnicodeDecodeError):
        return []
    folder = os.path.dirname(os.path.abspath(path))
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            first = os.path.join(folder, module.split(".")[0])
            if os.path.exists(first + ".py") or os.path.isdir(first):
                found += _imports(os.path.join(folder, *module.split(".")) + ".py", seen)
            elif module != "__future__":
                found.append((module, name))
    return found


def _preload(script: str) -> None:
    """Import what the script will import; what fails here is left to the script itself."""
    wanted = _imports(script, set())
    # torch's optimizers load the last one when they are first used.
    if any(module.split(".")[0] in ("torch", "opacus") for module, _ in wanted):
        wanted += [("torch.utils.data", ""), ("torch._dynamo", "")]
    for module, name in wanted:
        # Importing a package may do anything, also fail or write; standard output is ours.
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(sys.stderr):
            loaded = importlib.import_module(module)
            # Packages that load their parts when asked for them are asked now.
            if name and name != "*":
                getattr(loaded, name, None)


def _serve(script: str) -> None:
    _preload(script)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
