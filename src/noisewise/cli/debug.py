"""The command ``noisewise debug``: look for privacy bugs in any training script."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from noisewise.errors import NoisewiseError

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


@contextmanager
def _never_a_verdict() -> Iterator[None]:
    """Whatever fails, here or in the user's code, ends with 2: 1 would say that there is a bug."""
    try:
        yield
    except (typer.Exit, NoisewiseError, ValueError):
        raise
    except Exception as error:
        traceback.print_exc()
        kind = type(error).__name__
        raise NoisewiseError(f"the check could not be run: {kind}: {error}") from None


@_never_a_verdict()
def debug(
    function: Annotated[
        str, typer.Argument(help="The same as --train: a function, such as train.py:train")
    ] = "",
    model: Annotated[
        str,
        typer.Option(help="What builds the model: model.py:build (if not given: in the adapter)"),
    ] = "",
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
    adapter: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a command, a file that says how to train code as it stands: train, "
            "and perhaps build, loss and example (if not given: nw_adapter.py, if there is one)"
        ),
    ] = None,
    loss: Annotated[
        str, typer.Option(help="cross-entropy, mse, bce, l1, or file.py:function")
    ] = "cross-entropy",
    input_shape: Annotated[
        str, typer.Option(help="Shape of one input, e.g. 3,32,32 (if not given: from the model)")
    ] = "",
    example: Annotated[
        str, typer.Option(help="A batch (x, y), or a function that returns it: model.py:example")
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
            help="An argument that must not change the result, with values to try: "
            "world_size=1,2; a placeholder of that name in the command"
        ),
    ] = None,
    correlated_noise: Annotated[
        bool,
        typer.Option(
            "--correlated-noise",
            help="Noise of steps depends on each other as the accountant knows (DP-FTRL)",
        ),
    ] = False,
    noise_schedule: Annotated[
        str,
        typer.Option(
            help="Function of the step, from 0 on: factor of sigma that was accounted for, "
            "train.py:schedule"
        ),
    ] = "",
    observed: Annotated[
        str,
        typer.Option(
            help="Where signs or lengths of noisy gradients are changed afterwards: beginning of "
            "the names under which the weights file has the noisy gradients, e.g. released."
        ),
    ] = "",
    form: Annotated[str, typer.Option(help="Files: pt, safetensors or npz")] = "pt",
    epsilon: Annotated[
        float, typer.Option(help="Epsilon that was printed, to be recomputed")
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="Delta of that claim")] = 1e-5,
    claimed_sigma: Annotated[float, typer.Option(help="Noise multiplier of that claim")] = 0.0,
    claimed_rate: Annotated[float, typer.Option(help="Sampling rate of that claim")] = 0.0,
    claimed_steps: Annotated[int, typer.Option(help="Number of steps of that claim")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page here")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Look for privacy bugs in training code.

    Exit code 0: private so far; 1: a bug; 2: could not be run; 3: not judged, since too little
    could be tested.

    The script is run some hundred times (quick: about 300) on synthetic data. It reads the
    data ({data}: a dict with x and y) and the first weights ({init}: a state dict) and writes
    the last ones ({out}: a state dict). A plain "python script.py ..." is run in forks of one
    interpreter that has imported what the script imports, a tenth of a second each.

    Example: noisewise debug train.py:train --model model.py:build --report check.html
    """
    from torch.nn import Module, functional

    from noisewise.debugging import Claim, CommandTraining, check, guess_example, load_object

    console = Console(highlight=False)
    if function and train:
        raise ValueError(f"{function!r} and --train {train!r} both say what trains: leave one out")
    train = train or function
    adapter = _adapter(adapter, command, train)
    if sum(map(bool, (command, train, adapter))) != 1:
        raise ValueError("give either --command or --train, or an --adapter")
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
        training = load_object(_named(train) or f"{adapter}:train", "--train or --adapter")
    if not model and adapter is None:
        raise ValueError("--model is missing: what builds the model, e.g. model.py:build")
    model = model or f"{adapter}:build"
    build = load_object(model, "--model")
    if isinstance(build, Module):
        raise ValueError(
            f"--model {model!r} is a model; name the function or class that builds a fresh one, "
            "because every run begins with its own"
        )
    loss_fn: Any = _part_of(adapter, "loss")
    if loss_fn is None:
        known = _LOSSES.get(loss)
        loss_fn = getattr(functional, known) if known else load_object(loss, "--loss")
    _takes_output_and_target(loss_fn)
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
        noise_schedule=load_object(noise_schedule, "--noise-schedule") if noise_schedule else None,
        correlated_noise=correlated_noise,
        observe=_observe(observed) if observed else None,
        progress=_Progress(_RUNS[chosen]),
    )
    if as_json:
        typer.echo(findings.to_json())
    else:
        findings.table(console)
    if report is not None:
        findings.report(report)
        if not as_json:
            console.print(f"report: {escape(str(report))}")
    raise typer.Exit(findings.exit_code)


#: About how often a training is run at each effort, to say how far a check is.
_RUNS = {"quick": 480, "default": 950, "thorough": 2500}


class _Progress:
    """A line on standard error every ten seconds: how many runs, how long, how many to come."""

    def __init__(self, expected: int) -> None:
        self.expected, self.began, self.said = expected, time.monotonic(), time.monotonic()

    def __call__(self, runs: int) -> None:
        now = time.monotonic()
        if now - self.said >= 10:
            self.said = now
            # Small models need more runs for as many numbers of noise.
            whole = f" of about {self.expected}" if runs < self.expected else ""
            typer.echo(f"{runs}{whole} runs, {now - self.began:.0f} s", err=True)


def _adapter(given: Path | None, command: str, train: str) -> Path | None:
    """Return the adapter file: the one that was given, or the one that lies here."""
    usual = Path("nw_adapter.py")
    if given is not None or command or train or not usual.exists():
        return given
    return usual


def _takes_output_and_target(loss: Any) -> None:
    """Refuse a loss of other arguments, such as a function of weights that has the same name."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        # Some callables of C have none.
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"the loss is called as loss(output, target), and yours takes {signature}. A function "
            "`loss` of an adapter is taken for it: give yours another name if it is something else"
        ) from None


def _named(function: str) -> str:
    """Return a function's name; a whole script is told how it is run."""
    if function and ":" not in function:
        raise ValueError(
            f"{function!r} names no function: write file.py:name, such as {function}:train. To run "
            f'a whole script, use --command "python {function} ...", with placeholders as in '
            "noisewise debug --help"
        )
    return function


def _part_of(adapter: Path | None, name: str) -> Any:
    """Return something of the adapter, if it has it."""
    from noisewise.debugging import load_object

    if adapter is None:
        return None
    try:
        return load_object(f"{adapter}:{name}", name)
    except ValueError:
        return None


def _observe(prefix: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    def pick(result: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): v for n, v in result.items() if n.startswith(prefix)}

    return pick


def _example(place: str, shape: str, classes: int, build: Any) -> tuple[Tensor, Tensor]:
    import torch

    from noisewise.debugging import load_object

    if place:
        given = load_object(place, "--example")
        batch = given() if callable(given) else given
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(f"--example {place!r} must be a pair of tensors (x, y), or return one")
        return batch[0], batch[1]
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
