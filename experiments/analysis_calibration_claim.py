"""Does global clipping calibrate better? Five seeds, several R: two pictures, tables.

The claim is that of Bu, Wang, Dai and Long (2021).

Writes docs/images/analysis_claim_<task>.png and prints the tables of docs/analysis.md. For each
clipping norm R, local and global clipping are trained with the same seeds, hence the same
batches and the same noise, and rate / R as learning rate, so the noise of a step is the same for
every R. Of three rates the one with the best mean accuracy on held-back records is shown for each
(rule, R).
"""

from __future__ import annotations

from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from analysis_training import IMAGES, Outcome, Setup, Stopwatch, arguments, spent
from analysis_tuning import held_back, repeat, reported, said
from scipy import stats

from noisewise.analysis.calibration import fit_temperature, measure

NORMS = dict.fromkeys(("small_mnist", "small_cifar"), (1.0, 3.0, 10.0, 20.0, 30.0, 60.0))
TITLES = {"small_mnist": "MNIST", "small_cifar": "CIFAR10"}
OPTIONS = {
    "small_mnist": (("records", 12_000), ("held", 2_000)),
    "small_cifar": (("records", 9_000), ("held", 1_000)),
}
RATES = {"none": (0.05, 0.15, 0.5), "clip": (0.5, 1.5, 4.0), "global": (0.5, 1.5, 4.0)}
COLOURS = {"clip": "#c1440e", "global": "#2b6a99"}
NAMES = {"clip": "local", "global": "global", "none": "not private"}
MEASURES = ("accuracy", "nll", "ece")


class Study:
    """All runs of one task."""

    def __init__(self, task: str, seeds: int, watch: Stopwatch) -> None:
        self.task, self.seeds, self.watch = task, seeds, watch
        self.rows = {("none", 0.0): self.best("none", 1.0)}
        for clip in NORMS[task]:
            for rule in ("clip", "global"):
                self.rows[rule, clip] = self.best(rule, clip)

    def runs(self, rule: str, clip: float, rate: float) -> list[Outcome]:
        """All seeds of one setting."""
        setup = Setup(self.task, rule=rule, clip=clip, rate=rate, options=OPTIONS[self.task])
        return repeat(setup, self.seeds, self.watch)

    def best(self, rule: str, clip: float) -> tuple[float, list[Outcome]]:
        """The rate with the best mean accuracy on held-back records, and its runs."""
        found = {rate: self.runs(rule, clip, rate) for rate in RATES[rule]}
        rate = max(found, key=lambda r: values(found[r], "accuracy", held_back).mean())
        return rate, found[rate]

    def leader(self, rule: str, by: str) -> float:
        """The norm at which the rule does best on held-back records."""
        sign = 1.0 if by == "accuracy" else -1.0
        norms = [clip for r, clip in self.rows if r == rule]
        return max(norms, key=lambda c: sign * values(self.rows[rule, c][1], by, held_back).mean())


def values(
    runs: list[Outcome], name: str, look: Callable[[Outcome], object] = reported
) -> np.ndarray:
    return np.array([getattr(look(run), name) for run in runs])


def difference(a: list[Outcome], b: list[Outcome], name: str) -> str:
    """Mean of a - b over seeds with its 95 % t interval, in percent (NLL as it is)."""
    factor, digits = (1.0, 3) if name == "nll" else (100.0, 1)
    apart = factor * (values(a, name) - values(b, name))
    half = stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    low, high = apart.mean() - half, apart.mean() + half
    return f"{apart.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def tables(study: Study) -> None:
    print(f"\n{study.task}\n\n| rule | R | rate | accuracy % | NLL | ECE % | over-confidence % |")
    print("|---" * 7 + "|")
    for (rule, clip), (rate, runs) in study.rows.items():
        cells = [said(values(runs, "accuracy"), 1, 100), said(values(runs, "nll"), 3)]
        cells += [said(values(runs, name), 1, 100) for name in ("ece", "overconfidence")]
        print(f"| {NAMES[rule]} | {clip or ''} | {rate} | " + " | ".join(cells) + " |")
    costs = {run.epsilon for _, runs in study.rows.values() for run in runs} - {float("inf")}
    print(f"epsilon {spent(max(costs))}")
    print("\nGlobal minus local with 95 % intervals over seeds:\n")
    print("| compared | accuracy % | NLL | ECE % |\n|---|---|---|---|")
    for clip in NORMS[study.task]:
        # At local's rate, so that only the rule differs; then each with its own.
        rate, local = study.rows["clip", clip]
        for other, text in (
            (study.runs("global", clip, rate), f"R {clip:g}, rate {rate:g}"),
            (study.rows["global", clip][1], f"R {clip:g}, own rates"),
        ):
            print(f"| {text} | " + " | ".join(difference(other, local, m) for m in MEASURES) + " |")
    for by in ("accuracy", "nll", "ece"):
        norms = {rule: study.leader(rule, by) for rule in ("clip", "global")}
        pair = [study.rows[rule, norms[rule]][1] for rule in ("global", "clip")]
        text = f"R best by {by}: global {norms['global']:g}, local {norms['clip']:g}"
        print(f"| {text} | " + " | ".join(difference(*pair, m) for m in MEASURES) + " |")


def after_temperature(study: Study) -> None:
    """What one number, fitted on the held-back records as public ones, makes of each rule."""
    for rule in ("none", "clip", "global"):
        clip = study.leader(rule, "accuracy")
        before, after, heat = [], [], []
        for run in study.rows[rule, clip][1]:
            fitted = fit_temperature(run.held[:1000], run.held_labels[:1000])
            before.append(reported(run).ece)
            after.append(measure(fitted(run.test), run.test_labels, logits=True).ece)
            heat.append(fitted.value)
        print(
            f"{study.task}, {NAMES[rule]} at R = {clip or '-'}: ECE % {said(before, 1, 100)}, "
            f"with temperature {np.mean(heat):.2f}: {said(after, 1, 100)}"
        )


def draw(study: Study) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.7), layout="constrained")
    norms = NORMS[study.task]
    for ax, name in zip(axes, MEASURES, strict=True):
        for rule in ("clip", "global"):
            found = [values(study.rows[rule, clip][1], name) for clip in norms]
            mean, spread = [r.mean() for r in found], [r.std(ddof=1) for r in found]
            ax.errorbar(norms, mean, spread, marker="o", capsize=3, color=COLOURS[rule],
                        linestyle="-" if rule == "clip" else "--",
                        label=f"{NAMES[rule]} clipping")  # fmt: skip
        plain = values(study.rows["none", 0.0][1], name).mean()
        ax.axhline(plain, color="0.5", linestyle=":", label="not private")
        ax.set(xscale="log", xlabel="clipping norm R", title=name if name != "nll" else "NLL")
    # Models that learnt nothing but certainty would squeeze everything else.
    axes[1].set(yscale="log")
    bottom, top = axes[1].get_ylim()
    ticks = [tick for tick in (0.3, 0.5, 1, 2, 5, 10, 20) if bottom <= tick <= top]
    axes[1].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[1].minorticks_off()
    axes[2].set(title="ECE (15 bins)")
    axes[0].legend(fontsize="small")
    figure.suptitle(
        f"{TITLES[study.task]}: mean and deviation of {study.seeds} seeds, each rule with the "
        "best of three rates"
    )
    figure.savefig(IMAGES / f"analysis_claim_{study.task}.png", dpi=100)


def main() -> None:
    options = arguments(__doc__)
    watch = Stopwatch(options.seconds)
    for task in [options.task] if options.task else NORMS:
        study = Study(task, options.seeds, watch)
        tables(study)
        after_temperature(study)
        draw(study)


if __name__ == "__main__":
    main()
