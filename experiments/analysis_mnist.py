"""Paper 003 on MNIST: figure 7 (loss, accuracy, effect of R), figure 8, Table 2.

Writes docs/images/analysis_mnist_{curves,norms,diagrams}.png and prints the table. The paper's
batch size, sigma and norms; a smaller CNN, 14 x 14 pixels, 12,000 of the 60,000 records, 8 epochs
instead of 15.
"""

from __future__ import annotations

from analysis_pictures import curves, diagrams, print_table
from analysis_training import Setup, Stopwatch, arguments, obtain

BASE = {"task": "mnist", "epochs": 8, "rate": 0.5}
RUNS = {
    "not private": Setup(**BASE),
    "local, R 1": Setup(**BASE, rule="clip"),
    "global, R 210": Setup(**BASE, rule="global", clip=210.0),
    "global, R 20": Setup(**BASE, rule="global", clip=20.0),
    "local layerwise, R 1": Setup(**BASE, rule="clip", per="layer"),
    "automatic": Setup(**BASE, rule="automatic"),
    "mix-up, R 1": Setup(**BASE, rule="mix-up"),
}


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    runs = {label: (setup, obtain(setup, watch)) for label, setup in RUNS.items()}
    print_table(runs, "MNIST, 12,000 records, CNN, 8 epochs, sigma 1.1, batch 256")
    found = {label: run for label, (_, run) in runs.items()}
    limit = {"ylim": (0, 2.5)}
    first = ["not private", "local, R 1", "global, R 210", "automatic", "local layerwise, R 1",
             "mix-up, R 1"]  # fmt: skip
    curves({k: found[k] for k in first}, "analysis_mnist_curves", "MNIST (figure 7)", **limit)
    second = ["local, R 1", "global, R 210", "global, R 20"]
    curves({k: found[k] for k in second}, "analysis_mnist_norms",
           "MNIST: global clipping and R, same noise (figure 7)", **limit)  # fmt: skip
    third = ["not private", "global, R 210", "global, R 20", "local, R 1"]
    diagrams({k: found[k] for k in third}, "analysis_mnist_diagrams", "MNIST (figure 8)")


if __name__ == "__main__":
    main()
