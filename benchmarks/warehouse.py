"""Curves of a table in DuckDB, over parquet files: ``python -m benchmarks warehouse``.

Generates labels and scores (random doubles, which no format compresses), and asks in a fresh
process each for the bare ``group by`` and for curves of the same folder. Printed: seconds, rows a
second, peak memory of the process, ratio to the bare ``group by``. NOISEWISE_ROWS is the
number of rows (9 bytes each on disk), NOISEWISE_THREADS what DuckDB may use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import table

BINS = 1024
#: What is asked, as a program with `data` at hand.
ASKED = {
    f"bare group by, {BINS} bins and labels": f'duckdb.sql("select y, floor(p * {BINS}), count(*) '
    'from data group by all").fetchall()',
    f"dp_roc_curve, {BINS} bins": "nw.ecdf.dp_roc_curve('y', 'p', data=data, epsilon=1.0)",
    "dp_ecdf, 32,768 bins": "nw.ecdf.dp_ecdf('p', data=data, bounds=(0, 1), epsilon=1.0)",
    "dp_ecdf, 1,000 bins (stepped)": "nw.ecdf.dp_ecdf('p', data=data, bounds=(0, 1), bins=1000, "
    "epsilon=1.0)",
    "dp_quantile, quartiles, bounds a million times too wide (several queries)": "nw.ecdf."
    "dp_quantile('p', [0.25, 0.5, 0.75], data=data, bounds=(-1e6, 1e6), epsilon=1.0)",
    "private_evaluation (two queries)": "nw.ecdf.private_evaluation('y', 'p', data=data, "
    "epsilon=1.0)",
}
RUN = """
import json, resource, sys, time
import duckdb
import noisewise as nw
nw.ecdf.dp_roc_curve([0, 1], [0.5, 0.5], epsilon=1.0)  # imports and plans are not what is measured
duckdb.sql("set threads = {threads}")
data = duckdb.read_parquet("{folder}/*.parquet")
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
{program}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([seconds, peak / 1024, (peak - idle) / 1024]))
"""


def generate(folder: Path, rows: int, threads: int) -> None:
    """Write parquet files of ten million rows each."""
    import duckdb

    duckdb.sql(f"set threads = {threads}")
    step = 10_000_000
    for start in range(0, rows, step):
        count = min(step, rows - start)
        duckdb.sql(
            f"copy (select p, (random() < p)::int as y from (select random() as p from "
            f"range({count}))) to '{folder}/{start:012d}.parquet' (compression uncompressed)"
        )


def main() -> None:
    rows = int(float(os.environ.get("NOISEWISE_ROWS", "1e8")))
    threads = int(os.environ.get("NOISEWISE_THREADS", "1"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        generate(folder, rows, threads)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"{rows:,} rows, {size / 2**30:.2f} GiB of parquet, written in "
            f"{time.perf_counter() - start:.0f} s; DuckDB with {threads} thread(s)",
            flush=True,
        )
        found = []
        for what, program in ASKED.items():
            text = RUN.format(threads=threads, folder=folder, program=program)
            done = subprocess.run(
                [sys.executable, "-c", text], capture_output=True, text=True, check=True
            )
            seconds, peak, more = json.loads(done.stdout.splitlines()[-1])
            bare = found[0][1] if found else seconds
            found.append((what, seconds, peak, more, seconds / bare))
            print(what, f"{seconds:.1f} s", flush=True)
    table(
        f"{rows:,} rows",
        ("asked", "s", "million rows / s", "peak MiB", "of which for it", "ratio"),
        [
            (
                what,
                f"{seconds:.1f}",
                f"{rows / seconds / 1e6:.1f}",
                f"{peak:.0f}",
                f"{more:.0f}",
                f"{ratio:.2f}",
            )
            for what, seconds, peak, more, ratio in found
        ],
    )


if __name__ == "__main__":
    main()
