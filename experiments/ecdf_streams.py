"""Error of running counts under continual observation: ``python ecdf_streams.py``.

Streams of 10^6 items, epsilon 1 for the whole stream: Theorem 6.3.2 of the thesis beside our trees
(horizon known, endless) and the square-root factorisation with delta 1e-6. Drawn is the root
mean squared error after t items, over all runs, pooled over a seventh of a decade; with delta a
fifth of the runs. Writes docs/images/ecdf_streams.png and .csv.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from ecdf_tables import IMAGES, Parts, add_seconds, save_table

from noisewise.ecdf import StreamingCounter

RUNS_OF_A_PART = 10


def squared_errors(items: np.ndarray, seeds: range, options: dict[str, Any]) -> np.ndarray:
    truth = np.cumsum(items)
    squares = np.zeros(items.size)
    for seed in seeds:
        counter = StreamingCounter(epsilon=1.0, rng=seed, **options)
        released = [
            counter.extend(items[start : start + 2**16]) for start in range(0, items.size, 2**16)
        ]
        squares += (np.concatenate(released) - truth) ** 2
    return squares / len(seeds)


def summary(
    items: np.ndarray, seeds: range, options: dict[str, Any], edges: np.ndarray, shown: list[int]
) -> dict[str, list[float]]:
    """Mean squared errors: between the edges, and in the tenth before each time shown."""
    squares = squared_errors(items, seeds, options)
    pooled = np.add.reduceat(squares, edges - 1) / np.diff(np.append(edges, items.size + 1))
    near = [float(squares[int(0.9 * t) : t].mean()) for t in shown]
    return {"curve": pooled.tolist(), "shown": [*near, float(squares.mean())]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=100)
    add_seconds(parser)
    arguments = parser.parse_args()
    parts = Parts(f"ecdf-streams-{arguments.items}-{arguments.runs}", arguments.seconds)
    length = arguments.items
    items = (np.random.default_rng(0).random(length) < 0.3).astype(np.int64)
    variants: dict[str, dict[str, Any]] = {
        "thesis (Theorem 6.3.2), horizon known": {"mechanism": "thesis", "horizon": length},
        "thesis, endless": {"mechanism": "thesis"},
        "noisewise, horizon known": {"horizon": length},
        "noisewise, endless": {},
        "noisewise, delta 1e-6, horizon known": {"horizon": length, "delta": 1e-6},
        "noisewise, delta 1e-6, endless": {"delta": 1e-6},
    }
    edges = np.unique(np.geomspace(1, length, 42)[:-1].astype(int))
    shown = [10**2, 10**3, 10**4, 10**5, length]
    figure, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    rows: list[list[object]] = []
    for name, options in variants.items():
        # Exact Gaussian noise of a million counts takes seconds.
        seeds = range(max(1, arguments.runs // 5) if "delta" in options else arguments.runs)
        blocks = [seeds[i : i + RUNS_OF_A_PART] for i in range(0, len(seeds), RUNS_OF_A_PART)]
        found = [
            parts.get(f"{name} {block}", partial(summary, items, block, options, edges, shown))
            for block in blocks
        ]
        sizes = [len(block) for block in blocks]
        curve, near = (
            np.sqrt(np.average([part[key] for part in found], axis=0, weights=sizes))
            for key in ("curve", "shown")
        )
        style = "--" if "thesis" in name else "-"
        ax.loglog(edges, curve, label=name, linestyle=style)
        rows.append([name, *near.tolist()])
        print(f"{name:40s} " + "  ".join(f"{v:.1f}" for v in near), flush=True)
    ax.set(
        xlabel="items so far", ylabel="root mean squared error", title="running counts, epsilon 1"
    )
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
    figure.savefig(IMAGES / "ecdf_streams.png", dpi=110)
    plt.close(figure)
    parts.done()
    save_table("ecdf_streams", ["mechanism", *(f"up to {t}" for t in shown), "all"], rows)


if __name__ == "__main__":
    main()
