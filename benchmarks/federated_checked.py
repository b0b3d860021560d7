"""What it costs that keys prove to count one record: ``python -m benchmarks.federated_checked``.

Point keys and checked point keys of the same records, on one core, measured in turn many times, the
best of each kept: bytes of a key, key pairs a second, time of a server for one key to count it and,
once in a round, to publish its proof; and what the servers publish. Then the same for tables: one
party's histogram, shared among two servers, without and with the proof that it counts at most so
many records.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import table
from noisewise.federated.fss import Challenge, accepted, generate_checked, generate_point
from noisewise.federated.fss.checked import PROOF_BYTES, SOUNDNESS_BITS
from noisewise.federated.sharing import additive, bounded
from noisewise.federated.sharing.bounded import BoundedCounts, Point, passes

TAG = bytes(8)
REPEATS = 7
LEVELS = (8, 11, 15)
TABLES = ((1 << 8, 1000), (1 << 10, 1), (1 << 10, 1000), (1 << 11, 10_000), (1 << 15, 10_000))


def seconds(function: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def measure(levels: int) -> tuple[str, ...]:
    """Return a row: bytes, microseconds and ratios for one size of the domain."""
    keys = max(20, (1 << 22) >> levels)
    cells = np.random.default_rng(0).integers(0, 1 << levels, keys)
    drawn = Challenge(b"benchmark of checked keys, 32 by", 1 << levels, levels)
    plain, checked = generate_point(cells, levels, TAG), generate_checked(cells, levels, TAG)
    works = {
        "make": lambda: generate_point(cells, levels, TAG),
        "make checked": lambda: generate_checked(cells, levels, TAG),
        "count": lambda: plain[0].sum_over_domain(),
        "count checked": lambda: checked[0].sum_over_domain(),
        "prove": lambda: checked[0].proofs(drawn),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(REPEATS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    assert accepted(*(side.proofs(drawn) for side in checked)).all()
    each = {name: 1e6 * value / keys for name, value in best.items()}
    total = each["count checked"] + each["prove"]
    return (
        f"2^{levels}",
        f"{plain[0].table.dtype.itemsize} / {checked[0].table.dtype.itemsize}",
        f"{each['make']:.2f} / {each['make checked']:.2f}",
        f"{each['count']:.1f} / {each['count checked']:.1f}",
        f"{each['prove']:.1f}",
        f"{total / each['count']:.1f}",
    )


def measure_table(cells: int, most: int) -> tuple[str, ...]:
    """Return a row: bytes, milliseconds and ratios for one party's table."""
    kind = BoundedCounts(cells, most)
    places = np.random.default_rng(0).integers(0, cells, most)
    counts = np.bincount(places, minlength=cells)
    elements = kind.encode(counts)
    (seed,), masked = bounded.share(elements, 2)
    (plain_seed,), plain = additive.share_compactly(counts, 2)
    point = Point(b"benchmark of checked tables, 32b", kind.blocks)
    held = bounded.expand(seed, kind.length)
    works = {
        "make": lambda: additive.share_compactly(counts, 2),
        "make checked": lambda: bounded.share(kind.encode(counts), 2),
        "count": lambda: additive.expand(plain_seed, cells),
        "count checked": lambda: kind.counts(bounded.expand(seed, kind.length)),
        "prove": lambda: kind.published(held, point, first=True),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(REPEATS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    proofs = [kind.published(part, point, first=i == 0) for i, part in enumerate((held, masked))]
    assert passes(proofs, point)
    each = {name: 1e3 * value for name, value in best.items()}
    return (
        f"2^{cells.bit_length() - 1}, {most:,}",
        f"{plain.nbytes / 1e3:,.0f} / {masked.nbytes / 1e3:,.0f}",
        f"{each['make']:.2f} / {each['make checked']:.1f}",
        f"{each['count']:.3f} / {each['count checked']:.2f}",
        f"{each['prove']:.2f}",
        f"{8 * kind.published_words:,}",
    )


def main() -> None:
    table(
        "one record: unchecked / checked; times in microseconds of one core",
        (
            "cells",
            "bytes of a key",
            "make a pair",
            "count",
            "prove, once",
            "server, times unchecked",
        ),
        [measure(levels) for levels in LEVELS],
    )
    print(f"each server publishes {PROOF_BYTES} bytes for each key, once in a round; a false key")
    print(f"passes with probability below 2^-{SOUNDNESS_BITS}")
    table(
        "one party's table: unchecked / checked; times in milliseconds of one core",
        ("cells, most records", "kB", "make", "count", "prove, once", "bytes published"),
        [measure_table(cells, most) for cells, most in TABLES],
    )
    print(f"a false table passes with probability below 2^-{bounded.SOUNDNESS_BITS}")


if __name__ == "__main__":
    main()
