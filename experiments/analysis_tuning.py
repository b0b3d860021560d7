"""Settings chosen on held-back records, then several seeds.

What the tables after Bu, Wang, Dai and Long (2021) rest on.

Every rule gets its own clipping norm and learning rate: the pair with the best accuracy (or
loss) on records that are neither trained on nor reported, with the first seed. This choice looks
at data without noise. It is NOT part of the stated epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from analysis_training import Outcome, Setup, Stopwatch, obtain, spent

from noisewise.analysis.calibration import Calibration, measure

__all__ = [
    "Rows",
    "best",
    "grid",
    "held_back",
    "print_choices",
    "print_seeds",
    "repeat",
    "reported",
    "said",
]

Rows = Mapping[str, tuple[Setup, list[Outcome]]]


def grid(base: Setup, clips: Sequence[float], rates: Sequence[float]) -> list[Setup]:
    """Every pair of a clipping norm and a rate."""
    return [replace(base, clip=clip, rate=rate) for clip in clips for rate in rates]


def held_back(run: Outcome) -> Calibration:
    return measure(np.nan_to_num(run.held), run.held_labels, logits=True)


def reported(run: Outcome) -> Calibration:
    return measure(np.nan_to_num(run.test), run.test_labels, logits=True)


def best(candidates: Sequence[Setup], watch: Stopwatch, by: str = "accuracy") -> Setup:
    """The candidate that held-back records like best."""
    sign = 1.0 if by == "accuracy" else -1.0
    return max(candidates, key=lambda s: sign * getattr(held_back(obtain(s, watch)), by))


def repeat(setup: Setup, seeds: int, watch: Stopwatch) -> list[Outcome]:
    """The same setup with other initial weights, batches and noise."""
    return [obtain(replace(setup, seed=seed), watch) for seed in range(seeds)]


def said(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    array = factor * np.asarray(values)
    return f"{array.mean():.{digits}f} ± {array.std(ddof=1):.{digits}f}"


def print_choices(candidates: Sequence[Setup], watch: Stopwatch) -> None:
    """Print what the choice was made from."""
    for setup in candidates:
        kept = held_back(obtain(setup, watch))
        late = f", then {setup.late:g}" if setup.late else ""
        length = f"{setup.steps} steps" if setup.steps else f"{setup.epochs} epochs"
        print(f"  {setup.rule} per {setup.per}, R {setup.clip:g}{late}, rate {setup.rate:g}, "
              f"{length}: held-back accuracy {100 * kept.accuracy:.1f} %, "
              f"NLL {kept.nll:.3f}, ECE {100 * kept.ece:.1f} %")  # fmt: skip


def print_seeds(rows: Rows, title: str) -> None:
    """Print what Table 2 of Bu, Wang, Dai and Long (2021) holds, and more, over seeds."""
    print(f"\n{title}\n")
    print("| method | R | rate | epsilon | accuracy % | NLL | ECE % | MCE % | over-conf. % |")
    print("|---" * 9 + "|")
    for label, (setup, runs) in rows.items():
        found = [reported(run) for run in runs]
        epsilon = spent(max(run.epsilon for run in runs))
        clip = "" if setup.rule in ("none", "automatic") else f"{setup.clip:g}"
        clip += f", {setup.late:g}" if setup.late else ""
        cells = [said([c.accuracy for c in found], 1, 100), said([c.nll for c in found], 3)]
        cells += [
            said([getattr(c, name) for c in found], 1, 100)
            for name in ("ece", "mce", "overconfidence")
        ]
        print(f"| {label} | {clip} | {setup.rate:g} | {epsilon} | " + " | ".join(cells) + " |")
