"""What it costs a step to be bound to what was proven: with the binding, and with it switched off.

``python -m benchmarks.binding [--models cnn:64,bert:8] [--threads 1,0] [--repeats 25]``. One run
takes steps in turns, as it is and without: nothing is noted, compared or put back. What counts is
the difference of two steps that follow each other, as a part of the bound one, and of it the median
(with the quartiles); beside it the same of the fastest step of each kind, which other programs on
the machine disturb least. The columns after them switch off one part alone. With one thread the
time is that of the processor, with several (0: as many as torch takes) that of the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks import table
from benchmarks._mainstream import MODELS
from benchmarks._private_steps import fit_pieces
from noisewise import Clipped, Plan, make_private
from noisewise.gradients import piece, runner, summation
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.comparing import Comparing
from noisewise.gradients.wiring import Wiring
from noisewise.separation import Path
from noisewise.training.binding import Binding


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


@contextlib.contextmanager
def _open(*args: Any) -> Iterator[None]:
    yield


class _NoStage:
    """In the place of `Stage`: state is left alone."""

    outgrown = False
    end = _nothing
    piece = staticmethod(contextlib.nullcontext)


class _NoChance:
    """In the place of `Chance`: no generator is looked at."""

    is_unseen = False
    restore = _nothing

    def __init__(self, device: Any) -> None:
        pass


#: What each part of the binding is, and what stands in its place while it is switched off.
PARTS: Mapping[str, list[tuple[Any, str, Any]]] = {
    "path": [
        (Path, "note", _nothing),
        (Path, "name", _nothing),
        (Path, "hand_over", _nothing),
        (Wiring, "proves", lambda self, path: True),
    ],
    "state": [
        (Buffers, "remember", _nothing),
        (Buffers, "moved", _nothing),
        (Buffers, "learn", _nothing),
        (Buffers, "restore", _nothing),
        (Buffers, "accept_moved", _nothing),
        (Buffers, "require_unchanged", _nothing),
        (Buffers, "stage", lambda self, held=None: _NoStage()),
    ],
    "surroundings": [
        (piece, "as_written", contextlib.nullcontext),
        (piece, "noticing_backward_code", _open),
        (piece, "noticing_threads", _open),
        (runner, "check_hooks", _nothing),
        (runner, "check_gradients", _nothing),
        (Comparing, "compare_pieces", _nothing),
        (summation, "Chance", _NoChance),
        (Binding, "require", _nothing),
    ],
}


@contextlib.contextmanager
def without(*parts: str) -> Iterator[None]:
    """Some parts of the binding switched off."""
    changed = [patch for part in parts for patch in PARTS[part]]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changed]
    for owner, name, stand_in in changed:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def measured(key: str, records: int, repeats: int) -> dict[str, Any]:
    """Seconds of bound steps, and of those without each part."""
    torch.manual_seed(0)
    model = MODELS[key]
    module = model.build().train()
    plan = Plan(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=100_000, batch_size=records,
        records=100 * records, delta=1e-6,
    )  # fmt: skip
    run = make_private(module, torch.optim.SGD(module.parameters(), 1e-3), model.loss, None, plan)
    x, y = model.batch(records)
    fit_pieces(run._engine, x, records)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    ways: dict[str, tuple[str, ...]] = {"bound": (), "unbound": tuple(PARTS)}
    ways |= {part: (part,) for part in PARTS}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-3, repeats):
        for way, parts in ways.items():
            with without(*parts):
                start = clock()
                run.step(x, y)
                taken = clock() - start
            if turn >= 0:
                seconds[way].append(taken)
    run.close()
    return seconds


def share(seconds: Mapping[str, list[float]], way: str) -> list[float]:
    """Quartiles of what a way saves, in percent of a bound step."""
    bound = seconds["bound"]
    saved = [100 * (one - other) / one for one, other in zip(bound, seconds[way], strict=True)]
    return statistics.quantiles(saved, n=4)


def show(rows: list[str], repeats: int) -> None:
    found = []
    for row in rows:
        key, _, records = row.partition(":")
        size = int(records or MODELS[key].sizes[0])
        seconds = measured(key, size, repeats)
        low, middle, high = share(seconds, "unbound")
        cells = [
            f"{MODELS[key].name}, {size}",
            f"{1e3 * statistics.median(seconds['bound']):.1f} ms",
        ]
        fastest = 1 - min(seconds["unbound"]) / min(seconds["bound"])
        cells += [f"{middle:.1f} %", f"{low:.1f} to {high:.1f}", f"{100 * fastest:.1f} %"]
        cells += [f"{share(seconds, part)[1]:.1f} %" for part in PARTS]
        found.append(tuple(cells))
    header = ("", "a step", "binding", "quartiles", "fastest", *PARTS)
    table(f"What binding costs a step, {torch.get_num_threads()} thread(s)", header, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn:64,resnet:64,bert:8,gpt2:8,vit:8")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--threads", default="1,0")
    arguments, _ = parser.parse_known_args()
    default = torch.get_num_threads()
    for count in arguments.threads.split(","):
        torch.set_num_threads(int(count) or default)
        show(arguments.models.split(","), arguments.repeats)
    torch.set_num_threads(default)


if __name__ == "__main__":
    main()
