"""Tables and the figure of the image experiment, from its JSON lines."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["cells", "report"]

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "images_accuracy.png"
NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
ORDER = ("flat", "per layer", "automatic", "factored", "products", "input scaled", "propagated")
LABELS = {
    "flat": "Clipped, flat",
    "per layer": "Clipped, per layer",
    "automatic": "Clipped, flat, automatic",
    "factored": "Factored",
    "products": "Factored, product bounds only",
    "propagated": "Propagated (Lipschitz)",
    "input scaled": "InputScaled (Lipschitz)",
}
# Published, trained end to end: Papernot et al. (2021); Béthune et al. (2024).
PUBLISHED = {
    "fashion_mnist": {"tempered sigmoids": (2.7, 86.1), "clipless": (2.0, 77.0)},
    "mnist": {"tempered sigmoids": (2.93, 98.1), "clipless": (2.0, 96.5)},
}

SHORT = 3  # epochs of the grid
NETWORKS = {"paper": "small CNN", "deep": "six layers"}  # of the grid; others were trained once
PANELS = (("fashion_mnist", "paper"), ("fashion_mnist", "deep"), ("mnist", "paper"))

Cell = tuple[str, str, str, float]  # data, network, estimator, epsilon


def network_of(line: dict[str, Any]) -> str:
    """Return the layout, and what is not usual in its training."""
    layout, epochs, views = line["layout"], line["epochs"], line.get("views", 1)
    length = "" if epochs == SHORT else f", {epochs:g} epoch" + "s" * (epochs != 1)
    return layout + length + ("" if views == 1 else f", {views} views")


def cells(lines: list[dict[str, Any]]) -> dict[Cell, list[float]]:
    """Test accuracies of all seeds, by data, network, estimator and epsilon."""
    found: dict[Cell, list[float]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["seed"]):
        key = (line["data"], network_of(line), line["estimator"], line["epsilon"])
        found[key].append(line["accuracy"])
    return dict(found)


def spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def described(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f} (1)" if values else ""
    return f"{mean(values):.2f} ± {spread(values):.2f} ({len(values)})"


def table(found: dict[Cell, list[float]], data: str) -> str:
    """One row per network and estimator, one column per epsilon."""
    epsilons = sorted({key[3] for key in found if key[0] == data})
    places = {name: place for place, name in enumerate(NETWORKS)}
    kinds = sorted(
        (places.get(network, len(places)), ORDER.index(estimator), (network, estimator))
        for network, estimator in {key[1:3] for key in found if key[0] == data}
    )
    rows = [
        f"| {NAMES[data]}: estimator | network | " + " | ".join(f"ε {e:g}" for e in epsilons) + " |"
    ]
    rows.append("|---|---|" + "---|" * len(epsilons))
    for _, _, (network, estimator) in kinds:
        values = [described(found.get((data, network, estimator, e), [])) for e in epsilons]
        rows.append(f"| {LABELS[estimator]} | {network} | " + " | ".join(values) + " |")
    return "\n".join(rows)


def figure(found: dict[Cell, list[float]]) -> None:
    """Accuracy over epsilon, mean of the seeds with one deviation; a panel per set and network."""
    networks = sorted({key[1] for key in found})
    panels = [panel for panel in PANELS if panel in {key[:2] for key in found}]
    # Two by two, so that a page shows it large enough to be read; the last place is the legend's.
    drawn, places = plt.subplots(2, 2, figsize=(9, 8), layout="constrained")
    *axes, key = places.flat
    for axis, (data, main) in zip(axes, panels, strict=True):
        shown = [n for n in networks if n == main or ("epochs" in n and main == "paper")]
        for number, estimator in enumerate(ORDER):
            for network in shown:
                epsilons = sorted(k[3] for k in found if k[:3] == (data, network, estimator))
                values = [found[data, network, estimator, e] for e in epsilons]
                if not values:
                    continue
                # A little apart, so that equal accuracies do not hide one another.
                places = [e * 1.012 ** (number - 2.5) for e in epsilons]
                axis.errorbar(
                    places,
                    [mean(v) for v in values],
                    yerr=[spread(v) for v in values],
                    label=LABELS[estimator] + ("" if network == main else f", {network}"),
                    color=f"C{number}",
                    marker="o" if network == main else "*^"[network.count("view")],
                    markersize=4 if network == main else 10,
                    linewidth=1,
                    capsize=2,
                )
        for marker, (name, (epsilon, value)) in zip("x+", PUBLISHED[data].items(), strict=True):
            axis.plot(
                epsilon, value, marker, color="black", markersize=9, label=f"published, {name}"
            )
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 2.7, 4, 8], ["1", "2", "2.7", "4", "8"])
        axis.minorticks_off()
        axis.set_title(f"{NAMES[data]}, {NETWORKS[main]}")
        axis.set_xlabel("epsilon (delta 1e-5)")
        axis.grid(alpha=0.3)
        axis.set_ylabel("test accuracy, %")
    handles, labels = axes[-1].get_legend_handles_labels()
    key.axis("off")
    key.legend(handles, labels, loc="center", frameon=False)
    drawn.savefig(PICTURE, dpi=110)
    plt.close(drawn)


def report(lines: list[dict[str, Any]]) -> None:
    """Print the tables and draw the figure."""
    found = cells(lines)
    for data in NAMES:
        print(table(found, data), end="\n\n")
    seconds = sum(line["seconds"] for line in lines)
    print(f"{len(lines)} runs, {seconds / 60:.0f} minutes of one core")
    figure(found)
