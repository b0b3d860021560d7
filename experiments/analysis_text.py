"""Paper 003's text experiment (figure 10, Table 2), on SST-2 with a small transformer, DP-AdamW.

Writes docs/images/analysis_text_{curves,diagrams}.png and prints the table. The paper fine-tunes
BERT on SNLI; here a one-block transformer over hashed words is trained from scratch, which is a
different regime: the model is far from memorising anything.
"""

from __future__ import annotations

from analysis_pictures import curves, diagrams, print_table
from analysis_training import Setup, Stopwatch, arguments, obtain

BASE = {"task": "sentiment", "epochs": 8, "batch": 512, "optimizer": "adamw", "rate": 1e-3,
        "sigma": 1.0, "per": "layer"}  # fmt: skip
RUNS = {
    "not private": Setup(**BASE),
    "local, R 0.1": Setup(**BASE, rule="clip", clip=0.1),
    "mix-up, R 0.1": Setup(**BASE, rule="mix-up", clip=0.1),
    "global, R 1": Setup(**BASE, rule="global", clip=1.0),
}


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    runs = {label: (setup, obtain(setup, watch)) for label, setup in RUNS.items()}
    print_table(runs, "SST-2, 12,000 phrases, transformer, layerwise, 8 epochs, sigma 1, batch 512")
    found = {label: run for label, (_, run) in runs.items()}
    curves(found, "analysis_text_curves", "SST-2 with DP-AdamW (figure 10)", ylim=(0.2, 1.4))
    some = ["not private", "local, R 0.1", "mix-up, R 0.1", "global, R 1"]
    diagrams({k: found[k] for k in some}, "analysis_text_diagrams", "SST-2 (figure 16)")


if __name__ == "__main__":
    main()
