"""What the bug finder says of published algorithms and of our engine, and who agrees.

``python -m benchmarks debug_papers`` checks the algorithms as printed, then with one fault at a
time left in, then repaired, then every estimator of our engine, at default effort; about twelve
minutes on one core. Each fault is then confirmed without the bug finder, by an audit whose lower
bound exceeds the epsilon that the algorithm claims, or by the sampling rate that is measured.
Both tables are written to ``docs/debugging-papers.md``. As for ``mutants``, a file named in
NOISEWISE_MUTANT_STORE keeps finished rows, and NOISEWISE_MUTANT_SECONDS ends a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import table
from benchmarks._our_engine import ESTIMATORS, STUDIED, engine_training
from benchmarks._published import PRINTED_2024, PRINTED_2025, REPAIRED, Printed, network
from benchmarks._rows import Rows
from noisewise.auditing import AuditResult, Scores, audit
from noisewise.debugging import check
from noisewise.privacy import PoissonGaussian, Statement, epsilon

PAGE = Path(__file__).parent.parent / "docs" / "debugging-papers.md"
EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 7]))
ENGINE_EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))
DELTA = 1e-5
# Each refutation may be wrong with this probability.
LEVEL = 1 - 1e-6

PUBLISHED: dict[str, Printed] = {
    "Barczewski (2025), algorithm 8, as printed": PRINTED_2025,
    "Barczewski and Ramon (2024), algorithm 2, as printed": PRINTED_2024,
    "only the batch maximum (2025, lines 11, 13)": replace(REPAIRED, scale="batch"),
    "only the product from k on (2025, line 5)": replace(REPAIRED, product="from k"),
    "only sigma for each of K layers (2024, 13; 2025, 12)": replace(REPAIRED, noise="each"),
    "only division by the size drawn (2024, 14; 2025, 13)": replace(REPAIRED, divisor="drawn"),
    "only empty batches drawn again (2024 and 2025, line 7)": replace(REPAIRED, empty="again"),
    "all five repaired": REPAIRED,
}


def findings_of(train: Any, build: Any, example: tuple[Tensor, Tensor]) -> tuple[str, ...]:
    """Check a training function; return the names and the first sentence."""
    findings = check(train, build, cross_entropy, example=example)
    first = findings.findings[0].sentence if findings.findings else "no bug found"
    return ", ".join(findings.bugs) or "none", first


# --- confirmations: none of them uses the bug finder


def claim(sigma: float, rate: float = 1.0, steps: int = 1) -> Statement:
    """What the papers' accountant says: one Gaussian mechanism of multiplier sigma."""
    event = PoissonGaussian(sigma, rate, steps)
    return Statement.derive(event, delta=DELTA, mechanism="as printed")


def weights(scale: float) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: scale * value for name, value in network().state_dict().items()}


def attack(train: Printed, init: dict[str, Tensor], data: Any, canary: Any) -> AuditResult:
    return audit(
        train,
        claimed=claim(1.0),
        attack="two-worlds",
        confidence=LEVEL,
        repeats=1000,
        init=init,
        data=data,
        canary=canary,
        clip=0.7,
        noise_multiplier=1.0,
    )


def batch_maximum(train: Printed = PUBLISHED["only the batch maximum (2025, lines 11, 13)"]) -> Any:
    """Sixteen records of tiny norm; with a long one among them they count for nothing."""
    short = torch.zeros(16, 8)
    short[:, 0] = 1e-3
    data = (short, torch.zeros(16, dtype=torch.long))
    canary = (torch.full((1, 8), 10.0), torch.tensor([1]))
    return attack(train, weights(1.0), data, canary)


def misclassified(init: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a record that the network is as wrong about as can be."""
    model = network()
    model.load_state_dict(init)
    x = torch.zeros(1, 8)
    x[0, :4] = 3.0
    with torch.no_grad():
        return x, model(x).argmin(1)


def product_from_k(
    train: Printed = PUBLISHED["only the product from k on (2025, line 5)"],
) -> AuditResult:
    """Weights of norm 0.3: each bound is 0.3 times what it should be."""
    init = weights(0.3)
    data = (torch.eye(8)[:2], torch.tensor([0, 1]))
    return attack(train, init, data, misclassified(init))


def noise_for_each(
    train: Printed = PUBLISHED["only sigma for each of K layers (2024, 13; 2025, 12)"],
) -> AuditResult:
    """Weights of norm 3: a wrong answer is sure of itself and reaches all three bounds."""
    init = weights(3.0)
    data = (torch.eye(8)[:2], torch.tensor([0, 1]))
    return attack(train, init, data, misclassified(init))


def drawn_divisor(
    train: Printed = PUBLISHED["only division by the size drawn (2024, 14; 2025, 13)"],
) -> AuditResult:
    """Two records or three: how strong the noise is tells, along no direction at all."""
    init = weights(1.0)

    def scores(count: int, first: int) -> np.ndarray[Any, Any]:
        x, y = torch.eye(8)[:count], torch.arange(count)
        lengths = []
        for seed in range(first, first + 1500):
            after = train(
                clip=0.7,
                noise_multiplier=2.0,
                # At least as large as both, so that everybody is in the batch.
                batch_size=3,
                seed=seed,
                data=(x, y),
                init=init,
                steps=1,
                lr=1.0,
            )
            moved = torch.cat([(init[name] - after[name]).flatten() for name in init])
            lengths.append(-float(moved.norm()))
        return np.asarray(lengths)

    found = Scores(scores(3, 0), scores(2, 10_000), observed="batch")
    return audit(found, claimed=claim(2.0), method="clopper-pearson", confidence=LEVEL)


def drawn_again(
    train: Printed = PUBLISHED["only empty batches drawn again (2024 and 2025, line 7)"],
):
    """Return the rate at which one of eight records is drawn at B = 1, and its epsilon."""
    torch.manual_seed(0)
    runs = 20_000
    hits = sum(int((train._draw(8, 1) == 0).any()) for _ in range(runs))
    rate = hits / runs
    right, wrong = (
        epsilon(noise_multiplier=1.0, sample_rate=q, steps=100, delta=DELTA) for q in (0.125, rate)
    )
    return rate, right, wrong


def confirmations(rows: Rows) -> list[tuple[str, ...]]:
    """Return fault, finding, how it was confirmed, what was claimed, what was shown."""

    def audited(run: Callable[..., AuditResult], repaired: bool = False) -> tuple[str, ...]:
        result = run(REPAIRED) if repaired else run()
        verdict = "refuted" if result.passed is False else "not refuted"
        return f"{result.claimed_epsilon:.2f}", f"{result.epsilon_lower_bound:.2f}", verdict

    attacks: dict[str, tuple[str, str, Callable[..., AuditResult]]] = {
        "batch maximum": (
            "records-interact",
            "one step, 16 short records and a long one, with and without the long one",
            batch_maximum,
        ),
        "product from k on": (
            "wrong-norm",
            "one step at weights of norm 0.3, with and without a record",
            product_from_k,
        ),
        "sigma for each of K layers": (
            "clipped-per-layer",
            "one step at weights of norm 3, with and without a record",
            noise_for_each,
        ),
        "division by the size drawn": (
            "divides-by-actual-batch-size",
            "length of the update with three records and with two",
            drawn_divisor,
        ),
    }
    found = []
    for fault, (finding, how, run) in attacks.items():
        wrong = rows.get(f"papers: audit of {fault}", lambda r=run: audited(r))
        right = rows.get(f"papers: audit without {fault}", lambda r=run: audited(r, True))
        found.append((fault, f"`{finding}`", how, wrong[0], wrong[1], wrong[2], right[1]))

    def again() -> tuple[str, ...]:
        rate, claimed, true = drawn_again()
        return f"{rate:.3f}", f"{claimed:.2f}", f"{true:.2f}"

    rate, claimed, true = rows.get("papers: empty batches", again)
    how = f"one of eight records at B = 1 is drawn with probability {rate}, not 0.125; 100 steps"
    found.append(
        (
            "empty batches drawn again",
            "`empty-batches-avoided`",
            how,
            claimed,
            true,
            "recomputed",
            claimed,
        )
    )
    return found


def main() -> None:
    """Check, confirm, print and write the page."""
    torch.set_num_threads(1)
    rows = Rows()
    published = [
        (name, *rows.get(f"papers: {name}", lambda t=t: findings_of(t, network, EXAMPLE)))
        for name, t in PUBLISHED.items()
    ]
    engine = [
        (
            name,
            *rows.get(
                f"engine: {name}",
                lambda n=name, b=build: findings_of(engine_training(n), b, ENGINE_EXAMPLE),
            ),
        )
        for name, (build, _) in {**ESTIMATORS, **STUDIED}.items()
    ]
    confirmed = confirmations(rows)
    header = ("algorithm", "findings", "the first in words")
    table("Published algorithms", header, published)
    table("Our engine", header, engine)
    last = ("fault", "finding", "how", "claimed", "at least", "verdict", "same attack, repaired")
    table("Confirmed without the bug finder", last, confirmed)
    PAGE.write_text(page(header, published, engine, last, confirmed), encoding="utf-8")


def page(
    header: tuple[str, ...],
    published: list[tuple[str, ...]],
    engine: list[tuple[str, ...]],
    last: tuple[str, ...],
    confirmed: list[tuple[str, ...]],
) -> str:
    """Return the tables as a page of the documentation."""

    def grid(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
        rule = "|" + "---|" * len(columns)
        cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
        return ["| " + " | ".join(columns) + " |", rule, *(f"| {row} |" for row in cells)]

    lines = [
        "# Published algorithms under the bug finder",
        "",
        "Written by `python -m benchmarks debug_papers`. Lip-DP-SGD as printed by "
        "Barczewski and Ramon (2024, algorithm 2) and by Barczewski (2025, algorithm 8), then with "
        "one fault at a time, then repaired. It has no clipping norm, so every layer is measured "
        "in units of its own bound, which is what C stands for. The model has three layers that "
        "keep norms, so that a record can reach all bounds at once.",
        "",
        *grid(header, published),
        "",
        "## Confirmed without the bug finder",
        "",
        "Audits of one step at sigma = 1 (2 for the divisor), delta 1e-5, each at a level of "
        "1 - 1e-6. The last column is the lower bound that the same attack gets from the repaired "
        "algorithm, whose claim is the same: it must be below it, and is.",
        "",
        *grid(last, confirmed),
        "",
        "## Our own engine",
        "",
        "Through `make_private` with its own loader, noise by the optimal allocation. `Propagated` "
        "and `InputScaled` have no clipping norm either and are measured in units of the "
        "sensitivity of the whole sum. `BatchMaxScaled`, which is the rule of Barczewski (2025) "
        "for study only, states no epsilon, and this is why.",
        "",
        *grid(header, engine),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
