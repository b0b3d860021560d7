"""Does global clipping calibrate better (paper 003)? Five seeds, several R: two pictures, a table.

Writes docs/images/analysis_claim_<task>.png and prints the tables of docs/analysis.md. For each
clipping norm R, local and global clipping are trained with the same seeds, hence the same
batches and the same noise, and rate / R as learning rate, so the noise of a step is the same for
every R. Of two rates the one with the best mean accuracy is shown for each (rule, R): test
records choose it, the same way for both rules.
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from analysis_training import IMAGES, Setup, Stopwatch, arguments, obtain
from scipy.stats import ttest_rel

from noisewise.analysis.calibration import Calibration, fit_temperature, measure

NORMS = {"small_mnist": (1.0, 3.0, 10.0, 30.0), "small_cifar": (1.0, 10.0, 30.0)}
RATES = {"none": (0.05, 0.15), "clip": (0.5, 1.5), "global": (0.5, 1.5)}
COLOURS = {"clip": "#c1440e", "global": "#2b6a99"}
NAMES = {"clip": "local", "global": "global", "none": "not private"}
MEASURES = ("accuracy", "nll", "ece")


def calibrations(setup: Setup, seeds: int, watch: Stopwatch) -> list[Calibration]:
    found = []
    for seed in range(seeds):
        fields = {**setup.__dict__, "seed": seed}
        outcome = obtain(Setup(**fields), watch)
        found.append(measure(np.nan_to_num(outcome.test), outcome.test_labels, logits=True))
    return found


def setup_of(task: str, rule: str, clip: float, rate: float) -> Setup:
    return Setup(task, rule=rule, clip=clip, rate=rate)


def best(task: str, rule: str, clip: float, seeds: int, watch: Stopwatch) -> tuple[float, list]:
    """The rate with the best mean accuracy, and its runs."""
    runs = {
        rate: calibrations(setup_of(task, rule, clip, rate), seeds, watch) for rate in RATES[rule]
    }
    rate = max(runs, key=lambda r: float(np.mean([c.accuracy for c in runs[r]])))
    return rate, runs[rate]


def values(runs: list[Calibration], name: str) -> np.ndarray:
    return np.array([getattr(run, name) for run in runs])


def said(numbers: np.ndarray, percent: bool) -> str:
    factor, digits = (100.0, 1) if percent else (1.0, 3)
    return f"{factor * numbers.mean():.{digits}f} ± {factor * numbers.std(ddof=1):.{digits}f}"


def table(task: str, seeds: int, watch: Stopwatch) -> dict:
    rows = {("none", 0.0): best(task, "none", 1.0, seeds, watch)}
    for clip in NORMS[task]:
        for rule in ("clip", "global"):
            rows[rule, clip] = best(task, rule, clip, seeds, watch)
    print(f"\n{task}\n\n| rule | R | rate | accuracy % | NLL | ECE % | over-confidence % |")
    print("|---|---|---|---|---|---|---|")
    for (rule, clip), (rate, runs) in rows.items():
        cells = [said(values(runs, "accuracy"), True), said(values(runs, "nll"), False)]
        cells += [said(values(runs, "ece"), True), said(values(runs, "overconfidence"), True)]
        print(f"| {NAMES[rule]} | {clip or ''} | {rate} | " + " | ".join(cells) + " |")
    print("\n| R | rate | global minus local: accuracy % | ECE % | p (paired t, ECE) |")
    print("|---|---|---|---|---|")
    for clip in NORMS[task]:
        # At equal rates, so that only the rule differs.
        rate = rows["clip", clip][0]
        local = rows["clip", clip][1]
        other = calibrations(setup_of(task, "global", clip, rate), seeds, watch)
        gain = values(other, "accuracy") - values(local, "accuracy")
        worse = values(other, "ece") - values(local, "ece")
        p = ttest_rel(values(other, "ece"), values(local, "ece")).pvalue if worse.any() else 1.0
        print(f"| {clip} | {rate} | {said(gain, True)} | {said(worse, True)} | {p:.2g} |")
    return rows


def after_temperature(task: str, rows: dict, seeds: int) -> None:
    """What one number, fitted on 1000 public records, makes of the best of each rule."""
    for rule in ("none", "clip", "global"):
        norms = [clip for r, clip in rows if r == rule]
        clip = max(norms, key=lambda c: values(rows[rule, c][1], "accuracy").mean())
        rate = rows[rule, clip][0]
        before, after, heat = [], [], []
        for seed in range(seeds):
            fields = {**setup_of(task, rule, clip or 1.0, rate).__dict__, "seed": seed}
            run = obtain(Setup(**fields))
            fitted = fit_temperature(run.test[:1000], run.test_labels[:1000])
            rest, truth = run.test[1000:], run.test_labels[1000:]
            before.append(measure(rest, truth, logits=True).ece)
            after.append(measure(fitted(rest), truth, logits=True).ece)
            heat.append(fitted.value)
        print(
            f"{task}, {NAMES[rule]} at R = {clip or '-'}: ECE % {said(np.array(before), True)}, "
            f"with temperature {np.mean(heat):.2f}: {said(np.array(after), True)}"
        )


def draw(task: str, rows: dict) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.7), layout="constrained")
    for ax, name in zip(axes, MEASURES, strict=True):
        for rule in ("clip", "global"):
            runs = [values(rows[rule, clip][1], name) for clip in NORMS[task]]
            mean, spread = [r.mean() for r in runs], [r.std(ddof=1) for r in runs]
            ax.errorbar(NORMS[task], mean, spread, marker="o", capsize=3, color=COLOURS[rule],
                        linestyle="-" if rule == "clip" else "--",
                        label=f"{NAMES[rule]} clipping")  # fmt: skip
        plain = values(rows["none", 0.0][1], name).mean()
        ax.axhline(plain, color="0.5", linestyle=":", label="not private")
        ax.set(xscale="log", xlabel="clipping norm R", title=name if name != "nll" else "NLL")
    axes[2].set(title="ECE (15 bins)")
    axes[0].legend(fontsize="small")
    figure.suptitle(f"{task}: mean and deviation of 5 seeds, best of two rates by accuracy")
    figure.savefig(IMAGES / f"analysis_claim_{task}.png", dpi=100)


def main() -> None:
    options = arguments(__doc__)
    watch = Stopwatch(options.seconds)
    for task in [options.task] if options.task else NORMS:
        rows = table(task, options.seeds, watch)
        after_temperature(task, rows, options.seeds)
        draw(task, rows)


if __name__ == "__main__":
    main()
