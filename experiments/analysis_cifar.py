"""Bu, Wang, Dai and Long (2021) on CIFAR10.

Figures 3, 4 and 9, Table 2, confidence histograms (6, 14).

Writes docs/images/analysis_cifar_{noise,norm,curves,diagrams}.png and prints the tables. A smaller
CNN than the paper's on 16 x 16 pixels; of the 10,000 records at hand 9,000 train and 1,000 choose
norm and rate of each rule. Figure 3 on one hidden layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from analysis_pictures import curves, diagrams
from analysis_training import Setup, Stopwatch, arguments, obtain, spent
from analysis_tuning import best, grid, print_choices, print_seeds, repeat, reported, said

BASE = Setup(
    "cifar", batch=500, steps=200, sigma=1.3, options=(("records", 9_000), ("held", 1_000))
)
LOCAL, GLOBAL = replace(BASE, rule="clip"), replace(BASE, rule="global")
RATES = (1.0, 2.0, 4.0)
NORMS = (10.0, 20.0, 40.0)
WAYS = {
    "not private": [replace(BASE, rate=rate, steps=n) for n in (400, 800) for rate in (0.3, 0.5)],
    "local": grid(LOCAL, (1.5, 5.0), RATES),
    "local layerwise": grid(replace(LOCAL, per="layer"), (0.5,), RATES),
    "automatic": grid(replace(BASE, rule="automatic"), (1.0,), RATES),
    "global": grid(GLOBAL, NORMS, RATES),
    "global layerwise": grid(replace(GLOBAL, per="layer"), (10.0,), RATES),
}
SMALL = {"task": "small_cifar", "epochs": 8, "batch": 250, "rule": "clip", "rate": 0.5}
SIGMAS = (0.0, 0.65, 1.3, 2.6, 5.2)


def noise(seeds: int, watch: Stopwatch) -> None:
    """Figure 3: local clipping under more and more noise."""
    setups = {f"sigma {sigma}": Setup(**SMALL, sigma=sigma) for sigma in SIGMAS}
    setups["no clipping (not private)"] = Setup(**{**SMALL, "rule": "none", "rate": 0.1})
    runs = {label: repeat(setup, seeds, watch) for label, setup in setups.items()}
    for label, many in runs.items():
        found = [reported(run) for run in many]
        print(f"{label}: test loss {said([c.nll for c in found], 3)}, training loss "
              f"{said([run.train_loss[-1] for run in many], 3)}, accuracy % "
              f"{said([c.accuracy for c in found], 1, 100)}, "
              f"epsilon {spent(many[0].epsilon)}")  # fmt: skip
    curves(runs, "analysis_cifar_noise", "CIFAR10, local clipping R 1, noise (figure 3)")


def same_norm(seeds: int, watch: Stopwatch) -> None:
    """Figure 4: both rules at the same norm, each with its own rate."""
    shown = {}
    for clip in NORMS:
        for name, base in (("local", LOCAL), ("global", GLOBAL)):
            setup = best(grid(base, (clip,), RATES), watch)
            shown[f"{name}, R {clip:g}"] = (setup, repeat(setup, seeds, watch))
    print_seeds(shown, f"CIFAR10: both rules at the same R, {seeds} seeds (figure 4)")
    picture = {k: runs for k, (_, runs) in shown.items()}
    curves(picture, "analysis_cifar_norm", "CIFAR10: the same R for both rules (figure 4)",
           ylim=(1.6, 3.2))  # fmt: skip
    local, other = (obtain(replace(base, clip=75.0, rate=4.0), watch) for base in (LOCAL, GLOBAL))
    print(f"largest difference of a logit between local and global clipping at R = 75: "
          f"{np.abs(local.test - other.test).max():.3g}")  # fmt: skip


def main() -> None:
    options = arguments(__doc__)
    watch = Stopwatch(options.seconds)
    chosen = {label: best(candidates, watch) for label, candidates in WAYS.items()}
    local, wide = chosen["local"], chosen["global"]
    layered = replace(LOCAL, per="layer")
    chosen["local layerwise, the same R"] = best(grid(layered, (10.0,), RATES), watch)
    chosen["local, R by NLL"] = best(WAYS["local"], watch, by="nll")
    chosen["mix-up"] = replace(local, rule="mix-up")
    chosen["mix-up, then global's R"] = replace(local, rule="mix-up", late=wide.clip)
    chosen["local, then global's R"] = replace(local, rule="widened", late=wide.clip)
    chosen["global, R 75"] = best(grid(GLOBAL, (75.0,), RATES), watch)  # the paper's norm
    for label, candidates in WAYS.items():
        print(f"\n{label}")
        print_choices(candidates, watch)
    rows = {k: (s, repeat(s, options.seeds, watch)) for k, s in chosen.items()}
    print_seeds(rows, f"CIFAR10 (test), {options.seeds} seeds")
    runs = {label: many for label, (_, many) in rows.items()}
    some = [label for label in runs if "R" not in label]
    curves({k: runs[k] for k in some}, "analysis_cifar_curves", "CIFAR10 (figure 9)",
           last=BASE.steps, ylim=(1.4, 3.5))  # fmt: skip
    fourth = ["not private", "local", "local, R by NLL", "global"]
    diagrams({k: runs[k][0] for k in fourth}, "analysis_cifar_diagrams", "CIFAR10 (figures 6, 14)")
    same_norm(options.seeds, watch)
    noise(options.seeds, watch)


if __name__ == "__main__":
    main()
