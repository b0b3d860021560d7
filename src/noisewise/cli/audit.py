"""``noisewise audit``: bound epsilon from below, from a file of scores or by attacking code.

A module to attack defines a training function and, beside it, ``audit_inputs()``,
which returns the arguments of the attack (see ``docs/auditing.md``).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from noisewise.auditing import NoiseModel, Scores
    from noisewise.privacy import Statement

__all__ = ["audit"]


def audit(
    target: Annotated[
        str, typer.Argument(help="Scores (.csv, .npz), or a function as module.py:train.")
    ],
    epsilon: Annotated[float | None, typer.Option(help="Claimed epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the claim.")] = None,
    statement: Annotated[
        Path | None, typer.Option(help="The claim, as a statement written by to_json().")
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="For a function: two-worlds, one-run, membership, gradient-canaries, run-canaries"
        ),
    ] = "two-worlds",
    method: Annotated[str, typer.Option(help="The bound; auto takes the sharpest valid.")] = "auto",
    confidence: Annotated[float, typer.Option(help="Level of the bound.")] = 0.95,
    threshold: Annotated[
        str, typer.Option(help="all, split, or a number fixed before the scores were seen.")
    ] = "all",
    gaussian: Annotated[
        bool, typer.Option("--gaussian", help="The mechanism adds Gaussian noise.")
    ] = False,
    sample_rate: Annotated[float, typer.Option(help="Claimed rate, with --gaussian.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Claimed number of steps, with --gaussian.")] = 1,
    design: Annotated[
        str, typer.Option(help="Of scores in a file: independent, orthogonal or one-run.")
    ] = "independent",
    coins: Annotated[
        bool, typer.Option("--coins", help="Each canary was put in by its own fair coin.")
    ] = False,
    observed: Annotated[
        str, typer.Option(help="What a score in a file is of: batch, step or run.")
    ] = "run",
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    plot: Annotated[Path | None, typer.Option(help="Draw scores and ROC curve here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Attack code, or read an attack's scores, and bound epsilon from below.

    Exit code 1 if the claim is refuted, 0 if not, 2 if it could not be judged.

    Example: noisewise audit scores.csv --epsilon 2 --delta 1e-5
    """
    from noisewise.auditing import NoiseModel, audit as run
    from noisewise.cli.outputs import check_files
    from noisewise.working import working

    check_files(report, plot)
    claim = _claim(epsilon, delta, statement)
    noise: NoiseModel | None = None
    if gaussian:
        noise = NoiseModel(sample_rate, steps, relation=_relation(relation))
    elif sample_rate != 1.0 or steps != 1:
        raise ValueError("--sample-rate and --steps describe Gaussian noise: add --gaussian")
    options: dict[str, Any] = {}
    subject: Any
    if ".py:" in target:
        subject, options = _load(target)
        options = {"attack": attack, **options}
    else:
        subject = _read(target, design, coins, observed, relation)
    with working("auditing"):
        result = run(
            subject,
            claimed=claim,
            delta=delta,
            method=method,
            noise=noise,
            confidence=confidence,
            threshold=threshold if threshold in ("all", "split") else _number(threshold),
            **options,
        )
    if plot is not None:
        result.plot(plot)
    if report is not None:
        from noisewise.cli.audit_report import write_report

        write_report(result, report, source=Path(target).name)
    if as_json:
        typer.echo(result.to_json())
    else:
        colour = "red" if result.passed is False else "default"
        Console(highlight=False, soft_wrap=True).print(str(result), style=colour, markup=False)
        if plot is not None:
            typer.echo(f"  plot          {plot}")
        if report is not None:
            typer.echo(f"  report        {report}")
    raise typer.Exit(1 if result.passed is False else 0)


def _claim(
    epsilon: float | None, delta: float | None, statement: Path | None
) -> Statement | float | None:
    from noisewise.privacy import read_statement

    if statement is not None:
        if epsilon is not None:
            raise ValueError("give --statement or --epsilon, not both")
        return read_statement(statement)
    if delta is None:
        raise ValueError("give the claim: --statement FILE, or --epsilon and --delta")
    return epsilon


def _relation(name: str) -> Any:
    from noisewise.privacy import Relation

    return Relation(name)


def _read(target: str, design: str, coins: bool, observed: str, relation: str) -> Scores:
    from noisewise.auditing import Scores

    return Scores.read(
        target, design=design, coins=coins, observed=observed, relation=_relation(relation)
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"threshold must be all, split or a number, got {text!r}") from error


def _load(target: str) -> tuple[Any, dict[str, Any]]:
    """Return the function named by ``file.py:function`` and the arguments of the attack."""
    place, _, name = target.rpartition(":")
    path = Path(place)
    if not path.is_file():
        raise ValueError(f"no module at {path}")
    spec = importlib.util.spec_from_file_location(f"noisewise_audited_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up, and a module may import its neighbours.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    for needed in (name, "audit_inputs"):
        if not callable(getattr(module, needed, None)):
            raise ValueError(
                f"{path} must define a function {needed}(); audit_inputs() returns the arguments "
                "of the attack as a dict, for example init, data, canary, clip, noise_multiplier"
            )
    inputs = module.audit_inputs()
    if not isinstance(inputs, Mapping):
        raise ValueError(f"audit_inputs() in {path} must return a dict, got {inputs!r}")
    return getattr(module, name), dict(inputs)
