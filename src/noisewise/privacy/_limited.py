"""Verifying in a process of its own, which can be ended when it takes too long or too much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from noisewise.errors import StatementError

__all__ = ["run_limited"]

#: Bytes of memory that a derivation may ask for, beside what the libraries have.
LARGEST_MEMORY = 4 << 30

# Isolated (-I): neither the working folder, where foreign files lie, nor the environment decides
# what is imported. Only what this process imports from is searched.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from noisewise.privacy._limited import main; main()"
)


def run_limited(statement: str, seconds: float) -> dict[str, Any]:
    """Return the fields of the verification of a statement (as JSON).

    Raises
    ------
    StatementError
        If it takes longer, or the epsilon cannot be derived.
    """
    folders = [os.path.abspath(folder) for folder in sys.path if folder]
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, *folders],
            input=statement.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StatementError(
            f"its epsilon could not be derived in {seconds:g} seconds. Statements of noisewise "
            "take a few; treat this one as not verified."
        ) from error
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError as error:
        raise StatementError(
            "its epsilon could not be derived: the process that tried ended with code "
            f"{child.returncode}"
        ) from error
    if "error" in answer:
        raise StatementError(answer["error"])
    return answer | {"problems": tuple(answer["problems"])}


def main() -> None:
    """Verify the statement on standard input."""
    import dataclasses

    from noisewise.privacy.statement import Statement
    from noisewise.privacy.verification import verify

    _limit_memory()
    try:
        found = verify(Statement.from_json(sys.stdin.buffer.read().decode()))
        answer = dataclasses.asdict(found)
    except StatementError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            allowed = int(file.read().split()[0]) * resource.getpagesize() + LARGEST_MEMORY
    except (ImportError, OSError):  # not Linux
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > allowed:
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
