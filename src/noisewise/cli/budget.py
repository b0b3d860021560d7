"""``noisewise budget``: what training costs, how much noise it needs, how long it may last.

Of epsilon, noise and length, give two; the command finds the third.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["Budget", "budget", "default_delta"]


@dataclass(frozen=True)
class Budget:
    """The answer: a complete, consistent set of numbers."""

    question: str
    epsilon: float
    delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    epochs: float
    accountant: str
    relation: str
    unit_rows: int | None = None
    group_bound: float | None = None


def default_delta(records: int) -> float:
    """1 / (10 n), rounded down to a power of ten.

    Examples
    --------
    >>> default_delta(48_842)
    1e-06
    """
    return float(f"1e{-math.ceil(math.log10(10 * records))}")


def budget(
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    sample_rate: Annotated[
        float | None, typer.Option(help="Probability of each record to be in a batch.")
    ] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected batch size.")] = None,
    records: Annotated[int | None, typer.Option(help="Public number of records.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: 1/(10 records), rounded down to a power of ten.")
    ] = None,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit_rows: Annotated[
        int | None,
        typer.Option(help="For units (patients) of up to so many records, each drawn by itself."),
    ] = None,
    accountant: Annotated[
        str, typer.Option(help="pld: tight; rdp: looser, an independent check")
    ] = "pld",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture of epsilon over steps, e.g. out.png.")
    ] = None,
) -> None:
    r"""Tell what training costs, how much noise it needs, or how long it may last.

    Give two of --epsilon, --noise and --steps (or --epochs); the third is found.

    For example:

      noisewise budget --noise 1.0 --epochs 20 --batch-size 256 --records 50000
      noisewise budget --epsilon 3 --epochs 20 --batch-size 256 --records 50000
      noisewise budget --epsilon 3 --noise 1.0 --batch-size 256 --records 50000
      noisewise budget --epsilon 3 --epochs 20 --batch-size 256 \
        --records 50000 --unit-rows 8
    """
    rate = _rate(sample_rate, batch_size, records)
    if delta is None:
        if records is None:
            raise ValueError("give --delta, or --records from which it is chosen")
        delta = default_delta(records)
    answer = solve(
        epsilon, noise, _steps(steps, epochs, rate), rate, delta, relation, accountant, unit_rows
    )
    if plot is not None:
        draw(answer, plot)
    if as_json:
        typer.echo(json.dumps(asdict(answer), indent=2))
        return
    _show(answer, plot)


def solve(
    epsilon: float | None,
    noise: float | None,
    steps: int | None,
    sample_rate: float,
    delta: float,
    relation: str,
    accountant: str,
    unit_rows: int | None = None,
) -> Budget:
    """Find the one of epsilon, noise and steps that is missing."""
    from noisewise.privacy import accounting

    if [epsilon, noise, steps].count(None) != 1:
        raise ValueError("give exactly two of --epsilon, --noise and --steps (or --epochs)")
    common: dict[str, Any] = {
        "delta": delta,
        "sample_rate": sample_rate,
        "accountant": accountant,
        "relation": relation,
        "unit_rows": unit_rows,
    }
    if epsilon is None:
        question = "What does this training cost?"
    elif noise is None:
        question = f"How much noise for epsilon {epsilon:g}?"
        noise = accounting.noise_multiplier(epsilon=epsilon, steps=steps or 0, **common)
    else:
        question = f"How long can I train within epsilon {epsilon:g}?"
        steps = accounting.max_steps(epsilon=epsilon, noise_multiplier=noise, **common)
    assert noise is not None
    assert steps is not None
    return Budget(
        question=question,
        epsilon=accounting.epsilon(noise_multiplier=noise, steps=steps, **common),
        delta=delta,
        noise_multiplier=noise,
        sample_rate=sample_rate,
        steps=steps,
        epochs=steps * sample_rate,
        accountant=accountant,
        relation=relation,
        unit_rows=unit_rows,
        group_bound=_group_bound(noise, steps, common),
    )


def _group_bound(noise: float, steps: int, common: dict[str, Any]) -> float | None:
    """What group privacy would say of the statement for one record: a bad bound."""
    from noisewise.privacy import PoissonGaussian, group_privacy_of

    rows = common["unit_rows"]
    if rows is None or not steps:
        return None
    bound = group_privacy_of(
        PoissonGaussian(noise, common["sample_rate"], steps),
        size=rows,
        delta=common["delta"],
        relation=common["relation"],
        accountant=common["accountant"],
    )
    return bound if math.isfinite(bound) else None


def draw(answer: Budget, path: Path) -> None:
    """Write a picture of epsilon over steps, with the answer marked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from noisewise.privacy import accounting, round_up
    from noisewise.privacy.accountants import ACCOUNTANTS

    if answer.steps < 1:
        raise ValueError("nothing to plot: not even one step fits this budget")
    if not path.parent.is_dir():
        raise ValueError(f"no folder at {str(path.parent)!r} for the plot {path.name!r}")
    points = sorted({max(1, round(answer.steps * share / 40)) for share in range(1, 49)})
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, style in zip(ACCOUNTANTS, ("-", "--", ":", "-."), strict=False):
        costs = [
            accounting.epsilon(
                noise_multiplier=answer.noise_multiplier,
                sample_rate=answer.sample_rate,
                steps=count,
                delta=answer.delta,
                accountant=name,
                relation=answer.relation,
                unit_rows=answer.unit_rows,
            )
            for count in points
        ]
        axes.plot(points, costs, style, label=f"epsilon ({name})")
    axes.plot(answer.steps, answer.epsilon, "ko")
    axes.annotate(
        f"{answer.steps:,} steps: {round_up(answer.epsilon)}",
        (answer.steps, answer.epsilon),
        textcoords="offset points",
        xytext=(0, -34),
        ha="center",
        arrowprops={"arrowstyle": "-", "color": "0.4"},
    )
    axes.set(
        xlabel="steps",
        ylabel="epsilon",
        title=f"noise multiplier {answer.noise_multiplier:.4g}, sample rate "
        f"{answer.sample_rate:.4g}, delta {answer.delta:g}, {answer.relation}",
    )
    axes.title.set_fontsize("medium")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _rate(sample_rate: float | None, batch_size: float | None, records: int | None) -> float:
    if records is not None and records < 1:
        raise ValueError(f"--records must be >= 1, got {records}")
    if sample_rate is not None:
        if batch_size is not None:
            raise ValueError("give --sample-rate or --batch-size, not both")
        return sample_rate
    if batch_size is None or records is None:
        raise ValueError("give --sample-rate, or both --batch-size and --records")
    if not 0 < batch_size <= records:
        raise ValueError(f"--batch-size must lie in (0, {records}], got {batch_size:g}")
    return batch_size / records


def _steps(steps: int | None, epochs: float | None, rate: float) -> int | None:
    if epochs is None:
        return steps
    if steps is not None:
        raise ValueError("give --steps or --epochs, not both")
    if epochs <= 0:
        raise ValueError(f"--epochs must be > 0, got {epochs:g}")
    return math.ceil(epochs / rate - 1e-9)


def _show(answer: Budget, plot: Path | None) -> None:
    from noisewise.privacy import round_up

    table = Table(title=answer.question, show_header=False, title_justify="left")
    rows = {
        "epsilon": round_up(answer.epsilon),
        "delta": f"{answer.delta:g}",
        "noise multiplier": f"{answer.noise_multiplier:.6g}",
        "sample rate": f"{answer.sample_rate:.6g}",
        "steps": f"{answer.steps:,}",
        "epochs": f"{answer.epochs:.4g}",
        "relation": answer.relation,
        "accountant": answer.accountant,
        "sampling": "Poisson: other samplers need another analysis",
    }
    if answer.unit_rows is not None:
        rows["rows of a unit"] = f"at most {answer.unit_rows}, each drawn by itself"
        told = "nothing" if answer.group_bound is None else round_up(answer.group_bound)
        rows["group privacy"] = f"{told}: the bad bound from a statement for one record"
    for name, value in rows.items():
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    if answer.steps == 0:
        console.print("Not even one step fits: add noise, or allow a larger epsilon.")
    if plot is not None:
        console.print(f"picture: {plot}")
