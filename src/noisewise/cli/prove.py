"""``noisewise prove train.py:build``: print whether a model keeps records apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from noisewise.cli.certify import load_object

__all__ = ["prove"]

_FORM = (
    "the function must return (model, loss, x, y): a torch module, a torch loss or a function from "
    "output and target to one loss per record, and a batch of at least two records, which may be "
    "made up"
)


def prove(
    program: Annotated[
        str,
        typer.Argument(
            help="A Python file and a function that returns model, loss, x, y: train.py:build."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Prove that a model and its loss keep the records of a batch apart, or say what mixes them.

    Exit code 0 if proven, 1 if not, 2 for a mistake in the call.

    Example: noisewise prove train.py:build
    """
    from torch import nn

    from noisewise.gradients import prove_apart
    from noisewise.working import working

    built: Any = load_object(program)
    if isinstance(built, Mapping):
        built = tuple(built.get(name) for name in ("model", "loss", "x", "y"))
    if not isinstance(built, tuple) or len(built) != 4 or not isinstance(built[0], nn.Module):
        raise ValueError(f"{program}: {_FORM}")
    with working("proving that records are kept apart"):
        proof = prove_apart(*built)
    if as_json:
        typer.echo(json.dumps({"proven": proof.proven, **asdict(proof)}, indent=2))
    else:
        typer.echo(str(proof))
    raise typer.Exit(0 if proof.proven else 1)
