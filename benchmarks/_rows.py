"""Rows of a table that are computed once and kept in a file, for benchmarks that take long."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch


class Rows:
    """Rows that are computed once, kept in a file if one is named, within a time limit."""

    def __init__(self) -> None:
        name = os.environ.get("NOISEWISE_MUTANT_STORE")
        self.store = Path(name) if name else None
        self.known: dict[str, list[str]] = {}
        if self.store is not None and self.store.exists():
            lines = self.store.read_text("utf-8").splitlines()
            self.known = dict(json.loads(line) for line in lines)
        self.end = time.monotonic() + float(os.environ.get("NOISEWISE_MUTANT_SECONDS", "inf"))

    def get(self, key: str, compute: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Return a row, computing it if it is not there yet."""
        if key not in self.known:
            if time.monotonic() > self.end:
                raise SystemExit(f"stopped before {key}; run again to go on")
            torch.manual_seed(0)
            self.known[key] = list(compute())
            print("  " + " | ".join((key, *self.known[key])), flush=True)
            if self.store is not None:
                with self.store.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([key, self.known[key]]) + "\n")
        return tuple(self.known[key])
