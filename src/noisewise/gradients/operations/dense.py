"""Linear layers and matrix products with a learnt matrix, any number of leading axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import LinearContraction, Target
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    derive,
    handles,
    place,
)
from noisewise.gradients.tape import Tape

__all__ = ["linear", "tapped_linear"]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.targets = tape, targets
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (cotangent,) = cotangents
        x, weight = ctx.saved_tensors
        ctx.tape.arrive(LinearContraction.of(x, cotangent, ctx.tape.views, *ctx.targets))
        into = None
        if ctx.needs_input_grad[0]:
            into = cotangent.to(weight.dtype).matmul(weight).to(x.dtype)
        return into, None, None, None, None


def tapped_linear(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: tuple[Target | None, Target | None],
) -> Tensor:
    """Apply a linear map whose gradients go to the tape."""
    tape.use(*targets)
    result: Tensor = _Linear.apply(x, weight, bias, tape, targets)  # type: ignore[no-untyped-call]
    return result


@handles(functional.linear)
def linear(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """X W' + b."""
    x, weight, bias = _arguments(*args, **kwargs)
    targets = (tape.target(weight), tape.target(bias))
    if tape.is_constant(x) or not tape.calls.batched(
        place(tape, "linear", *targets), x.shape[0] if x.dim() else 0, tape.rows, x
    ):
        return derive(tape, function, args, kwargs)
    if x.dim() < 2:
        raise UnsupportedUseError
    return tapped_linear(tape, x, weight, bias, targets)


def _arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """X W, a linear layer whose matrix is stored the other way round."""
    if kwargs or len(args) != 2:
        raise UnsupportedUseError
    x, weight = args
    if tape.is_constant(x) and tape.is_constant(weight):
        return derive(tape, function, args, kwargs)
    target = tape.target(weight)
    if target is None or tape.target(x) is not None or weight.dim() != 2 or x.dim() < 2:
        raise UnsupportedUseError
    if not tape.calls.batched(place(tape, "matmul", target), x.shape[0], tape.rows, x):
        return derive(tape, function, args, kwargs)
    turned = derive(tape, Tensor.t, (weight,), {})
    return tapped_linear(tape, x, turned, None, (tape.target(turned), None))


@handles(torch.addmm, Tensor.addmm)
def addmm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """B + x W, as some transformers write it."""
    if kwargs or len(args) != 3:
        raise UnsupportedUseError
    bias, x, weight = args
    if tape.target(x) is not None or weight.dim() != 2:
        raise UnsupportedUseError
    targets = tape.target(weight), tape.target(bias)
    if not tape.calls.batched(place(tape, "addmm", *targets), x.shape[0], tape.rows):
        raise UnsupportedUseError
    turned = derive(tape, Tensor.t, (weight,), {}) if targets[0] is not None else weight.t()
    return tapped_linear(tape, x, turned, bias, (tape.target(turned), targets[1]))
