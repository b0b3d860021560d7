"""The command ``noisewise debug``: look for privacy bugs in any training script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["debug"]

#: Names of losses, and their functions in torch.nn.functional, which is imported when needed.
_LOSSES = {
    "cross-entropy": "cross_entropy",
    "mse": "mse_loss",
    "bce": "binary_cross_entropy_with_logits",
    "l1": "l1_loss",
}


def debug(
    model: Annotated[str, typer.Option(help="What builds the model: model.py:build")],
    command: Annotated[
        str,
        typer.Option(
            help="Your script, with placeholders: python train.py --clip {clip} --sigma "
            "{noise_multiplier} --bs {batch_size} --seed {seed} --data {data} --init {init} "
            "--steps {steps} --lr {lr} --out {out}"
        ),
    ] = "",
    train: Annotated[
        str, typer.Option(help="Instead of a command, a function, much faster: train.py:train")
    ] = "",
    loss: Annotated[
        str, typer.Option(help="cross-entropy, mse, bce, l1, or file.py:function")
    ] = "cross-entropy",
    input_shape: Annotated[
        str, typer.Option(help="Shape of one input, e.g. 3,32,32 (or model.py:example)")
    ] = "",
    example: Annotated[
        str, typer.Option(help="Function that returns a batch (x, y): model.py:example")
    ] = "",
    classes: Annotated[int, typer.Option(help="Number of classes; 0 for regression")] = 0,
    optimizer: Annotated[str, typer.Option(help="sgd or adam")] = "sgd",
    momentum: Annotated[float, typer.Option(help="Momentum of the optimizer")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of the optimizer")] = 0.0,
    sampling: Annotated[str, typer.Option(help="poisson or fixed")] = "poisson",
    effort: Annotated[
        str, typer.Option(help="quick, default or thorough (default: quick for a command)")
    ] = "",
    form: Annotated[str, typer.Option(help="Files: pt, safetensors or npz")] = "pt",
    epsilon: Annotated[float, typer.Option(help="Epsilon that was printed (for E8)")] = 0.0,
    delta: Annotated[float, typer.Option(help="Delta of that claim")] = 1e-5,
    claimed_sigma: Annotated[float, typer.Option(help="Noise multiplier of that claim")] = 0.0,
    claimed_rate: Annotated[float, typer.Option(help="Sampling rate of that claim")] = 0.0,
    claimed_steps: Annotated[int, typer.Option(help="Number of steps of that claim")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page here")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Look for privacy bugs in a training script; exit code 1 if there is one.

    The script is run some hundred times (quick: about 200) on synthetic data. It reads the
    data ({data}: a dict with x and y) and the first weights ({init}: a state dict) and writes
    the last ones ({out}: a state dict).
    """
    from torch.nn import functional

    from noisewise.debugging import Claim, check
    from noisewise.debugging.command import CommandTraining, load_object

    console = Console(highlight=False)
    if bool(command) == bool(train):
        raise ValueError("give either --command or --train")
    if command:
        training: Any = CommandTraining(command, form)
        for name, why in ({} if as_json else training.absent).items():
            console.print(f"[yellow]placeholder {{{name}}} is missing:[/] {escape(why)}")
    else:
        training = load_object(train, "--train")
    build = load_object(model, "--model")
    known = _LOSSES.get(loss)
    loss_fn = getattr(functional, known) if known else load_object(loss, "--loss")
    claimed = None
    if epsilon > 0:
        claimed = Claim(epsilon, delta, claimed_sigma, claimed_rate, claimed_steps)
    findings = check(
        training,
        build,
        loss_fn,
        example=_example(example, input_shape, classes, build),
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        sampling=sampling,
        effort=effort or ("quick" if command else "default"),
        claimed=claimed,
    )
    if as_json:
        typer.echo(findings.to_json())
    else:
        findings.table(console)
    if report is not None:
        findings.report(report)
        if not as_json:
            console.print(f"report: {escape(str(report))}")
    raise typer.Exit(0 if findings.ok else 1)


def _example(place: str, shape: str, classes: int, build: Any) -> tuple[Tensor, Tensor]:
    import torch

    from noisewise.debugging.command import load_object

    if place:
        x, y = load_object(place, "--example")()
        return x, y
    if not shape:
        raise ValueError(
            "give --input-shape 3,32,32 with --classes 10, or --example model.py:example, so that "
            "synthetic records have the right form"
        )
    size = [int(part) for part in shape.split(",")]
    x = torch.zeros(2, *size)
    if classes:
        return x, torch.arange(2) % classes
    with torch.no_grad():
        output = build()(x)
    return x, torch.randn_like(output)
