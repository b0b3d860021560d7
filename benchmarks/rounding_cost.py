"""What careful numbers cost: whole private steps with and without the bound on rounding.

``python -m benchmarks.rounding_cost [--tasks mlp:256,cnn:256] [--turns 15] [--threads 1]``. Two
processes take the same step in turns: one as the library is, and one in which the bound of
docs/proofs/rounding.md is switched off (`forget_rounding`): kernels over all records at once, sums
in float32, norms by one float32 reduction, no allowance for products that cancel. With ``--against
OTHER/src`` the other process has the package of another checkout instead. Shown are the median and
quartiles of the ratio within a turn, and the ratio of the fastest steps, which is what counts on a
machine that others use. With one thread the time is that of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import table
from benchmarks._private_steps import ESTIMATORS, TASKS, step_of
from benchmarks.gradient_speed import clock

DEFAULT = "mlp:256,cnn:256,transformer:64"
#: Largest ratio that we allow ourselves.
TARGET = 1.03


class Other:
    """A process that takes steps with the package at a path, or with careless numbers."""

    def __init__(self, source: Path, threads: int, careless: bool = False) -> None:
        environment = dict(os.environ, PYTHONPATH=str(source), OMP_NUM_THREADS=str(threads))
        command = [sys.executable, "-m", "benchmarks.rounding_cost", "--serve"]
        command += ["--threads", str(threads), *(["--careless"] if careless else [])]
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


def forget_rounding() -> None:
    """Compute as one would without a bound on rounding; for this measurement only."""
    from noisewise.gradients import collecting, tape
    from noisewise.gradients.contractions import (
        convolution,
        given,
        linear,
        pair,
        rounding,
        rows,
        tied,
    )
    from noisewise.gradients.contractions.pair import PairContraction

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
        for a in range(0, self.records, self.step):
            b = min(self.records, a + self.step)
            if instantiate <= gram:
                parts.append(row_norms(self._gradients(a, b)))
                continue
            left, right = (side(a, b).double() for side in (self.left, self.right))
            inner = (left.transpose(-1, -2) @ left) * (right.transpose(-1, -2) @ right)
            parts.append(inner.flatten(1).sum(1).clamp_min(0.0).sqrt())
        return rounding.alike(torch.cat(parts))

    def bias_sum(self: PairContraction, scale: Tensor | None, keep: Tensor | None) -> Tensor:
        return given.weighted(scale, pair.masked(self.biases, keep))

    for module in (convolution, given, linear, pair, rows, tied):
        for name, value in (("RECORDS", everybody), ("row_norms", row_norms), ("RUN", 1)):
            if hasattr(module, name):
                setattr(module, name, value)
    for user in (collecting, tape, tied):
        user.add_to = add_to  # type: ignore[attr-defined]
    pair.kernel_records = lambda positions, ratio, dtype: everybody
    linear.over_positions = convolution.over_positions = lambda values, axis: values.sum(axis)
    tape.held = lambda factors, norms, limit: factors
    PairContraction._weight_lengths = weight_lengths  # type: ignore[method-assign]
    PairContraction._bias_sum = bias_sum  # type: ignore[method-assign]


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
    parser.add_argument(
        "--against", type=Path, help="the src folder of another checkout; default: careless numbers"
    )
    parser.add_argument("--tasks", default=DEFAULT)
    parser.add_argument("--candidates", default="", help="names with semicolons; default all")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--careless", action="store_true", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(arguments.threads)
    if arguments.serve:
        if arguments.careless:
            forget_rounding()
        serve()
        return
    here = Path(__file__).resolve().parent.parent / "src"
    ours = Other(here, arguments.threads)
    careless = arguments.against is None
    other = here if careless else arguments.against.resolve()
    theirs = Other(other, arguments.threads, careless)
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
