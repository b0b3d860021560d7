"""Bu, Wang, Dai and Long (2021) on regression.

Figure 11 (wine, DP-GD) and figure 12 (California, DP-Adam).

Writes docs/images/analysis_wine.png and analysis_california.png and prints a table over seeds.
"""

from __future__ import annotations

import numpy as np
from analysis_pictures import curves
from analysis_training import Setup, Stopwatch, arguments, obtain, spent

WAYS = {
    "local, R {}": {"rule": "clip"},
    "global, R {}": {"rule": "global"},
    "local layerwise, R {}": {"rule": "clip", "per": "layer"},
    "automatic": {"rule": "automatic"},
    "mix-up, R {}": {"rule": "mix-up"},
}
TASKS = {
    # Full batches, so nothing is amplified and sigma must be large.
    "wine": ({"task": "wine", "batch": 1279, "epochs": 200, "sigma": 20.0}, (1.0, 10.0), 0.1, 0.1),
    "california": (
        {"task": "california", "batch": 512, "epochs": 8, "sigma": 1.3, "optimizer": "adam"},
        (1.0, 10.0),
        2e-3,
        2e-3,
    ),
}


def main() -> None:
    options = arguments(__doc__)
    watch = Stopwatch(options.seconds)
    for name, (base, norms, rate, plain_rate) in TASKS.items():
        setups = {"not private": Setup(**base, rate=plain_rate)}
        for clip in norms:
            for label, way in WAYS.items():
                if (label[:4] in ("loca", "glob") and "layer" not in label) or clip == norms[0]:
                    sgd = clip if base.get("optimizer", "sgd") == "sgd" else 1.0
                    # For gradient descent the same learning rate for all norms, as gradient flow
                    # has it: `rate` is per unit of the norm.
                    setups[label.format(clip)] = Setup(**base, **way, clip=clip, rate=rate * sgd)
        runs = {}
        for label, setup in setups.items():
            seeds = [
                obtain(Setup(**{**setup.__dict__, "seed": s}), watch) for s in range(options.seeds)
            ]
            runs[label] = seeds
        print(f"\n{name}\n\n| method | epsilon | test MSE |\n|---|---|---|")
        for label, seeds in runs.items():
            losses = np.array([((r.test - r.test_labels) ** 2).mean() for r in seeds])
            text = spent(seeds[0].epsilon)
            print(f"| {label} | {text} | {losses.mean():.4f} ± {losses.std(ddof=1):.4f} |")
        spread = float(np.var(runs["not private"][0].test_labels))
        print(f"(a constant prediction has {spread:.4f})")
        figure = {"wine": "figure 11", "california": "figure 12"}[name]
        curves(runs, f"analysis_{name}", f"{name} ({figure})", classify=False, yscale="log")


if __name__ == "__main__":
    main()
