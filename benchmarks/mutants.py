"""The contest of bugs, ``noisewise bench mutants``, with all rounds and 300 correct runs.

``python -m benchmarks mutants`` takes an hour on one core. Finished rows are kept in the file
that NOISEWISE_MUTANT_STORE names, and NOISEWISE_MUTANT_SECONDS ends a piece.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import typer

from noisewise.cli.bench import mutants

PAGE = Path(__file__).parent.parent / "docs" / "debugging-mutants-table.md"


def main() -> None:
    """Run everything and write the table."""
    name = os.environ.get("NOISEWISE_MUTANT_STORE")
    # The command ends with an exit code; here the table is what counts.
    with contextlib.suppress(typer.Exit):
        mutants(
            correct=int(os.environ.get("NOISEWISE_MUTANT_RUNS", "300")),
            store=Path(name) if name else None,
            seconds=float(os.environ.get("NOISEWISE_MUTANT_SECONDS", "inf")),
            out=PAGE,
        )


if __name__ == "__main__":
    main()
