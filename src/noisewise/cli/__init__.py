"""The ``noisewise`` command. Each subcommand is a small module, joined in ``commands``.

Only what is asked for is imported: the version needs nothing but this file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from noisewise._version import __version__

if TYPE_CHECKING:
    from noisewise.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from noisewise.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command; refusals become one clear sentence and exit code 2."""
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    torn = _torn_imports()
    try:
        _run()
    except BaseException as error:
        # Typer turns Ctrl-C into an exit code that also means "found wanting", and modules that are
        # being imported turn it into errors of their own.
        if not (torn or _was_interrupted(error)):
            raise
        _stopped()


def _torn_imports() -> list[int]:
    """Return a list that Ctrl-C fills if it comes while a module is being imported.

    Somebody may catch it there and go on with half a module. Whatever fails then, fails of that.
    """
    torn: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        within = frame
        while within is not None and not within.f_code.co_filename.startswith("<frozen importlib"):
            within = within.f_back
        if within is not None:
            torn.append(number)
        signal.default_int_handler(number, frame)

    in_charge = threading.current_thread() is threading.main_thread()
    if in_charge and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    return torn


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C led to an error, and nobody has said so yet: "raise Exit from None" has."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return error is not None
    if type(error).__name__ == "Exit" and error.__suppress_context__ and error.__cause__ is None:
        return False
    return _was_interrupted(error.__cause__) or _was_interrupted(error.__context__)


def _stopped() -> None:
    print(
        "Stopped by Ctrl-C. What was charged to a ledger stays charged.",
        file=sys.stderr,
    )
    sys.exit(130)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning without the place in the library that gave it."""
    from noisewise.working import tell

    tell(f"Warning: {message}")


def _run() -> None:
    from rich.console import Console
    from rich.markup import escape

    from noisewise.cli.commands import app
    from noisewise.errors import NoisewiseError

    warnings.showwarning = _warn
    try:
        app()
    except (NoisewiseError, ValueError) as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"[bold red]Error:[/] {escape(str(error))}")
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
