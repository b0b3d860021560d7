"""What records a model takes, read off the model itself, for the command line.

A function ``example`` beside the one that builds the model says it best. Otherwise the first
layer with weights shows the form of an input, and the output with the loss that of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from noisewise.debugging.command import load_object

__all__ = ["guess_example"]

_SIDES = (28, 32, 64, 224, 16, 8)
_CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_HOW = "say it with --example model.py:example, or with --input-shape 3,32,32 and --classes 10"


def guess_example(
    place: str, build: Callable[[], nn.Module], loss: str
) -> tuple[tuple[Tensor, Tensor], str]:
    """Return a batch of two records for the model at `place`, and where it was read.

    Parameters
    ----------
    place
        ``model.py:build``; a function ``example`` in the same file is used if there is one.
    build
        What `place` names.
    loss
        ``cross-entropy``, ``mse``, ``bce`` or ``l1``.
    """
    source = place.rpartition(":")[0]
    try:
        example = load_object(f"{source}:example", "example")
    except ValueError:
        return _from_layers(build(), loss)
    x, y = example()
    return (x, y), f"have the form of {source}:example()"


def _from_layers(model: nn.Module, loss: str) -> tuple[tuple[Tensor, Tensor], str]:
    model.eval()
    for x in _inputs(model):
        try:
            with torch.no_grad():
                output = model(x)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        target = _target(output, loss)
        shape = ", ".join(str(side) for side in x.shape[1:])
        kind = "numbers" if x.is_floating_point() else "tokens"
        form = f"one of {output.shape[-1]} classes" if loss == "cross-entropy" else "an output"
        return (x, target), (
            f"were read off the model: inputs of shape ({shape}), {kind}; targets are {form}. "
            f"If that is wrong, {_HOW}"
        )
    raise ValueError(f"the model does not show what records it takes: {_HOW}")


def _inputs(model: nn.Module) -> Iterator[Tensor]:
    """Yield batches of two that the first layer with weights might take."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            yield torch.randn(2, layer.in_features)
            yield torch.randn(2, 8, layer.in_features)
            return
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            yield torch.randint(layer.num_embeddings, (2, 8))
            return
        for kind, dimensions in _CONVOLUTIONS.items():
            if isinstance(layer, kind):
                for side in _SIDES:
                    yield torch.randn(2, layer.in_channels, *[side] * dimensions)
                return


def _target(output: Tensor, loss: str) -> Tensor:
    if loss == "cross-entropy":
        return torch.arange(2).reshape(2, *[1] * (output.ndim - 2)).expand(output.shape[:-1]) % 2
    if loss == "bce":
        return (torch.arange(output.numel()) % 2).reshape(output.shape).to(output)
    if loss in ("mse", "l1"):
        return torch.randn_like(output)
    raise ValueError(f"a loss of your own needs records of your own: {_HOW}")
