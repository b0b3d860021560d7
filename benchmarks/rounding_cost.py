"""What careful numbers cost: whole private steps with and without the bound on rounding.

``python -m benchmarks.rounding_cost [--tasks mlp:256,cnn:256] [--turns 15] [--threads 1]``. One
process takes the same step in turns, as the library is and without the bound of
docs/proofs/rounding.md (`careless_numbers`): kernels over all records at once, sums in float32,
norms by one float32 reduction, factors as the rule says, no allowance for products that cancel.
With ``--against OTHER/src`` two processes take turns, the other one with the package of another
checkout. Shown are the median and quartiles of the ratio within a turn, and the ratio of the
fastest steps, which is what counts on a machine that others use. With one thread the time is that
of the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import table
from benchmarks._private_steps import ESTIMATORS, TASKS, step_of
from benchmarks.gradient_speed import clock
from noisewise.gradients import collecting, tape
from noisewise.gradients.contractions import convolution, given, linear, pair, rounding, rows, tied
from noisewise.gradients.contractions.pair import PairContraction

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


@contextlib.contextmanager
def careless_numbers() -> Iterator[None]:
    """Compute as one would without a bound on rounding; for this measurement only."""
    everybody = 1 << 30

    def row_norms(values: Tensor) -> Tensor:
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return norms.double()

    def add_to(sums: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
        for name, part in parts.items():
            sums[name] = sums[name].add_(part) if name in sums else part

    def weight_lengths(self: PairContraction) -> Tensor:
        if self.sizes[2] == 1:
            return rounding.alike(self.positions_bound())
        instantiate, gram, _ = self._costs()
        parts = []
        for a, b in pair.chunks(self.records, self.step):
            if instantiate <= gram:
                parts.append(row_norms(self._gradients(a, b)))
                continue
            left, right = (side(a, b).double() for side in (self.left, self.right))
            inner = (left.transpose(-1, -2) @ left) * (right.transpose(-1, -2) @ right)
            parts.append(inner.flatten(1).sum(1).clamp_min(0.0).sqrt())
        return rounding.alike(torch.cat(parts))

    def bias_sum(self: PairContraction, scale: Tensor | None, keep: Tensor | None) -> Tensor:
        return given.weighted(scale, pair.masked(self.biases, keep))

    def plain_sum(values: Tensor, axis: int) -> Tensor:
        return values.sum(axis)

    changes: list[tuple[Any, str, Any]] = [
        *((user, "add_to", add_to) for user in (collecting, tape, tied)),
        *((user, "over_positions", plain_sum) for user in (linear, convolution)),
        (pair, "kernel_records", lambda *given: everybody),
        (tape, "held", lambda factors, norms, limit: factors),
        (PairContraction, "_weight_lengths", weight_lengths),
        (PairContraction, "_bias_sum", bias_sum),
    ]
    for module in (convolution, given, linear, pair, rows, tied):
        for name, value in (("RECORDS", everybody), ("row_norms", row_norms), ("RUN", 1)):
            if hasattr(module, name):
                changes.append((module, name, value))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class Here:
    """Steps of this process, careful or careless."""

    def __init__(self, careless: bool) -> None:
        self.mood = careless_numbers if careless else contextlib.nullcontext

    def step(self, request: str) -> float:
        """Seconds of one step; NaN if this estimator cannot do the task."""
        with self.mood():
            return seconds_of(request, self.mood)

    def close(self) -> None:
        """There is nothing to end."""


_STEPS: dict[Any, Any] = {}


def seconds_of(request: str, mood: Any = None) -> float:
    """Seconds that the step of a request (``task:batch;estimator``) takes, NaN if there is none."""
    key, name = request.split(";")
    kind, size = key.split(":")
    if (request, mood) not in _STEPS:
        for old in [known for known in _STEPS if known[0] != request]:
            del _STEPS[old]
        torch.manual_seed(0)
        step, batch = step_of(TASKS[kind], name, int(size)), TASKS[kind].batch(int(size))
        _STEPS[request, mood] = step, batch
        if step is not None:
            step(*batch)
    step, batch = _STEPS[request, mood]
    if step is None:
        return math.nan
    start = clock()
    step(*batch)
    return clock() - start


def serve() -> None:
    """Answer every request by its seconds."""
    for line in sys.stdin:
        print(seconds_of(line.strip()), flush=True)


def compare(
    ours: Other | Here, theirs: Other | Here, request: str, turns: int
) -> tuple[str, ...] | None:
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
    parser.add_argument(
        "--against", type=Path, help="the src folder of another checkout; default: careless numbers"
    )
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
    here = Path(__file__).resolve().parent.parent / "src"
    ours: Other | Here = Here(careless=False)
    theirs: Other | Here = Here(careless=True)
    if arguments.against is not None:
        ours, theirs = (
            Other(path.resolve(), arguments.threads) for path in (here, arguments.against)
        )
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
