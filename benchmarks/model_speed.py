"""One private step over one plain step of mainstream models: time, memory, and what falls back.

``python -m benchmarks.model_speed [--models t5:8,bert] [--device cuda] [--threads 1]
[--poisson] [--save FILE] [--page FILE --picture FILE]``. Candidates take one step after the other,
in turns; what counts is the ratio to the plain step of the same turn, and of it the median. With
one thread the time is that of the processor, so that a step that had to wait for other programs is
no slower for it; on a GPU and with several threads it is that of the clock. Memory is what the
steps need beyond weights and batch, at its peak, each candidate in a process of its own.

Batches have one size, or with ``--poisson`` those of Poisson sampling, for all candidates the same
ones; then pieces of a fixed size are filled up, which costs us something and plain SGD nothing.
Opacus takes part if it is installed (``pip install --no-deps opacus opt_einsum``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks import table
from benchmarks._mainstream import MODELS, Model
from benchmarks._private_steps import CLIP, NOISE, PROPAGATED_RATE, RATE, fit_pieces, opacus
from noisewise import Plan, make_private
from noisewise.gradients import Clipped, Factored, InputScaled, Propagated
from noisewise.gradients.interception import FallbackWarning
from noisewise.gradients.runner import WatchedWarning
from noisewise.privacy import Randomness

PLAIN, FLOOR = "plain", "plain + noise"
MEASURED: dict[str, Callable[[], Any]] = {
    "per model": lambda: Clipped(CLIP),
    "per layer": lambda: Clipped(CLIP, per="layer"),
    "Factored": lambda: Factored(CLIP),
}
PROPAGATING: dict[str, Callable[[], Any]] = {"Propagated": Propagated, "InputScaled": InputScaled}
OURS = {**MEASURED, **PROPAGATING}
PEERS = {"Opacus hooks": "hooks", "Opacus ghost": "ghost"}
Step = Callable[[Any, Any], None]
#: Bytes below which the system's own habits are larger than what is measured.
_MEASURABLE = 8 << 20
#: Result of a row: seconds by candidate, bytes by candidate, what fell back and why.
Row = dict[str, Any]


def plain(model: Model, device: str, noisy: bool = False) -> Step:
    """Ordinary SGD, with noise on its gradients if asked: what no private step undercuts."""
    module = model.build().to(device)
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer, rng = torch.optim.SGD(parameters, RATE), Randomness.secure()

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        output = module(**x) if isinstance(x, dict) else module(x)
        model.loss(output, y).mean().backward()
        if noisy:
            gradients = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_add_(gradients, rng.normal_for(gradients, [1e-3] * len(gradients)))
        optimizer.step()

    return step


def private(model: Model, name: str, expected: int, device: str, poisson: bool) -> Step:
    """`PrivateRun.step`: bounded sum, charge, noise, division, optimizer, projection."""
    module, estimator = model.build().to(device), OURS[name]()
    rate = PROPAGATED_RATE if isinstance(estimator, Propagated) else RATE
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], rate)
    loss = nn.CrossEntropyLoss() if model.lipschitz else model.loss
    plan = Plan(
        gradients=estimator,
        noise_multiplier=NOISE,
        steps=10_000,
        batch_size=expected,
        records=100 * expected,
        delta=1e-6,
    )
    run = make_private(module, optimizer, loss, None, plan)
    if not poisson:
        fit_pieces(run._engine, model.batch(expected)[0], expected)
    return run.step


def peer(model: Model, mode: str, expected: int) -> Step:
    """A step of Opacus; inputs by name are not what its hooks take, so they are given in order."""
    if model.lipschitz:
        raise NotImplementedError("it bounds by clipping only")
    return opacus(model.build(), mode, expected, model.loss)


def step_of(key: str, name: str, expected: int, device: str, poisson: bool) -> Step:
    """One candidate, from the same weights."""
    torch.manual_seed(0)
    model = MODELS[key]
    if name in (PLAIN, FLOOR):
        return plain(model, device, name == FLOOR)
    if name in PEERS:
        return peer(model, PEERS[name], expected)
    return private(model, name, expected, device, poisson)


def candidates(key: str) -> list[str]:
    """Who takes part in a row."""
    return [PLAIN, FLOOR, *(PROPAGATING if MODELS[key].lipschitz else MEASURED), *PEERS]


def _on(device: str, values: Any) -> Any:
    return pytree.tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, values)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


# -- time ------------------------------------------------------------------------------------


def clock(device: str) -> float:
    """Seconds of this process if it has one thread, else of the wall clock."""
    if device != "cpu":
        torch.accelerator.synchronize()
        return time.perf_counter()
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(
    key: str, expected: int, names: list[str], repeats: int, device: str, poisson: bool
) -> Row:
    """Seconds of every candidate, in turns, after two steps that do not count."""
    model, steps, left = MODELS[key], {}, {}
    sizes = torch.Generator().manual_seed(1)
    fallbacks: list[str] = []
    for name in names:
        torch.manual_seed(1)
        batch = _on(device, model.batch(expected))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            try:
                step = step_of(key, name, expected, device, poisson)
                for _ in range(2):
                    step(*batch)
            except Exception as error:  # whatever a peer raises is its answer
                left[name] = _first_line(error)
                continue
        steps[name] = step
        kinds = (FallbackWarning, WatchedWarning)
        fallbacks += [str(w.message) for w in found if issubclass(w.category, kinds)]
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        mean = torch.tensor(float(expected))
        records = int(torch.poisson(mean, sizes)) if poisson else expected
        batch = _on(device, model.batch(max(records, 1)))
        for name, step in steps.items():
            start = clock(device)
            step(*batch)
            seconds[name].append(clock(device) - start)
    return {"seconds": seconds, "left": left, "fallbacks": sorted(set(fallbacks))}


# -- memory ----------------------------------------------------------------------------------


def _size(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def needed(key: str, expected: int, name: str, device: str) -> int:
    """Bytes that three steps of one candidate need at their peak, in a process of its own."""
    model = MODELS[key]
    step = step_of(key, name, expected, device, False)
    batch = _on(device, model.batch(expected))
    step(*batch)  # what is built once (kernels, certificates, the proof) is no step
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            step(*batch)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")
    before = _size("VmRSS")
    for _ in range(3):
        step(*batch)
    return _size("VmHWM") - before


def memory(key: str, expected: int, names: list[str], device: str, threads: int) -> dict[str, int]:
    """Peak of each candidate. Freed tensors go back to the system at once, so that it is real."""
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    found = {}
    for name in names:
        options = ["--needed", f"{key}:{expected}:{name}", "--device", device]
        command = [sys.executable, "-m", "benchmarks.model_speed", *options]
        command += ["--threads", str(threads)]
        ran = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        answer = ran.stdout.strip().splitlines()
        if ran.returncode == 0 and answer and answer[-1].isdigit():
            found[name] = int(answer[-1])
    return found


def held(key: str, expected: int) -> int:
    """Bytes of weights and batch, which training holds in any case."""
    tensors = [*MODELS[key].build().parameters(), *pytree.tree_leaves(MODELS[key].batch(expected))]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


# -- showing ---------------------------------------------------------------------------------


def ratio(row: Row, name: str, base: str = PLAIN) -> float | None:
    """Median over the turns of the ratio to the plain step of that turn."""
    seconds = row["seconds"]
    if name not in seconds or base not in seconds:
        return None
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def memory_ratio(row: Row, name: str) -> float | None:
    """Peak of everything that training holds, over that of plain SGD."""
    found = row.get("memory", {})
    if name not in found or PLAIN not in found or row["held"] + found[PLAIN] < _MEASURABLE:
        return None
    return (row["held"] + found[name]) / (row["held"] + found[PLAIN])


def show(title: str, row: Row) -> None:
    """Print one row of the page as a table."""
    rows = []
    for name, seconds in row["seconds"].items():
        values = ratio(row, name), ratio(row, name, FLOOR), memory_ratio(row, name)
        shown = ["" if value is None else f"{value:.2f}" for value in values]
        rows.append((name, f"{1e3 * statistics.median(seconds):.1f} ms", *shown))
    table(title, ("", "step", "/ plain", "/ plain + noise", "memory / plain"), rows)
    for name, reason in row["left"].items():
        print(f"  {name} is left out: {reason}")
    for text in row["fallbacks"]:
        print(f"  not taken apart: {text[:200]}")


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def page(results: dict[str, Row], file: Path, how: str) -> None:
    """Write the table between two marks of a page."""
    header = (
        "| model, batch | plain | + noise | per model | per layer | Factored | memory: per model "
    )
    header += "| per layer | Opacus: hooks | ghost |"
    lines = [how, "", header, "|" + "---|" * header.count(" |")]
    for key, row in results.items():
        name, size = key.split(":")
        cells = [f"{MODELS[name].name}, {size}"]
        cells.append(f"{1e3 * statistics.median(row['seconds'][PLAIN]):.3g} ms")
        ours = PROPAGATING if MODELS[name].lipschitz else MEASURED
        for candidate in (FLOOR, *ours):
            cells.append(_cell(ratio(row, candidate)))
        cells += [""] * (3 - len(ours))
        cells += [_cell(memory_ratio(row, c)) for c in list(ours)[:2]]
        for candidate in PEERS:
            found = _cell(ratio(row, candidate))
            cells.append(found or ("fails" if candidate in row["left"] else ""))
        lines.append("| " + " | ".join(cells) + " |")
    before, _, rest = file.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]))


def picture(results: dict[str, Row], file: Path) -> None:
    """Draw the ratios of all models, ours and Opacus's, beside each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    keys = list(results)[::-1]
    figure, axis = plt.subplots(figsize=(8.5, 0.42 * len(keys) + 1.2))
    looks = {
        "per model": ("#1b6ca8", "o"),
        "per layer": ("#4aa3df", "s"),
        "Factored": ("#7fc97f", "D"),
        "Propagated": ("#1b6ca8", "o"),
        "InputScaled": ("#4aa3df", "s"),
        "Opacus hooks": ("#777777", "x"),
        "Opacus ghost": ("#bbbbbb", "+"),
    }
    shown: set[str] = set()
    for height, key in enumerate(keys):
        for name, (colour, marker) in looks.items():
            value = ratio(results[key], name)
            if value is not None:
                label = None if name in shown else name
                shown.add(name)
                axis.plot(value, height, marker, color=colour, label=label, markersize=7)
        floor = ratio(results[key], FLOOR)
        if floor is not None:
            axis.plot([floor, floor], [height - 0.3, height + 0.3], color="black", linewidth=1)
    axis.set_yticks(range(len(keys)))
    axis.set_yticklabels([f"{MODELS[k.split(':')[0]].name}, {k.split(':')[1]}" for k in keys])
    axis.set_xscale("log")
    axis.set_xticks([1, 1.5, 2, 3, 5, 10, 30, 100])
    axis.set_xticklabels(["1", "1.5", "2", "3", "5", "10", "30", "100"])
    axis.set_xlabel("a step over plain SGD's (the line: plain SGD and noise)")
    axis.grid(axis="x", color="#dddddd")
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def rows_of(wanted: str) -> list[tuple[str, int]]:
    """From ``t5:8,bert`` to models and batches."""
    found = []
    for item in wanted.split(",") if wanted else MODELS:
        key, _, size = item.partition(":")
        found += [(key, int(size))] if size else [(key, n) for n in MODELS[key].sizes]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="model or model:batch, with commas")
    parser.add_argument("--candidates", default="", help="names with semicolons; default all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--poisson", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--page", type=Path, help="writes the table between two marks there")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--needed", default="", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=UserWarning)
    if arguments.needed:
        key, size, name = arguments.needed.split(":")
        print(needed(key, int(size), name, arguments.device))
        return
    results: dict[str, Row] = {}
    if arguments.save is not None and arguments.save.exists():
        results = json.loads(arguments.save.read_text())
    for key, size in rows_of(arguments.models) if arguments.repeats else ():
        names = candidates(key)
        if arguments.candidates:
            names = [PLAIN, *(n for n in names if n in arguments.candidates.split(";"))]
        row = timed(key, size, names, arguments.repeats, arguments.device, arguments.poisson)
        row["held"] = held(key, size)
        if not arguments.no_memory:
            working = [name for name in names if name in row["seconds"] and name != FLOOR]
            row["memory"] = memory(key, size, working, arguments.device, arguments.threads)
        results[f"{key}:{size}"] = row
        show(f"{MODELS[key].name}, batch {size}", row)
        if arguments.save is not None:
            arguments.save.write_text(json.dumps(results))
    results = {key: results[key] for key in _in_order(results)}
    device = "processor time" if arguments.device == "cpu" and arguments.threads == 1 else "time"
    how = f"{arguments.threads} thread(s) on {arguments.device}, {device}."
    if arguments.page is not None:
        page(results, arguments.page, how)
    if arguments.picture is not None:
        picture(results, arguments.picture)


def _in_order(results: dict[str, Row]) -> list[str]:
    known = [f"{key}:{size}" for key, model in MODELS.items() for size in model.sizes]
    return [key for key in known if key in results] + [key for key in results if key not in known]


if __name__ == "__main__":
    main()
