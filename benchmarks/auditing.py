"""How much of a true epsilon each audit can exhibit, and what it costs.

Tightness is the lower bound over the epsilon that is claimed, rightly: 1 is the most that
a valid bound can reach, 0 means that nothing was seen. Means over three audits with
different seeds, 95 per cent confidence, delta 1e-5. ``python -m benchmarks auditing``;
NOISEWISE_AUDIT_TABLES picks some of ``one_step,default_runs,many_steps,methods,peers``. Seconds
are processor time of one audit.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import table
from noisewise.auditing import AuditResult, NoiseModel, Scores, audit
from noisewise.auditing.bounds import clopper_pearson, one_run, one_run_tradeoff
from noisewise.privacy import PoissonGaussian, Statement

DELTA = 1e-5
SEEDS = (0, 1_000_000, 2_000_000)


def dp_sgd_step(noise: float, rate: float = 1.0) -> Callable[..., Tensor]:
    """A correct private sum with clipping norm 1."""

    def step(gradients: Tensor, *, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if rate < 1:
            gradients = gradients[torch.rand(len(gradients), generator=generator) < rate]
        norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
        total = (gradients * (1 / norms).clamp(max=1)).sum(0)
        return total + noise * torch.randn(total.shape, generator=generator)

    return step


def claim(noise: float, rate: float = 1.0, steps: int = 1) -> Statement:
    return Statement.derive(PoissonGaussian(noise, rate, steps), delta=DELTA, mechanism="DP-SGD")


def mean_of(run: Callable[[int], AuditResult]) -> tuple[float, float, float, float]:
    """Mean bound, mean tightness, largest certifiable, processor seconds of one audit."""
    start = time.process_time()
    results = [run(seed) for seed in SEEDS]
    seconds = (time.process_time() - start) / len(SEEDS)
    bounds = [result.epsilon_lower_bound for result in results]
    assert results[0].claimed_epsilon is not None
    mean = float(np.mean(bounds))
    return mean, mean / results[0].claimed_epsilon, results[0].largest_certifiable, seconds


def row(name: str, claimed: float, found: tuple[float, float, float, float]) -> tuple[str, ...]:
    mean, tightness, largest, seconds = found
    return (
        name,
        f"{claimed:.3f}",
        f"{mean:.3f}",
        f"{tightness:.2f}",
        f"{largest:.1f}",
        f"{seconds:.2f}",
    )


HEADER = ("", "claimed", "bound", "tightness", "could certify", "seconds")


def one_step() -> None:
    rows = []
    for noise in (0.5, 1.0, 2.0, 4.0):
        for repeats in (5, 40, 200):
            statement = claim(noise)
            found = mean_of(
                lambda seed, s=statement, n=noise, r=repeats: audit(
                    dp_sgd_step(n),
                    claimed=s,
                    attack="gradient-canaries",
                    clip=1.0,
                    repeats=r,
                    seed=seed,
                )
            )
            name = f"noise {noise:g}, 1000 canaries x {repeats}"
            rows.append(row(name, statement.epsilon, found))
    table("One step, gradient canaries", HEADER, rows)


def default_runs() -> None:
    """A hundred sampled steps with the default settings: the sampler is audited too."""
    rows = []
    for noise, rate in ((1.0, 0.1), (1.0, 0.05), (1.0, 0.01), (2.0, 0.1)):
        statement = claim(noise, rate, 100)
        found = mean_of(
            lambda seed, s=statement, n=noise, q=rate: audit(
                dp_sgd_step(n, q), claimed=s, attack="run-canaries", clip=1.0, seed=seed
            )
        )
        rows.append(row(f"noise {noise:g}, rate {rate:g}", statement.epsilon, found))
        print("  " + " | ".join(rows[-1]), flush=True)
    table("A hundred sampled steps, batches hidden, default settings", HEADER, rows)


def many_steps() -> None:
    """Three adversaries: one knows the batches, two see all steps but not the batches."""
    rows = []
    for noise, rate in ((1.0, 0.1), (1.0, 0.05), (1.0, 0.01), (2.0, 0.1)):
        statement = claim(noise, rate, 100)
        settings: list[tuple[str, float, dict[str, object]]] = [
            ("batch known", 1.0, {"attack": "gradient-canaries"}),
            ("hidden, step by step", rate, {"attack": "stepwise-canaries", "canaries": 2000}),
            ("hidden, whole run, 2000 x 10", rate, {"attack": "run-canaries"}),
            ("hidden, whole run, 2000 x 40", rate, {"attack": "run-canaries", "repeats": 40}),
        ]
        for name, sampled, options in settings:
            found = mean_of(
                lambda seed, s=statement, n=noise, q=sampled, o=options: audit(
                    dp_sgd_step(n, q), claimed=s, clip=1.0, seed=seed, **o
                )
            )
            title = f"noise {noise:g}, rate {rate:g}, {name}"
            rows.append(row(title, statement.epsilon, found))
            print("  " + " | ".join(rows[-1]), flush=True)
    table("A hundred sampled steps", HEADER, rows)


def methods() -> None:
    """Bounds on the same scores: N(1, 1) in and N(0, 1) out, true epsilon 4.377."""
    rows = []
    for count in (100, 500, 2500, 10_000):
        for method in (
            "clopper-pearson",
            "joint-beta",
            "one-run",
            "one-run-tradeoff",
            "gaussian",
            "normal-estimate",
        ):

            def run(seed: int, n: int = count, m: str = method) -> AuditResult:
                rng = np.random.default_rng(seed + 1)
                scores = Scores(rng.normal(1, 1, n), rng.normal(0, 1, n), midpoint=0.5, coins=True)
                noise = NoiseModel()
                return audit(
                    scores, claimed=4.3772, delta=DELTA, method=m, noise=noise, threshold=_rule(m)
                )

            try:
                found = mean_of(run)
            except ValueError:  # scores that fail the normality check by chance: no estimate
                continue
            rows.append(row(f"{method}, {count} in and out", 4.3772, found))
    table("Methods on the same scores, true epsilon 4.377", HEADER, rows)


def peers() -> None:
    """Our bounds beside those of jax-privacy on the same scores; needs ``pip install jax-privacy``.

    One canary's law N(1, 1) in and N(0, 1) out, fair coins, 95 per cent, delta 1e-5, the true
    epsilon 4.377; means over three draws of the scores.
    """
    if importlib.util.find_spec("jax_privacy") is None:
        print("  jax-privacy is not installed: pip install jax-privacy")
        return
    auditor = importlib.import_module("jax_privacy.auditing").CanaryScoreAuditor
    ours = {
        "one-run": lambda s: one_run(s, delta=DELTA).epsilon,
        "one-run-tradeoff": lambda s: one_run_tradeoff(s, delta=DELTA, model=NoiseModel()).epsilon,
        "clopper-pearson": lambda s: clopper_pearson(s, delta=DELTA, threshold="all").epsilon,
        "gaussian": lambda s: (
            audit(
                s,
                claimed=4.3772,
                delta=DELTA,
                method="gaussian",
                noise=NoiseModel(),
                threshold="all",
            ).epsilon_lower_bound
        ),
    }
    theirs = {
        "one-run": lambda a: a.epsilon_one_run(0.05, DELTA),
        "one-run-tradeoff": lambda a: a.epsilon_one_run_fdp(0.05, DELTA),
        "clopper-pearson": lambda a: a.epsilon_clopper_pearson(0.05, DELTA),
        "gaussian": lambda a: a.epsilon_from_gdp(0.05, DELTA),
    }
    rows = []
    for count in (100, 500, 2500):
        drawn = []
        for seed in SEEDS:
            rng = np.random.default_rng(seed + 1)
            drawn.append((rng.normal(1, 1, count), rng.normal(0, 1, count)))
        for name, bound in ours.items():
            mine = [bound(Scores(a, b, midpoint=0.5, coins=True)) for a, b in drawn]
            other = [float(theirs[name](auditor(a, b))) for a, b in drawn]
            rows.append(
                (f"{count} in and out", name, f"{np.mean(mine):.2f}", f"{np.mean(other):.2f}")
            )
            print("  " + " | ".join(rows[-1]), flush=True)
    header = ("scores", "bound", "noisewise", "jax-privacy")
    table("Bounds on the same scores, true epsilon 4.377", header, rows)


def _rule(method: str) -> str | float:
    # The two direct methods do best away from the middle, so they choose for themselves.
    return "split" if method == "joint-beta" else "all"


def pictures(folder: Path) -> None:
    """Draw the pictures of the documentation."""
    correct = audit(dp_sgd_step(1.0), claimed=claim(1.0), attack="gradient-canaries", clip=1.0)
    correct.plot(folder / "audit_correct.png")
    forgotten = audit(dp_sgd_step(0.5), claimed=claim(1.0), attack="gradient-canaries", clip=1.0)
    forgotten.plot(folder / "audit_half_noise.png")


TABLES = {
    "one_step": one_step,
    "default_runs": default_runs,
    "many_steps": many_steps,
    "methods": methods,
    "peers": peers,
}


def main() -> None:
    """Print the tables that were asked for."""
    start = time.process_time()
    chosen = os.environ.get("NOISEWISE_AUDIT_TABLES", "one_step,many_steps,methods").split(",")
    for name in chosen:
        if name not in TABLES:
            raise SystemExit(f"no table {name}; there are {', '.join(TABLES)}")
        TABLES[name]()
    print(f"\n  processor time of all audits of this page: {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
