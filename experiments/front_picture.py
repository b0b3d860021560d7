"""The picture of the front page, from figures that are measured elsewhere in the repository.

Time and memory: docs/speed.md (one thread, plain step of the same layers = 1). Error:
docs/curves-measured.md. Run: ``python experiments/front_picture.py``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, OTHERS = "#00796b", "#b0bec5"
MODELS = ("CNN", "MLP", "transformer")
#: Clipped per model at batches of 256, 1024 and 64; Opacus 1.6 in the mode that is best there.
TIME = ((1.26, 2.99), (1.20, 2.03), (1.24, 1.48))
MEMORY = ((0.68, 2.3), (1.12, 1.3), (0.73, 1.9))
#: Root mean square error of a private distribution curve, epsilon 1, in records of a million.
ERROR = (("noisewise, adaptive", 21.6), ("noisewise", 29.9), ("OpenDP 0.16, best", 40.7))


def pairs(axes, title: str, values: tuple[tuple[float, float], ...]) -> None:
    """Two bars for each model: ours above, Opacus below."""
    for row, (ours, other) in enumerate(values):
        for offset, value, colour in ((-0.2, ours, OURS), (0.2, other, OTHERS)):
            axes.barh(row + offset, value, 0.36, color=colour)
            beside = max(value, 1.0) + 0.05  # not on the dotted line
            axes.text(beside, row + offset, f"{value:g}", va="center")
    axes.axvline(1, color="black", linewidth=1, linestyle=":")
    axes.set(title=title, yticks=range(len(MODELS)), xlim=(0, 3.5), xticks=[0, 1, 2, 3])
    axes.set_yticklabels(MODELS)
    axes.invert_yaxis()


def main() -> None:
    plt.rcParams.update({"font.size": 13, "svg.hashsalt": "front"})
    figure, (time, memory, error) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    pairs(time, "time of a private step\n(ordinary step = 1)", TIME)
    pairs(memory, "memory of a private step\n(ordinary step = 1)", MEMORY)
    memory.set_yticklabels([])
    bars = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (OURS, OTHERS)]
    names = ("noisewise, clipping over the whole model", "Opacus 1.6, its best mode")
    figure.legend(bars, names, loc="outside lower left", ncols=2, frameon=False, fontsize=12)
    for row, (name, value) in enumerate(ERROR):
        error.barh(row, value, 0.6, color=OURS if name.startswith("noisewise") else OTHERS)
        error.text(value + 0.6, row, f"{value:.0f}", va="center")
    error.set(title="error of a private distribution\n(records of a million)", xlim=(0, 48))
    error.set(yticks=range(3), yticklabels=[name for name, _ in ERROR])
    error.invert_yaxis()
    for axes in (time, memory, error):
        axes.spines[["top", "right"]].set_visible(False)
    folder = Path(__file__).parents[1] / "docs" / "images"
    figure.savefig(folder / "front.png", dpi=110)


if __name__ == "__main__":
    main()
