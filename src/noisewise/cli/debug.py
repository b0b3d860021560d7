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
        str, typer.Option(help="Shape of one input, e.g. 3,32,32 (if not given: from the model)")
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
        str,
        typer.Option(
            help="quick, default or thorough (if not given: default, or quick for a command that "
            "needs a new interpreter for each run)"
        ),
    ] = "",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="More power; the same as --effort thorough")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start a new interpreter for every run of a Python script"),
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument that must not change the result, with values to try (E6): "
            "micro_batch_size=2,8; a placeholder of that name in the command"
        ),
    ] = None,
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

    The script is run some hundred times (quick: about 300) on synthetic data. It reads the
    data ({data}: a dict with x and y) and the first weights ({init}: a state dict) and writes
    the last ones ({out}: a state dict). A plain "python script.py ..." is run in forks of one
    interpreter that has imported torch, a tenth of a second each.
    """
    from torch.nn import functional

    from noisewise.debugging import Claim, check
    from noisewise.debugging.command import CommandTraining, load_object
    from noisewise.debugging.guessing import guess_example

    console = Console(highlight=False)
    if bool(command) == bool(train):
        raise ValueError("give either --command or --train")
    chosen = effort or ("thorough" if thorough else "default")
    options = dict(_options(given) for given in vary or [])
    if command:
        usual = {name: values[0] for name, values in options.items()}
        training: Any = CommandTraining(command, form, fresh=fresh, usual=usual)
        for name, why in ({} if as_json else training.absent).items():
            console.print(f"[yellow]placeholder {{{name}}} is missing:[/] {escape(why)}")
        if training.preloaded is None and not (effort or thorough):
            chosen = "quick"
    else:
        training = load_object(train, "--train")
    build = load_object(model, "--model")
    known = _LOSSES.get(loss)
    loss_fn = getattr(functional, known) if known else load_object(loss, "--loss")
    claimed = None
    if epsilon > 0:
        claimed = Claim(epsilon, delta, claimed_sigma, claimed_rate, claimed_steps)
    if example or input_shape:
        batch = _example(example, input_shape, classes, build)
    else:
        batch, seen = guess_example(model, build, loss)
        if not as_json:
            console.print(f"[cyan]records[/] {escape(seen)}")
    findings = check(
        training,
        build,
        loss_fn,
        example=batch,
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        sampling=sampling,
        options=options,
        effort=chosen,
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
    try:
        size = [int(part) for part in shape.split(",")]
    except ValueError as error:
        raise ValueError(f"--input-shape must look like 3,32,32, got {shape!r}") from error
    x = torch.zeros(2, *size)
    if classes:
        return x, torch.arange(2) % classes
    with torch.no_grad():
        output = build()(x)
    return x, torch.randn_like(output)


def _options(given: str) -> tuple[str, tuple[int | float | str, ...]]:
    """Return the name and the values of ``name=value,value``."""
    name, _, values = given.partition("=")
    if not name or not values:
        raise ValueError(f"--vary must look like micro_batch_size=2,8, got {given!r}")
    return name, tuple(_plain(value) for value in values.split(","))


def _plain(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
