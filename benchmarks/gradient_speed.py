"""Whole private steps beside plain SGD of the same model and beside Opacus.

``python -m benchmarks.gradient_speed [--tasks cnn:256,mlp:1024] [--repeats 5] [--save FILE]
[--pictures DIRECTORY]``. One step of each candidate after the other, many times. What counts
is the ratio to the plain step of the same turn, and of it the median.

With one thread the time is that of the processor, not of the clock: on a machine that others
use too, a step that had to wait is no slower. With more threads it is that of the clock.
``--save`` adds the samples to a file, so that a table can be gathered in several short runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from benchmarks import table
from benchmarks._private_steps import (
    BASE,
    ESTIMATORS,
    FLOOR,
    HALVES,
    PEERS,
    TASKS,
    TWIN,
    Step,
    Task,
    base_of,
    cnn,
    step_of,
)

DEFAULT = "cnn:256,cnn:1024,mlp:1024,transformer:64"
Samples = dict[str, list[float]]

#: Largest ratio to plain SGD that we allow ourselves, by task, for the estimators in order.
TARGETS = {
    "cnn:256": (1.15, 1.15, 1.15, 1.6, 1.8),
    "cnn:1024": (1.2, 1.2, 1.2, 1.6, 1.8),
    "mlp:1024": (1.5, 1.5, 1.5, 1.5, 1.5),
    "transformer:64": (None, None, None, 1.7, None),
}


def clock() -> float:
    """Seconds of this process if it has one thread, else of the wall clock."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def turns(steps: dict[str, Callable[[], object]], repeats: int) -> Samples:
    """Seconds of every candidate, in turns, after one step that does not count."""
    for run in steps.values():
        run()
    seconds: Samples = {name: [] for name in steps}
    for _ in range(repeats):
        for name, run in steps.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def built(task: Task, batch: int, names: Iterable[str]) -> dict[str, Step]:
    """All candidates that work here; says why the others do not."""
    steps = {}
    for name in names:
        try:
            step = step_of(task, name, batch)
            if step is not None:
                step(*task.batch(2))
        except (ImportError, NotImplementedError, RuntimeError, ValueError, TypeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            print(f"  {name} is left out: {type(error).__name__}: {reason[:120]}")
            continue
        if step is not None:
            steps[name] = step
    return steps


def measure(key: str, repeats: int, names: list[str]) -> Samples:
    """Samples of one task, ``model:batch``."""
    kind, size = key.split(":")
    task, batch = TASKS[kind], int(size)
    torch.manual_seed(0)
    x, y = task.batch(batch)
    steps = built(task, batch, names)
    return turns({name: partial(step, x, y) for name, step in steps.items()}, repeats)


def ratio(samples: Samples, name: str, base: str | None = None) -> float:
    """Median over the turns of the ratio to the plain step of that turn."""
    base = base_of(name) if base is None else base
    pairs = zip(samples[name], samples[base], strict=False)
    return statistics.median(one / other for one, other in pairs)


def show(key: str, samples: Samples) -> None:
    """Print the table of one task."""
    limits = dict(zip(ESTIMATORS, TARGETS.get(key, (None,) * 5), strict=True))
    rows = []
    for name, seconds in samples.items():
        found = ratio(samples, name)
        floor = found / ratio(samples, FLOOR) if name in ESTIMATORS and FLOOR in samples else None
        limit = limits.get(name)
        rows.append(
            (
                name,
                f"{1e3 * statistics.median(seconds):.0f} ms",
                f"{found:.2f}",
                "" if limit is None else f"{limit:.2f}",
                "" if floor is None else f"{floor:.2f}",
                str(len(seconds)),
            )
        )
    kind, size = key.split(":")
    title = f"{TASKS[kind].name}, {TASKS[kind].parameters:,} parameters, batch {size}"
    header = ("", "step", "/ plain", "target", "/ plain + noise", "turns")
    table(title, header, rows)


def growth(kind: str, sizes: list[int], repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds of a step of a CNN by batch or by width (parameters)."""
    found: dict[str, dict[str, float]] = {}
    names = [BASE, "Factored", "Clipped per layer", "Clipped per model"]
    for size in sizes:
        width, batch = (16, size) if kind == "batch" else (size, 64)
        task = Task("CNN", partial(cnn, width), None, TASKS["cnn"].batch)
        x, y = task.batch(batch)
        steps = {n: partial(s, x, y) for n, s in built(task, batch, names).items()}
        at = str(batch if kind == "batch" else task.parameters)
        for name, seconds in turns(steps, repeats if size < 2048 else 2).items():
            found.setdefault(name, {})[at] = statistics.median(seconds)
        print(f"  {kind} {at}: " + ", ".join(f"{n} {v[at]:.3f} s" for n, v in found.items()))
    return found


def pictures(results: dict[str, dict[str, object]], folder: Path) -> None:
    """Draw the ratios of all tasks, and the growth, as far as they were measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    tasks = [key for key in results if key in TARGETS]
    if tasks:
        figure, axes = plt.subplots(1, len(tasks), figsize=(3.6 * len(tasks), 3.6), squeeze=False)
        for axis, key in zip(axes[0], tasks, strict=True):
            samples: Samples = results[key]  # type: ignore[assignment]
            names = [n for n in (*ESTIMATORS, *PEERS) if n in samples][::-1]
            values = [ratio(samples, name) for name in names]
            colours = ["#1b6ca8" if name in ESTIMATORS else "#b0b0b0" for name in names]
            axis.barh(names, values, color=colours)
            axis.axvline(1.0, color="black", linewidth=1)
            for place, value in enumerate(values):
                axis.text(value, place, f" {value:.2f}", va="center", fontsize=8)
            if max(values) > 20:
                axis.set_xscale("log")
                axis.set_xlim(0.5, max(values) * 6)
            else:
                axis.set_xlim(0, max(values) * 1.2)
            kind, size = key.split(":")
            axis.set_title(f"{TASKS[kind].name}, batch {size}", fontsize=10)
            axis.set_xlabel("time / plain SGD")
            axis.tick_params(labelsize=8)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
        figure.tight_layout()
        figure.savefig(folder / "speed_ratios.png", dpi=110)
        plt.close(figure)
    kinds = {"growth batch": "records in the batch", "growth width": "parameters"}
    drawn = [key for key in kinds if key in results]
    if drawn:
        figure, axes = plt.subplots(1, len(drawn), figsize=(4.6 * len(drawn), 3.6), squeeze=False)
        for axis, key in zip(axes[0], drawn, strict=True):
            curves: dict[str, dict[str, float]] = results[key]  # type: ignore[assignment]
            for name, points in curves.items():
                xs = [int(size) for size in points]
                axis.loglog(xs, list(points.values()), "o-", markersize=3, label=name)
            first = next(iter(curves.values()))
            sizes = [int(size) for size in first]
            last = first[str(sizes[-1])]
            line = [last * size / sizes[-1] for size in sizes]
            axis.loglog(sizes, line, ":", color="grey", label="slope 1")
            axis.set_xlabel(kinds[key])
            axis.set_ylabel("seconds a step")
            axis.legend(fontsize=8, frameon=False)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
        figure.tight_layout()
        figure.savefig(folder / "speed_growth.png", dpi=110)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=DEFAULT, help="model:batch, with commas; or none")
    parser.add_argument("--candidates", default="", help="names with semicolons; default all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--growth", default="", help="batch, width or both with a comma")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--pictures", type=Path)
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=UserWarning)
    results: dict[str, dict[str, object]] = {}
    if arguments.save is not None and arguments.save.exists():
        results = json.loads(arguments.save.read_text())
    everybody = [BASE, TWIN, FLOOR, *ESTIMATORS, HALVES, *PEERS]
    names = arguments.candidates.split(";") if arguments.candidates else everybody
    tasks = "" if arguments.tasks == "none" else arguments.tasks
    for key in filter(None, tasks.split(",")):
        if arguments.repeats:
            samples = measure(key, arguments.repeats, names)
            kept = results.setdefault(key, {})
            if set(kept) - set(samples):  # turns of other candidates cannot be paired
                kept.clear()
            for name, seconds in samples.items():
                kept.setdefault(name, []).extend(seconds)  # type: ignore[attr-defined]
        show(key, results[key])  # type: ignore[arg-type]
    sizes = {"batch": [2**k for k in range(6, 14)], "width": [8, 16, 32, 64]}
    for kind in filter(None, arguments.growth.split(",")):
        results[f"growth {kind}"] = growth(kind, sizes[kind], arguments.repeats)  # type: ignore[assignment]
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(results))
    if arguments.pictures is not None:
        pictures(results, arguments.pictures)


if __name__ == "__main__":
    main()
