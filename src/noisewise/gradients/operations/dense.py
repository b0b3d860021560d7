"""Linear layers and matrix products with a learnt matrix, any number of leading axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.batches import is_autocasting
from noisewise.gradients.contractions import LinearContraction, Target
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    derive,
    handles,
    layout_of_use,
)
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import unnoted

__all__ = ["linear", "tapped_linear"]

#: Entries of a row that fill cache lines.
_LINE = 16


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """X W', both filled up with zeros to whole cache lines.

    Kernels for matrix products compute rows that begin at different places of a cache line in
    different ways, and then a record's last bits depend on the place that it has in a batch.
    """
    outputs, inputs = weight.shape
    across, down = -inputs % _LINE, -outputs % _LINE
    if not across and not down:
        return functional.linear(x, weight)
    wide = functional.linear(
        functional.pad(x, (0, across)), functional.pad(weight, (0, across, 0, down))
    )
    return wide[..., :outputs].contiguous() if down else wide


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W' + b in memory of its own: what comes after may write into it."""
    if -x.shape[-1] % _LINE or -len(weight) % _LINE:
        result = _product(x, weight)
        return result if bias is None else result.add_(bias)
    if x.dim() == 2 or is_autocasting(x) or not x.is_contiguous():
        result = functional.linear(x, weight, bias)
        return result.clone() if result._is_view() else result
    result = x.new_empty(*x.shape[:-1], weight.shape[0])
    rows, out = x.reshape(-1, x.shape[-1]), result.view(-1, weight.shape[0])
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)
    return result


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
        return _plain(x, weight, bias)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (cotangent,) = cotangents
        x, weight = ctx.saved_tensors
        each = x.shape[0] // ctx.tape.records
        ctx.tape.arrive(LinearContraction.of(x, cotangent, each, *ctx.targets))
        into = None
        if ctx.needs_input_grad[0]:
            into = _product(cotangent.to(weight.dtype), weight.t()).to(x.dtype)
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
    layout = layout_of_use(tape, "linear", x, 1, weight, bias)
    if x.dim() < 2:
        raise UnsupportedUseError
    result = tapped_linear(tape, layout.first(x), weight, bias, targets)
    return layout.back(result, x)


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
    layout = layout_of_use(tape, "matmul", x, 1, weight)
    turned = derive(tape, Tensor.t, (weight,), {})
    result = tapped_linear(tape, layout.first(x), turned, None, (tape.target(turned), None))
    return layout.back(result, x)


@handles(torch.addmm, Tensor.addmm)
def addmm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """B + x W, as some transformers write it."""
    if kwargs or len(args) != 3:
        raise UnsupportedUseError
    bias, x, weight = args
    if tape.target(x) is not None or weight.dim() != 2:
        raise UnsupportedUseError
    targets = tape.target(weight), tape.target(bias)
    if bias.dim() > 1 or (tape.target(bias) is None and not tape.is_constant(bias)):
        raise UnsupportedUseError
    layout = layout_of_use(tape, "addmm", x, 1, weight, bias)
    turned = derive(tape, Tensor.t, (weight,), {}) if targets[0] is not None else weight.t()
    result = tapped_linear(tape, layout.first(x), turned, bias, (tape.target(turned), targets[1]))
    return layout.back(result, x)
