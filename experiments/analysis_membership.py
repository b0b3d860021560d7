"""Membership attacks on private and other models: a logistic one, and a likelihood ratio.

The first is figure 5 of Bu, Wang, Dai and Long (2021).

Writes docs/images/analysis_membership.png and analysis_membership_classes.png and prints a table.
Models are trained on 1,000 CIFAR10 records, few enough for the non-private one to memorise them.
Norm and rate of global clipping are those with the best accuracy on 1,000 other records: at a small
norm it would protect by learning nothing. Local clipping is attacked at that norm and rate as well.
"""

from __future__ import annotations

import dataclasses
import functools

import matplotlib

matplotlib.use("Agg")
import analysis_data
import analysis_training
import matplotlib.pyplot as plt
import numpy as np
from analysis_training import IMAGES, Outcome, Setup, Stopwatch, arguments, obtain, spent
from analysis_tuning import best, grid, print_choices

from noisewise.analysis.membership import Shadows, confidence_score, logistic, loss_threshold

BASE = {"task": "small_cifar", "epochs": 60, "batch": 100, "sigma": 2.0,
        "options": (("records", 1000),)}  # fmt: skip
RUNS = {
    "not private": Setup(**{**BASE, "rate": 0.1}),
    "local, R 1": Setup(**BASE, rule="clip", rate=0.5),
}
GLOBAL = Setup(**{**BASE, "options": (("records", 1000), ("held", 1000))}, rule="global")
MODELS = 64


@functools.cache
def everybody() -> analysis_data.Task:
    return analysis_data.small_cifar(2000)


def shadow(setup: Setup, number: int, watch: Stopwatch) -> tuple[np.ndarray, np.ndarray]:
    """Train on a random half of 2,000 records; return its scores of all, and which half."""
    whole = everybody()
    half = np.random.default_rng(number // 2).permutation(2000)[:1000]
    inside = np.zeros(2000, bool)
    inside[half] = True
    inside = inside if number % 2 == 0 else ~inside
    name = f"shadow_{number}"
    # The other half is the test set, so that predictions of all records come with the run.
    task = dataclasses.replace(
        whole, x=whole.x[inside], y=whole.y[inside], x_test=whole.x[~inside],
        y_test=whole.y[~inside],
    )  # fmt: skip
    chosen = dataclasses.replace(setup, task=name, options=(), seed=number)
    analysis_training.TASKS[name, ()] = task
    run: Outcome = obtain(chosen, watch)
    scores = np.empty(2000)
    scores[inside] = confidence_score(run.train, run.train_labels)
    scores[~inside] = confidence_score(run.test, run.test_labels)
    return scores, inside


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    candidates = grid(GLOBAL, (10.0, 20.0, 40.0), (0.1, 0.2, 0.5))
    print_choices(candidates, watch)
    chosen = best(candidates, watch)
    same = dataclasses.replace(chosen, rule="clip")
    setups = {**RUNS, f"local, R {same.clip:g}": same, f"global, R {chosen.clip:g}": chosen}
    figure, axes = plt.subplots(1, 4, figsize=(16, 5.4), layout="constrained")
    bars, ax_classes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    print("| model | epsilon | attack | AUC | 95 % | TPR at 0.1 % FPR | TPR at 1 % FPR |")
    print("|---|---|---|---|---|---|---|")
    for index, (label, setup) in enumerate(setups.items()):
        run = obtain(setup, watch)
        logits = np.vstack([run.train, run.test])
        labels = np.concatenate([run.train_labels, run.test_labels])
        members = np.arange(len(labels)) < len(run.train)
        attacks = [
            logistic(logits, labels, members),
            logistic(logits, labels, members, features="interaction"),
            loss_threshold(logits, labels, members),
        ]
        rows = [shadow(setup, number, watch) for number in range(MODELS)]
        scores, inside = (np.stack(part) for part in zip(*rows, strict=True))
        attacks.append(Shadows(scores, inside).attack())
        right = [
            100 * float((part.argmax(1) == truth).mean())
            for part, truth in ((run.train, run.train_labels), (run.test, run.test_labels))
        ]
        print(f"({label}: accuracy {right[0]:.1f} % in training, {right[1]:.1f} % in test)")
        epsilon = None if np.isinf(run.epsilon) else run.epsilon
        for attack in attacks:
            low, high = attack.auc_interval()
            print(f"| {label} | {spent(run.epsilon)} | {attack.name} "
                  f"| {attack.auc:.3f} | {low:.3f} to {high:.3f} "
                  f"| {attack.true_positive_rate(1e-3):.4f} "
                  f"| {attack.true_positive_rate(1e-2):.4f} |", flush=True)  # fmt: skip
        for number, attack in enumerate(attacks):
            attack.plot(axes[index], epsilon=epsilon if number == 0 else None, delta=1e-5)
        axes[index].set_title(label)
        axes[index].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small")
        by_class = attacks[1].auc_by_class()
        place = np.arange(len(by_class)) + 0.2 * (index - 1.5)
        ax_classes.bar(place, by_class.values(), 0.19, label=f"{label} ({attacks[1].auc:.3f})")
    ax_classes.axhline(0.5, color="black", linewidth=0.8)
    ax_classes.set(xlabel="class", ylabel="AUC", ylim=(0.4, 1.0), xticks=range(10))
    bars.legend(
        title="logistic regression with interactions (overall AUC)",
        loc="outside lower center",
        ncols=4,
        fontsize="small",
    )
    figure.savefig(IMAGES / "analysis_membership.png", dpi=90)
    bars.savefig(IMAGES / "analysis_membership_classes.png", dpi=90)


if __name__ == "__main__":
    main()
