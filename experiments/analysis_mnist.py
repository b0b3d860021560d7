"""Bu, Wang, Dai and Long (2021) on MNIST.

Figure 7 (loss, accuracy, effect of R), figure 8, Table 2.

Writes docs/images/analysis_mnist_{curves,norms,diagrams}.png and prints the tables. A smaller CNN
than the paper's on 14 x 14 pixels; 58,000 records train, 2,000 choose norm and rate of each rule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from analysis_pictures import curves, diagrams
from analysis_training import Setup, Stopwatch, arguments, obtain
from analysis_tuning import best, grid, print_choices, print_seeds, repeat, reported

BASE = Setup(
    "mnist", batch=1024, steps=400, sigma=1.1, options=(("records", 58_000), ("held", 2_000))
)
LOCAL, GLOBAL = replace(BASE, rule="clip"), replace(BASE, rule="global")
RATES = (2.0, 4.0, 8.0, 16.0)
WAYS = {
    "not private": grid(BASE, (1.0,), (0.3, 0.5, 0.8)),
    "local": grid(LOCAL, (1.0, 5.0), RATES),
    "local layerwise": grid(replace(LOCAL, per="layer"), (0.5,), RATES),
    "automatic": grid(replace(BASE, rule="automatic"), (1.0,), RATES),
    "global": grid(GLOBAL, (10.0, 30.0, 60.0), RATES),
}


def papers(wide: Setup, watch: Stopwatch) -> None:
    """Print what the paper's norm and its learning rate, 0.0007, come to."""
    slow = reported(obtain(replace(wide, rate=0.0007 * wide.clip), watch))
    print(f"R {wide.clip:g}, learning rate 0.0007: accuracy {100 * slow.accuracy:.1f} %")
    both = [obtain(setup, watch).test for setup in (wide, replace(wide, rule="clip"))]
    print(f"largest difference of a logit between local and global clipping at R {wide.clip:g}: "
          f"{np.abs(both[0] - both[1]).max():.3g}")  # fmt: skip


def main() -> None:
    options = arguments(__doc__)
    watch = Stopwatch(options.seconds)
    chosen = {label: best(candidates, watch) for label, candidates in WAYS.items()}
    local, wide = chosen["local"], chosen["global"]
    chosen["local, the same R as global"] = best(grid(LOCAL, (wide.clip,), RATES), watch)
    chosen["local, R by NLL"] = best(WAYS["local"], watch, by="nll")
    chosen["mix-up"] = replace(local, rule="mix-up")
    chosen["mix-up, then global's R"] = replace(local, rule="mix-up", late=wide.clip)
    chosen["local, then global's R"] = replace(local, rule="widened", late=wide.clip)
    chosen["global, R 210"] = best(grid(GLOBAL, (210.0,), RATES), watch)
    for label, candidates in WAYS.items():
        print(f"\n{label}")
        print_choices(candidates, watch)
    rows = {k: (s, repeat(s, options.seeds, watch)) for k, s in chosen.items()}
    print_seeds(rows, f"MNIST (test), {options.seeds} seeds")
    papers(chosen["global, R 210"], watch)
    runs = {label: many for label, (_, many) in rows.items()}
    limit = {"ylim": (0, 2.5), "last": BASE.steps}
    some = ["not private", "local", "global", "automatic", "local layerwise", "mix-up"]
    curves({k: runs[k] for k in some}, "analysis_mnist_curves", "MNIST (figure 7)", **limit)
    norms = {
        f"global, R {clip:g}": [obtain(best(grid(GLOBAL, (clip,), RATES), watch))]
        for clip in (10.0, 30.0, 60.0)
    }
    norms["global, R 210"] = runs["global, R 210"][:1]
    curves(
        norms,
        "analysis_mnist_norms",
        "MNIST: global clipping and R (figure 7), first seed",
        **limit,
    )
    third = ["not private", "local", "global", "local, the same R as global"]
    diagrams({k: runs[k][0] for k in third}, "analysis_mnist_diagrams", "MNIST (figure 8)")


if __name__ == "__main__":
    main()
