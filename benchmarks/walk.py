"""How many modules a training step and a private curve go through: ``python -m benchmarks.walk``.

A profiler notes every function of noisewise that is entered, in the order of the first entry. The
first step and the first curve are left out: what they plan and prove is remembered.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import noisewise as nw

ROOT = str(Path(nw.__file__).parent)

__all__ = ["main", "walked"]


def walked(action: Callable[[], object]) -> Counter[str]:
    """Return how many calls each module of noisewise took, in the order of the first."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and frame.f_code.co_name != "<module>":
            calls[Path(name).relative_to(ROOT).with_suffix("").as_posix()] += 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def a_step() -> Callable[[], object]:
    """Return one step of a small model with flat clipping."""
    torch.manual_seed(0)
    records = torch.randn(64, 8), torch.randint(0, 2, (64,))
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), epsilon=5.0, delta=1e-5, steps=50, sample_rate=0.5, seed=1
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = nw.make_private(model, optimizer, nn.CrossEntropyLoss(), records, plan)
    batches = iter(run.loader)
    return lambda: run.step(*next(batches))


def a_curve() -> Callable[[], object]:
    """Return one private ROC curve."""
    drawn = np.random.default_rng(0)
    labels, scores = drawn.integers(0, 2, 1000), drawn.random(1000)
    return lambda: nw.ecdf.dp_roc_curve(labels, scores, epsilon=1.0)


def main() -> None:
    """Print both walks."""
    for title, make in (("one training step", a_step), ("dp_roc_curve", a_curve)):
        act = make()
        act()
        calls = walked(act)
        print(f"{title}: {len(calls)} modules, {sum(calls.values())} calls")
        for name, count in calls.items():
            print(f"  {count:5d}  {name}")


if __name__ == "__main__":
    main()
