"""Is weight clipping better than gradient clipping? Tables 1 and 5.4 of the papers, sound forms.

    python experiments/papers_table.py
    python experiments/papers_table.py --report

Barczewski and Ramon (2024), Barczewski (2025). Methods: flat and per-layer clipping, `Factored`,
and the Lipschitz estimators `Propagated` and `InputScaled` with weights of norm at most C
(Lip-DP-SGD) and of norm C (Fix-Lip-DP-SGD), with and without normalisation of hidden values.
Each method has the same search: learning rate, width of the one hidden layer, and the bound it is
named for (clip, or C), by Optuna's sampler (TPE, seeded, the first half of the trials at random),
judged by a quarter of the training rows of the first dealing. The best setting then meets all
dealings of the rows; Wilcoxon's signed-rank test at 5 % compares every method with flat clipping,
and the best of one family, chosen by the search, with the best of the other. The search is not
covered by epsilon, as in the papers. Without normalisation `Factored` does on such networks what
per-layer clipping does, so that one row stands for both.

Each trial and each fit is a line of ``experiments/papers_table.jsonl``: a command that was stopped
goes on where it was, and ends with the same numbers.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import wilcoxon
from tables import TASKS, Task

import noisewise as nw
from noisewise.estimators import PrivateClassifier

RUNS = Path(__file__).with_name("papers_table.jsonl")
DOCS = Path(__file__).parents[1] / "docs"
PICTURE, PAGE = DOCS / "images" / "papers_table.png", DOCS / "results-tables.md"
BEGIN, END = "<!-- begin of the papers' table -->", "<!-- end of the papers' table -->"
DEALINGS = 10
FAMILIES = {"gradients", "weights"}
Fits = dict[tuple[str, str], dict[int, float]]
#: Of every method; and of the loss's gradient where weights are bounded.
STEPS, LOSS_CLIP = 60, 0.3
#: (estimator, projection, normalised)
METHODS: dict[str, tuple[str, str | None, bool]] = {
    "DP-SGD": ("flat", None, False),
    "DP-SGD, normalised": ("flat", None, True),
    "per layer": ("layer", None, False),
    "Factored, normalised": ("factored", None, True),
    **{
        f"{kind} {rule}{', normalised' if normal else ''}": (rule, projection, normal)
        for kind, projection in (("Lip", "clip"), ("Fix-Lip", "fix"))
        for rule in ("Propagated", "InputScaled")
        for normal in (False, True)
    },
}


@lru_cache(maxsize=1)
def read(task: Task) -> Any:
    """Features, labels and schema, read once."""
    return task.read()


def done() -> list[dict[str, Any]]:
    """What is there already."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def keep(**line: Any) -> None:
    """Write a result down."""
    with RUNS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def proposed(method: str, trial: Any) -> dict[str, Any]:
    """The search space: three numbers for every method, the last is what bounds a record."""
    setting: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 30.0, log=True),
        "width": trial.suggest_categorical("width", [8, 16, 32]),
    }
    if METHODS[method][1] is None:
        setting["clip"] = trial.suggest_float("clip", 0.03, 3.0, log=True)
    else:
        setting["limit"] = trial.suggest_float("limit", 0.3, 10.0, log=True)
    return setting


def classifier(task: Task, rows: int, method: str, setting: dict[str, Any], seed: int) -> Any:
    """The classifier of a method and a setting."""
    rule, projection, normal = METHODS[method]
    gradients = {
        "flat": lambda: nw.Clipped(setting["clip"]),
        "layer": lambda: nw.Clipped(setting["clip"], per="layer"),
        "factored": lambda: nw.Factored(setting["clip"]),
        "Propagated": lambda: nw.Propagated(loss_clip=LOSS_CLIP),
        "InputScaled": lambda: nw.InputScaled(loss_clip=LOSS_CLIP),
    }[rule]()
    schema = read(task)[2]
    return PrivateClassifier(
        task.epsilon,
        1 / rows,
        schema=schema,
        classes=task.classes(schema),
        gradients=gradients,
        hidden_layer_sizes=(setting["width"],),
        steps=STEPS,
        learning_rate=setting["learning_rate"] / setting.get("clip", 1.0),
        calibration_share=0.0,
        weight_limit=setting.get("limit", 1.0),
        projection=projection or "clip",
        normalise=0.1 if normal else None,
        preflight=False,
        random_state=seed,
    )


def measured(name: str, method: str, setting: dict[str, Any], dealing: int, search: bool) -> float:
    """Accuracy on the rows that a dealing leaves out, or on a quarter of the others."""
    task = TASKS[name]
    x, y, _ = read(task)
    test = task.test_rows(x, dealing)
    train = ~test
    if search:
        quarter = np.random.default_rng(99).permutation(len(x)) % 4 == 0
        test, train = train & quarter, train & ~quarter
    model = classifier(task, len(x), method, setting, dealing)
    model.fit(x[train], y[train])
    if not model.statement_.epsilon <= task.epsilon:
        raise AssertionError("spent more than planned")
    return float(model.score(x[test], y[test]))


def searched(name: str, method: str, trials: int) -> dict[str, Any]:
    """Return the best setting of so many trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    known = [r for r in done() if (r["table"], r["method"], r["kind"]) == (name, method, "trial")]
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=trials // 2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for number in range(trials):
        trial = study.ask()  # what a seeded sampler asks follows from what it was told
        setting = proposed(method, trial)
        if number < len(known):
            if known[number]["trial"] != setting:
                raise RuntimeError(f"{RUNS.name} holds trials of another search: {known[number]}")
            study.tell(trial, known[number]["accuracy"])
            continue
        start = time.process_time()
        accuracy = measured(name, method, setting, 0, True)
        study.tell(trial, accuracy)
        keep(kind="trial", table=name, method=method, trial=setting, accuracy=accuracy,
             seconds=round(time.process_time() - start, 1))  # fmt: skip
    return dict(study.best_params)


def family(method: str) -> str:
    """Say what is clipped: gradients, or weights."""
    return "gradients" if METHODS[method][1] is None else "weights"


def compared(own: dict[int, float], other: dict[int, float]) -> tuple[float, float]:
    """Mean difference in points over shared dealings, and Wilcoxon's p-value."""
    differences = np.array([own[d] - other[d] for d in sorted(set(own) & set(other))])
    value = (
        float(wilcoxon(differences).pvalue) if len(differences) > 5 and any(differences) else 1.0
    )
    return 100 * float(differences.mean()), value


def collected(runs: list[dict[str, Any]]) -> tuple[Fits, dict[tuple[str, str], float]]:
    """Accuracies by (table, method) and dealing; and the best of each search."""
    fits: Fits = {}
    sought: dict[tuple[str, str], float] = {}
    for run in runs:
        key = (run["table"], run["method"])
        if run["kind"] == "fit":
            fits.setdefault(key, {})[run["dealing"]] = run["accuracy"]
        else:
            sought[key] = max(sought.get(key, 0.0), run["accuracy"])
    return {key: own for key, own in fits.items() if len(own) == DEALINGS}, sought


def shown(runs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the tables that have something to compare, and the methods."""
    fits, _ = collected(runs)
    ready = [name for name in TASKS if {family(m) for t, m in fits if t == name} == FAMILIES]
    names = [name for name in ready if (name, "DP-SGD") in fits]
    return names, [m for m in METHODS if any((name, m) in fits for name in names)]


def markdown(runs: list[dict[str, Any]]) -> str:
    """Return both tables of the page: every method, and family against family."""
    (fits, sought), (names, methods) = collected(runs), shown(runs)
    lines = ["| method | " + " | ".join(TASKS[name].title for name in names) + " |"]
    lines.append("|---|" + "---:|" * len(names))
    for method in methods:
        cells = []
        for name in names:
            if (name, method) not in fits:
                cells.append("")
                continue
            difference, value = compared(fits[name, method], fits[name, "DP-SGD"])
            mark = "" if value >= 0.05 else (" +" if difference > 0 else " -")
            cells.append(f"{100 * np.mean(list(fits[name, method].values())):.2f}{mark}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append("| table | best with clipped gradients | with clipped weights | points | p |")
    lines.append("|---|---|---|---:|---:|")
    for name in names:
        own = [m for m in methods if (name, m) in fits]
        first, second = (
            max((m for m in own if family(m) == kind), key=lambda m: sought[name, m])
            for kind in sorted(FAMILIES)
        )
        points, value = compared(fits[name, second], fits[name, first])
        title = TASKS[name].title
        lines.append(f"| {title} | {first} | {second} | {points:+.2f} | {value:.3f} |")
    return "\n".join(lines)


def report() -> None:
    """Write the tables into the page and draw the picture."""
    runs = done()
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{markdown(runs)}\n\n{END}{after}", "utf-8")
    draw(runs)


def draw(runs: list[dict[str, Any]]) -> None:
    """Draw how far every method is from flat clipping, in points."""
    (found, _), (names, methods) = collected(runs), shown(runs)
    methods = methods[1:]
    size = (3 + 2.2 * len(names), 1.4 + 0.3 * len(methods))
    figure, axes = plt.subplots(1, len(names), figsize=size, sharey=True, layout="constrained")
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        flat = found[name, "DP-SGD"]
        for place, method in enumerate(methods):
            own = found.get((name, method), {})
            points = [100 * (own[d] - flat[d]) for d in own if d in flat]
            colour = "C0" if family(method) == "gradients" else "C3"
            axis.plot(points, [place] * len(points), "o", color=colour, alpha=0.3, ms=4)
            if points:
                axis.plot(np.mean(points), place, "D", color=colour, ms=6)
        axis.axvline(0, color="0.5", lw=1)
        axis.set_title(TASKS[name].title, fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    first = np.atleast_1d(axes)[0]
    first.set_yticks(range(len(methods)), methods)
    first.invert_yaxis()
    figure.supxlabel("points above DP-SGD (blue: gradients clipped; red: weights)", fontsize=10)
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    """Search and fit what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--dealings", type=int, default=DEALINGS)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.report:
        report()
        return
    for name in args.tables or [n for n in TASKS if n not in ("android_distinct", "dropout")]:
        for method in args.methods:
            setting = searched(name, method, args.trials)
            for dealing in range(args.dealings):
                key = {
                    "kind": "fit",
                    "table": name,
                    "method": method,
                    "dealing": dealing,
                    "setting": setting,
                }
                if any(all(run.get(k) == v for k, v in key.items()) for run in done()):
                    continue
                accuracy = measured(name, method, setting, dealing, False)
                keep(**key, accuracy=accuracy)
            print(name, method, setting, flush=True)


if __name__ == "__main__":
    main()
