"""``noisewise certify model.py:build``: print what can be proven about a model."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.errors import NoisewiseError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["certify", "load_model", "parse_shape"]

#: Names of losses, and their classes in noisewise.nn.losses, which is imported when needed.
_LOSSES = {
    "cross-entropy": "CrossEntropy",
    "hinge": "MulticlassHinge",
    "cosine": "CosineSimilarity",
    "absolute": "MeanAbsolute",
    "huber": "Huber",
    "binary-cross-entropy": "BinaryCrossEntropy",
}


def certify(
    model: Annotated[
        str, typer.Argument(help="A Python file and a function (or module) in it: model.py:build.")
    ],
    input_shape: Annotated[
        str, typer.Option("--input", help="Shape of one record, for example 3,32,32.")
    ],
    norm: Annotated[
        float | None,
        typer.Option(help="Bound on a record's norm; default 1, or the model's own BoundedInput."),
    ] = None,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(_LOSSES)}.")] = "cross-entropy",
    temperature: Annotated[float, typer.Option(help="Of cross-entropy: CE(t z)/t.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the bounds into this picture.")
    ] = None,
) -> None:
    """Prove bounds on every layer's output and gradient, without looking at any data.

    Example: noisewise certify model.py:build --input 3,32,32
    """
    if loss not in _LOSSES:
        raise typer.BadParameter(f"unknown loss {loss!r}; choose from {', '.join(_LOSSES)}")
    from noisewise.bounds import certify as certify_model
    from noisewise.nn import losses
    from noisewise.working import working

    shape = parse_shape(input_shape)
    built = load_model(model)
    kind = getattr(losses, _LOSSES[loss])
    chosen = kind(temperature) if loss == "cross-entropy" else kind()
    try:
        with working("certifying the model"):
            found = certify_model(built, shape, norm, chosen)
    except (NoisewiseError, ValueError) as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        from rich.console import Console

        Console().print(found)
    if plot is not None:
        figure = found.plot().figure
        figure.savefig(plot, dpi=150)  # type: ignore[union-attr]


def parse_shape(text: str) -> tuple[int, ...]:
    """Read "3,32,32" (or "3x32x32") as a shape."""
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"--input must be whole numbers like 3,32,32, got {text!r}"
        ) from error
    if not shape or min(shape) < 1:
        raise typer.BadParameter(f"--input must be sizes of at least 1, got {text!r}")
    return shape


def load_model(reference: str) -> nn.Module:
    """Build the model that ``file.py:name`` names: a module, or a function without arguments."""
    from torch import nn

    built = load_object(reference)
    if not isinstance(built, nn.Module):
        raise typer.BadParameter(
            f"{reference} gave {type(built).__name__}, but a torch module is needed"
        )
    return built


def load_object(reference: str) -> Any:
    """Return what ``file.py:name`` names, or what it returns if it is a function."""
    from torch import nn

    file, colon, name = reference.rpartition(":")
    if not colon or not name:
        raise typer.BadParameter(f"write the model as file.py:name, got {reference!r}")
    path = Path(file)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {file!r}")
    specification = importlib.util.spec_from_file_location(f"_certified_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise typer.BadParameter(f"{file!r} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        specification.loader.exec_module(module)
        found: Any = getattr(module, name, None)
        if found is None:
            names = [
                key for key, value in vars(module).items() if callable(value) and key[0] != "_"
            ]
            raise typer.BadParameter(
                f"{file} has no {name!r}; it has {', '.join(sorted(names)) or 'nothing callable'}"
            )
        return found() if callable(found) and not isinstance(found, nn.Module) else found
    except typer.BadParameter:
        raise
    except Exception as error:
        raise typer.BadParameter(
            f"{reference} failed with {type(error).__name__}: {error}. The function must need no "
            "arguments."
        ) from error
    finally:
        sys.path.pop(0)
