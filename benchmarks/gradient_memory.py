"""Peak memory of a private step over that of plain SGD, each in a process of its own.

``python -m benchmarks.gradient_memory [--tasks cnn:256,mlp:1024] [--save FILE]``. A process
imports everything, builds model, engine and batch, reads its resident size, takes three
steps and reads the largest resident size that the system ever saw: the difference is what the
steps needed. The last column adds weights and batch, which training holds in any case: it is
the peak of the whole over that of plain SGD. Linux only, where the peak can be reset
(``/proc/self/clear_refs``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import table
from benchmarks._private_steps import (
    BASE,
    ESTIMATORS,
    HALVES,
    PEERS,
    TASKS,
    TWIN,
    base_of,
    step_of,
)

DEFAULT = "cnn:256,cnn:1024,mlp:1024,transformer:64"
STEPS = 3


def _size(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def child(key: str, name: str) -> int:
    """Return how many bytes the steps of one candidate needed."""
    kind, size = key.split(":")
    task = TASKS[kind]
    step = step_of(task, name, int(size))
    assert step is not None
    # A tiny step first: what is built once (kernels, certificates, the probe) is no step.
    step(*task.batch(4))
    batch = task.batch(int(size))
    Path("/proc/self/clear_refs").write_text("5")
    before = _size("VmRSS")
    for _ in range(STEPS):
        step(*batch)
    return _size("VmHWM") - before


def held_by(kind: str, size: int) -> int:
    """Return how many bytes weights and batch take."""
    task = TASKS[kind]
    tensors = [*task.model().parameters(), *task.batch(size)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def needed(key: str, name: str) -> int | None:
    """Run one candidate in a process of its own; None if it does not work here."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        torch.set_num_threads(1)
        try:
            answer = str(child(key, name))
        except Exception as error:  # whatever a peer raises is its answer
            answer = f"{type(error).__name__}: {str(error).strip()[:120]}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.wait()
    os.close(reader)
    if answer.isdigit():
        return int(answer)
    print(f"  {name} is left out: {answer}")
    return None


def with_returned_memory() -> None:
    """Start anew so that freed tensors go back to the system at once, and the peak is real."""
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        command = [sys.executable, "-m", "benchmarks.gradient_memory", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, **settings}, check=False).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=DEFAULT)
    parser.add_argument("--candidates", default="")
    parser.add_argument("--save", type=Path)
    arguments, _ = parser.parse_known_args()
    with_returned_memory()
    torch.set_num_threads(1)
    results: dict[str, dict[str, int]] = {}
    if arguments.save is not None and arguments.save.exists():
        results = json.loads(arguments.save.read_text())
    everybody = [BASE, TWIN, *ESTIMATORS, HALVES, *PEERS]
    names = arguments.candidates.split(";") if arguments.candidates else everybody
    for key in arguments.tasks.split(","):
        found = results.setdefault(key, {})
        for name in names:
            lipschitz = TWIN in (name, base_of(name))
            if lipschitz and TASKS[key.split(":")[0]].lipschitz is None:
                continue
            bytes_needed = needed(key, name)
            if bytes_needed is not None:
                found[name] = bytes_needed
        kind, size = key.split(":")
        held = held_by(kind, int(size))
        rows = [
            (
                name,
                f"{value / 2**20:.0f} MiB",
                f"{value / found[base_of(name)]:.2f}",
                f"{(held + value) / (held + found[base_of(name)]):.2f}",
            )
            for name, value in found.items()
            if base_of(name) in found
        ]
        title = f"{TASKS[kind].name}, batch {size}, {held / 2**20:.0f} MiB of weights and batch"
        table(title, ("", "a step needs", "/ plain", "whole / plain"), rows)
        if arguments.save is not None:
            arguments.save.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
