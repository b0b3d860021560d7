"""The bugs that the tests are judged by, read from ``catalogue.csv``: what, and where seen.

Every bug cites an issue or a pull request of a real library, or a paper by author and year; where
a source shows a relative of the bug, it says so in brackets. Rounds:

* ``known``: numbers 1 to 53, known while the first tests were written;
* ``reported``: late steps, decisions on the data and other reports, known while the tests of late
  steps were written;
* ``first freeze`` to ``twelfth freeze``: written after the tests had been frozen, to see what
  they catch without having been made for it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

__all__ = ["ROUNDS", "Mutant", "mutants"]


@dataclass(frozen=True)
class Mutant:
    """One mistake: its round and number, the switch of `Training`, what it does, its source."""

    round: str
    number: int
    bug: str
    what: str
    source: str


def _read() -> tuple[Mutant, ...]:
    file = resources.files("noisewise.debugging.mutants") / "catalogue.csv"
    rows = csv.DictReader(file.read_text("utf-8").splitlines())
    return tuple(
        Mutant(row["round"], int(row["number"]), row["bug"], row["what"], row["source"])
        for row in rows
    )


_ALL = _read()
#: The rounds, in the order in which they were written.
ROUNDS = tuple(dict.fromkeys(mutant.round for mutant in _ALL))


def mutants(*rounds: str) -> tuple[Mutant, ...]:
    """Return the bugs of some rounds, or all."""
    return tuple(mutant for mutant in _ALL if not rounds or mutant.round in rounds)
