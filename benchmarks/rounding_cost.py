"""What careful numbers cost: whole private steps beside those of another checkout.

``python -m benchmarks.rounding_cost --against OTHER/src [--tasks mlp:256,cnn:256] [--turns 15]
[--threads 1]``. Two processes, one with the package of this checkout and one with that of the
other, take the same step in turns. Shown are the median and quartiles of the ratio within a turn,
and the ratio of the fastest steps, which is what counts on a machine that others use. With one
thread the time is that of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import table
from benchmarks._private_steps import ESTIMATORS, TASKS, step_of
from benchmarks.gradient_speed import clock

DEFAULT = "mlp:256,cnn:256,transformer:64"
#: Largest ratio that we allow ourselves.
TARGET = 1.03


class Other:
    """A process that takes steps with the package at a path."""

    def __init__(self, source: Path, threads: int) -> None:
        environment = dict(os.environ, PYTHONPATH=str(source), OMP_NUM_THREADS=str(threads))
        command = [sys.executable, "-m", "benchmarks.rounding_cost", "--serve"]
        command += ["--threads", str(threads)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def step(self, request: str) -> float:
        """Seconds of one step; NaN if this estimator cannot do the task."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(request, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """Answer every line ``task:batch;estimator`` by the seconds that its step took."""
    steps = {}
    for line in sys.stdin:
        key, name = line.strip().split(";")
        kind, size = key.split(":")
        if line not in steps:
            steps.clear()
            torch.manual_seed(0)
            step, batch = step_of(TASKS[kind], name, int(size)), TASKS[kind].batch(int(size))
            steps[line] = step, batch
            if step is not None:
                step(*batch)
        step, batch = steps[line]
        if step is None:
            print("nan", flush=True)
            continue
        start = clock()
        step(*batch)
        print(clock() - start, flush=True)


def compare(ours: Other, theirs: Other, request: str, turns: int) -> tuple[str, ...] | None:
    """Return a row of the table."""
    pairs = [(ours.step(request), theirs.step(request)) for _ in range(turns)]
    if any(one != one for one, _ in pairs):
        return None
    low, middle, high = statistics.quantiles([one / other for one, other in pairs], n=4)
    step = f"{1e3 * statistics.median(one for one, _ in pairs):.0f} ms"
    fastest = min(one for one, _ in pairs) / min(other for _, other in pairs)
    spread, verdict = f"{low:.3f} to {high:.3f}", "yes" if fastest <= TARGET else "no"
    return (request.split(";")[1], step, f"{middle:.3f}", spread, f"{fastest:.3f}", verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="the src folder of another checkout")
    parser.add_argument("--tasks", default=DEFAULT)
    parser.add_argument("--candidates", default="", help="names with semicolons; default all")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(arguments.threads)
    if arguments.serve:
        serve()
        return
    if arguments.against is None:
        print("rounding_cost compares with another checkout: say --against OTHER/src")
        return
    here = Path(__file__).resolve().parent.parent / "src"
    ours, theirs = (Other(path.resolve(), arguments.threads) for path in (here, arguments.against))
    names = arguments.candidates.split(";") if arguments.candidates else list(ESTIMATORS)
    try:
        for key in arguments.tasks.split(","):
            rows = [compare(ours, theirs, f"{key};{name}", arguments.turns) for name in names]
            kept = [row for row in rows if row is not None]
            table(key, ("", "step", "ratio", "quartiles", "fastest", f"<= {TARGET}"), kept)
    finally:
        ours.close()
        theirs.close()


if __name__ == "__main__":
    main()
