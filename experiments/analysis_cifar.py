"""Paper 003 on CIFAR10: figures 3, 4 and 9, Table 2, confidence histograms.

Writes docs/images/analysis_cifar_{noise,norm,curves,diagrams}.png and prints the table. The
paper's batch size, sigma and norms; a smaller CNN, 16 x 16 pixels, the 10,000 records at hand, 8
epochs; figure 3 on one hidden layer.
"""

from __future__ import annotations

import numpy as np
from analysis_pictures import curves, diagrams, print_table
from analysis_training import Setup, Stopwatch, arguments, obtain

BASE = {"task": "cifar", "epochs": 8, "rate": 0.5, "batch": 250, "sigma": 1.3}
RUNS = {
    "not private": Setup(**{**BASE, "rate": 0.1}),
    "local, R 1.5": Setup(**BASE, rule="clip", clip=1.5),
    "global, R 75": Setup(**BASE, rule="global", clip=75.0),
    "local, R 75": Setup(**BASE, rule="clip", clip=75.0),
    "local layerwise, R 1.5": Setup(**BASE, rule="clip", per="layer", clip=1.5),
    "global layerwise, R 1.5": Setup(**BASE, rule="global", per="layer", clip=1.5),
    "mix-up, R 1.5": Setup(**BASE, rule="mix-up", clip=1.5),
}
SMALL = {"task": "small_cifar", "epochs": 8, "batch": 250, "rule": "clip", "rate": 0.5}
SIGMAS = (0.0, 0.65, 1.3, 2.6, 5.2)


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    noise = {f"sigma {sigma}": obtain(Setup(**SMALL, sigma=sigma), watch) for sigma in SIGMAS}
    plain = Setup(**{**SMALL, "rule": "none", "rate": 0.1})
    noise["no clipping (not private)"] = obtain(plain, watch)
    curves(noise, "analysis_cifar_noise", "CIFAR10, local clipping R 1, noise (figure 3)")
    for label, run in noise.items():
        print(f"{label}: accuracy {100 * run.accuracy[-1]:.1f} %, loss {run.test_loss[-1]:.3f}, "
              f"training loss {run.train_loss[-1]:.3f}, epsilon {run.epsilon:.2f}")  # fmt: skip
    runs = {label: (setup, obtain(setup, watch)) for label, setup in RUNS.items()}
    print_table(runs, "CIFAR10, 10,000 records, CNN, 8 epochs, sigma 1.3, batch 250")
    found = {label: run for label, (_, run) in runs.items()}
    second = ["local, R 75", "global, R 75"]
    curves({k: found[k] for k in second}, "analysis_cifar_norm", "CIFAR10 at R = 75 (figure 4)")
    apart = np.abs(found["local, R 75"].test - found["global, R 75"].test).max()
    print(f"largest difference of a logit between local and global clipping at R = 75: {apart:.3g}")
    third = [label for label in found if label != "local, R 75"]
    curves({k: found[k] for k in third}, "analysis_cifar_curves", "CIFAR10 (figure 9)")
    fourth = ["not private", "local, R 1.5", "global, R 75", "mix-up, R 1.5"]
    diagrams({k: found[k] for k in fourth}, "analysis_cifar_diagrams", "CIFAR10 (figures 6, 14)")


if __name__ == "__main__":
    main()
