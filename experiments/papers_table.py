"""Is weight clipping better than gradient clipping? Tables 1 and 5.4 of the papers, sound forms.

    python experiments/papers_table.py
    python experiments/papers_table.py --report

Barczewski and Ramon (2024), Barczewski (2025). Methods: flat and per-layer clipping, `Factored`,
and the Lipschitz estimators `Propagated` and `InputScaled` with weights of norm at most C
(Lip-DP-SGD) and of norm C (Fix-Lip-DP-SGD), with and without normalisation of hidden values.
Each method has the same search: learning rate, width of the one hidden layer, and the bound it is
named for (clip, or C), by Optuna's sampler (TPE, seeded, the first half of the trials at random),
judged by a quarter of the training rows of the first dealing. Without normalisation `Factored`
computes on such networks what per-layer clipping does, so that one row stands for both. The best
setting then meets all dealings of the rows; Wilcoxon's signed-rank test at 5 % compares every
method with flat clipping. The search is not covered by epsilon, as in the papers.

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
import optuna
import torch
from scipy.stats import wilcoxon
from tables import TASKS, Task

import noisewise as nw
from noisewise.estimators import PrivateClassifier

RUNS = Path(__file__).with_name("papers_table.jsonl")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "papers_table.png"
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


def proposed(method: str, trial: optuna.Trial) -> dict[str, Any]:
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


def report() -> None:
    """Print the table and draw the picture."""
    runs = [r for r in done() if r["kind"] == "fit"]
    names = [name for name in TASKS if any(r["table"] == name for r in runs)]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        found.setdefault((run["table"], run["method"]), {})[run["dealing"]] = run["accuracy"]
    print("| method | " + " | ".join(TASKS[name].title for name in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for method in METHODS:
        cells = []
        for name in names:
            own, flat = found.get((name, method), {}), found.get((name, "DP-SGD"), {})
            shared = sorted(set(own) & set(flat))
            mark = ""
            differences = [own[d] - flat[d] for d in shared]
            compared = method != "DP-SGD" and len(shared) > 5 and any(differences)
            if compared and wilcoxon(differences).pvalue < 0.05:
                mark = " +" if np.mean(differences) > 0 else " -"
            cells.append(f"{np.mean(list(own.values())):.4f}{mark} ({len(own)})" if own else "")
        print(f"| {method} | " + " | ".join(cells) + " |")
    figure, axes = plt.subplots(figsize=(9, 4))
    for number, method in enumerate(METHODS):
        means = [np.mean(list(found.get((name, method), {0: np.nan}).values())) for name in names]
        axes.plot(range(len(names)), means, "o", label=method, alpha=0.7, ms=4 + number % 3)
    axes.set_xticks(range(len(names)), [TASKS[name].title for name in names], rotation=20)
    axes.set_ylabel("accuracy")
    axes.legend(fontsize=6, ncol=3)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    """Search and fit what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--dealings", type=int, default=10)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
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
