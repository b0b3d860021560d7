"""``PrivateClassifier`` as it comes on seven tables: ``python tables.py``.

The tables are those of Barczewski and Ramon (2024).

One setting, the default, for all tables; epsilon and delta = 1/n are those of the paper's Table 1
(n counts all rows, although fewer are trained on). Columns become numbers by the public schemas of
the registry. Seed s tests on part s % 5 of five, dealt by a permutation that s // 5 draws, and
trains on the other four, so the first five seeds test every row once.

Every fit is stored when it is done (``docs/images/tables.json``): a command that was stopped, or
given ``--seconds``, goes on where it was. Stored fits of other settings are not used. With all
fits at hand the table goes into ``docs/results-tables.md`` and the picture beside the numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from noisewise import datasets
from noisewise.estimators import PrivateClassifier

DOCS = Path(__file__).parents[1] / "docs"
STORE = DOCS / "images" / "tables.json"
PICTURE = DOCS / "images" / "tables.png"
PAGE = DOCS / "results-tables.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
PARTS = 5
UNFINISHED = 75


@dataclass(frozen=True)
class Task:
    """One row of the table: a dataset, how it is split, and what the paper reports."""

    title: str
    dataset: str
    epsilon: float
    clipped: float  # the paper's DP-SGD
    best: float  # the paper's Lip-DP-SGD
    distinct: bool = False  # whether equal feature vectors stay on one side of the split
    against: str | None = None  # this class against all others

    def read(self) -> tuple[pd.DataFrame, np.ndarray, datasets.Schema]:
        """Features, labels and the public schema."""
        table = datasets.load_table(self.dataset)
        assert table.schema is not None
        labels = table.frame[table.target].to_numpy()
        if self.against is not None:
            labels = np.where(labels == self.against, self.against, f"not {self.against}")
        return table.frame.drop(columns=table.target), labels, table.schema

    def classes(self, schema: datasets.Schema) -> list[Any]:
        """Return the public classes."""
        if self.against is not None:
            return [self.against, f"not {self.against}"]
        return list(schema.classes or ())

    def test_rows(self, x: pd.DataFrame, seed: int) -> np.ndarray:
        """Mark the rows that this seed tests on."""
        units = np.arange(len(x))
        if self.distinct:
            units = x.groupby(list(x.columns), sort=False).ngroup().to_numpy()
        count = int(units.max()) + 1
        dealt = np.random.default_rng(seed // PARTS).permutation(count) % PARTS
        return dealt[units] == seed % PARTS


TASKS = {
    "adult": Task("Adult", "adult", 0.414, 0.824, 0.831),
    "android": Task("Android", "naticusdroid", 1.273, 0.951, 0.959),
    "android_distinct": Task(
        "Android, split by distinct rows", "naticusdroid", 1.273, 0.951, 0.959, distinct=True
    ),
    "breast_cancer": Task("Breast cancer", "breast_cancer_wdbc", 1.672, 0.773, 0.798),
    "default_credit": Task("Default credit", "default_credit", 1.442, 0.809, 0.816),
    "dropout": Task("Dropout, three classes", "students_dropout", 1.326, 0.763, 0.819),
    "dropout_or_not": Task(
        "Dropout or not", "students_dropout", 1.326, 0.763, 0.819, against="Dropout"
    ),
    "german_credit": Task("German credit", "german_credit", 3.852, 0.735, 0.746),
    "nursery": Task("Nursery", "nursery", 1.432, 0.919, 0.931),
}


def run(task: Task, seed: int, settings: dict[str, Any]) -> dict[str, float]:
    """Fit on four parts of five, and measure on the fifth."""
    x, y, schema = task.read()
    test = task.test_rows(x, seed)
    model = PrivateClassifier(
        task.epsilon,
        1 / len(x),
        schema=schema,
        classes=task.classes(schema),
        random_state=seed,
        **settings,
    )
    start = time.perf_counter()
    model.fit(x[~test], y[~test])
    seconds = time.perf_counter() - start
    statement = model.statement_
    if not statement.epsilon <= task.epsilon:
        raise AssertionError(f"{task.title}: spent {statement.epsilon} of {task.epsilon}")
    return {
        "accuracy": float(model.score(x[test], y[test])),
        "plain": plain_accuracy(model, x, y, test),
        "epsilon": float(statement.epsilon),
        "trained": int((~test).sum()),
        "seconds": round(seconds, 2),
    }


def plain_accuracy(like: PrivateClassifier, x: pd.DataFrame, y: np.ndarray, test: Any) -> float:
    """Logistic regression without privacy on the same numbers, for comparison only."""
    numbers = like._encode(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bounded number of iterations is enough here
        model = LogisticRegression(max_iter=300).fit(numbers[~test], y[~test])
    return float(model.score(numbers[test], y[test]))


class Store:
    """Fits on disk, all of one setting."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        defaults = PrivateClassifier(**settings).get_params()
        for given in ("epsilon", "delta", "schema", "classes", "random_state", "verbose"):
            defaults.pop(given)
        self.settings = json.loads(json.dumps(defaults))
        self.runs: dict[str, dict[str, float]] = {}
        if path.exists():
            stored = json.loads(path.read_text("utf-8"))
            if stored["settings"] == self.settings:
                self.runs = stored["runs"]
            else:
                print(f"{path.name} holds fits of other settings: starting anew", flush=True)

    def add(self, key: str, result: dict[str, float]) -> None:
        """Keep one fit."""
        self.runs[key] = result
        document = {"settings": self.settings, "runs": dict(sorted(self.runs.items()))}
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        whole.replace(self.path)

    def values(self, name: str, field: str, seeds: int) -> np.ndarray:
        """One number of all fits of a task."""
        return np.array([self.runs[f"{name}/{seed}"][field] for seed in range(seeds)])


def error_of_mean(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def markdown(store: Store, names: Sequence[str], seeds: int) -> str:
    """Return the table."""
    lines = [
        "| table | epsilon | delta | paper: DP-SGD | paper: best | here | standard error "
        "| best reached? | not private |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name in names:
        task, found = TASKS[name], store.values(name, "accuracy", seeds)
        rows = datasets.info(task.dataset).rows
        mean, verdict = float(found.mean()), "yes"
        if mean < task.best:
            verdict = f"**no**, {100 * (task.best - mean):.1f} points short"
        plain = store.values(name, "plain", seeds).mean()
        lines.append(
            f"| {task.title} | {task.epsilon} | 1/{rows} | {task.clipped:.3f} | {task.best:.3f} "
            f"| **{mean:.4f}** | {error_of_mean(found):.4f} | {verdict} | {plain:.3f} |"
        )
    return "\n".join(lines)


def draw(store: Store, names: Sequence[str], seeds: int, path: Path) -> None:
    """Draw every fit, their mean, and the two columns of the paper."""
    figure, axis = plt.subplots(figsize=(8.0, 4.8), layout="constrained")
    for place, name in enumerate(names):
        task, found = TASKS[name], store.values(name, "accuracy", seeds)
        say = (lambda text: text) if place == 0 else (lambda text: None)
        axis.plot(found, [place] * len(found), "o", color="C0", alpha=0.35, ms=4, label=say("fits"))
        axis.plot(found.mean(), place, "D", color="C0", ms=6, label=say("mean"))
        axis.plot(task.best, place, "|", color="C3", ms=18, mew=2.5, label=say("paper, best"))
        axis.plot(
            task.clipped, place, "|", color="0.45", ms=18, mew=2.5, label=say("paper, DP-SGD")
        )
    axis.set_yticks(range(len(names)), [f"{TASKS[n].title} ({TASKS[n].epsilon})" for n in names])
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.set(xlabel="test accuracy", title="PrivateClassifier, one setting (epsilon in brackets)")
    figure.legend(fontsize="small", loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def publish(store: Store, names: Sequence[str], seeds: int) -> None:
    """Print the table, put it into the page and draw the picture."""
    table = markdown(store, names, seeds)
    print(f"\n{table}\n")
    draw(store, names, seeds, PICTURE)
    page = PAGE.read_text("utf-8") if PAGE.exists() else f"{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seeds", type=int, default=PARTS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--store", type=Path, default=STORE, help="where fits are kept")
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="JSON of parameters that replace defaults"
    )
    arguments = parser.parse_args()
    names = arguments.tables or list(TASKS)
    if unknown := set(names) - set(TASKS):
        parser.error(f"unknown tables {sorted(unknown)}; there are {', '.join(TASKS)}")
    end = time.monotonic() + arguments.seconds
    store = Store(arguments.store, arguments.settings)
    for seed in range(arguments.seeds):
        for name in names:
            if f"{name}/{seed}" in store.runs:
                continue
            if time.monotonic() > end:
                print("out of time: run the same command again to go on", flush=True)
                sys.exit(UNFINISHED)
            result = run(TASKS[name], seed, arguments.settings)
            store.add(f"{name}/{seed}", result)
            print(f"{name}, seed {seed}: {result}", flush=True)
    if not arguments.tables and not arguments.settings and arguments.store == STORE:
        publish(store, names, arguments.seeds)
    else:
        print(markdown(store, names, arguments.seeds))


if __name__ == "__main__":
    main()
