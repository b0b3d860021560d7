"""Small tables beside the pictures, and experiments that can be interrupted.

A long experiment asks :class:`Parts` for each of its numbers. What was computed is kept in the
temporary folder until the figure is drawn, so that a run which is stopped, or given only
``--seconds``, goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["IMAGES", "Parts", "add_seconds", "save_table"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"
UNFINISHED = 75


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """Let the user bound the time of one run."""
    text = "stop after this time (exit code 75); the same command goes on"
    parser.add_argument("--seconds", type=float, default=float("inf"), help=text)


class Parts:
    """Numbers of an experiment by name, computed once."""

    def __init__(self, name: str, seconds: float = float("inf")) -> None:
        self._path = Path(tempfile.gettempdir()) / f"noisewise-experiment-{name}.json"
        self._end = time.monotonic() + seconds
        self._known: dict[str, Any] = {}
        if self._path.exists():
            self._known = json.loads(self._path.read_text("utf-8"))

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the part, computed now if need be (a number, list or dictionary)."""
        if key not in self._known:
            if time.monotonic() > self._end:
                print("out of time: run the same command again to go on", flush=True)
                sys.exit(UNFINISHED)
            self._known[key] = compute()
            self._path.write_text(json.dumps(self._known), "utf-8")
        return self._known[key]

    def done(self) -> None:
        """Forget the parts: the next run starts anew."""
        self._path.unlink(missing_ok=True)


def save_table(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write docs/images/<name>.csv; numbers with four significant digits."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (IMAGES / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([f"{v:.4g}" if isinstance(v, float) else v for v in row])
