"""Speed against peers and plain libraries, as ratios measured side by side.

Every module of this package that has a function ``main()`` is a benchmark:
``python -m benchmarks`` runs all of them, ``python -m benchmarks randomness`` one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["interleaved", "table"]


def interleaved(
    candidates: Mapping[str, Callable[[], object]], repeats: int = 15
) -> dict[str, float]:
    """Return the median seconds of each candidate, measured in turns.

    One call of each after the other, many times: whatever else the machine does then
    slows all of them alike, so that the ratios are worth more than the seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(repeats):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in aligned columns under a title."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, tuple("-" * width for width in widths), *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells))
