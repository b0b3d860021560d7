"""Linear layers and matrix products with a learnt matrix, any number of leading axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.batches import is_autocasting
from noisewise.gradients.contractions import LinearContraction, Target, TurnedContraction
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    derive,
    handles,
    layout_of_use,
)
from noisewise.gradients.slopes import is_differentiated, standing_for
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted

__all__ = ["linear", "seen_as", "tapped_linear"]

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


class _Linear(OwnFunction):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
        kind: type[LinearContraction],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.targets, ctx.kind = tape, targets, kind
        return _plain(x, weight, bias)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (cotangent,) = cotangents
        x, weight = ctx.saved_tensors
        each = x.shape[0] // ctx.tape.records
        ctx.tape.arrive(ctx.kind.of(x, cotangent, each, *ctx.targets))
        into = None
        if ctx.needs_input_grad[0]:
            if is_differentiated(ctx.tape):
                turned = LinearContraction
                if ctx.kind is LinearContraction:
                    turned = TurnedContraction
                own = (ctx.targets[0], None)
                matrix = standing_for(ctx.tape, weight.t().to(cotangent.dtype), own)
                into = tapped_linear(ctx.tape, cotangent, matrix, None, own, turned).to(x.dtype)
                return into, None, None, None, None, None
            # Under autocast in the type of the forward pass, as torch does it.
            into = _product(cotangent, weight.t().to(cotangent.dtype)).to(x.dtype)
        return into, None, None, None, None, None


def tapped_linear(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: tuple[Target | None, Target | None],
    kind: type[LinearContraction] = LinearContraction,
) -> Tensor:
    """Apply a linear map whose gradients go to the tape."""
    tape.use(*targets)
    result: Tensor = _Linear.apply(x, weight, bias, tape, targets, kind)  # type: ignore[no-untyped-call]
    return result


def seen_as(tape: Tape, weight: Tensor, view: Tensor) -> Tensor:
    """A view of a weight's values; where the weight learns, autograd is made to visit the layer."""
    if tape.target(weight) is None:
        return view
    leaf = view.detach().requires_grad_()
    tape.anchors.append(leaf)
    return leaf


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


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, Tensor.mm)
def matmul(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """X W, a linear layer whose matrix is stored the other way round; or W X."""
    if kwargs or len(args) != 2:
        raise UnsupportedUseError
    x, weight = reversed(args) if function is Tensor.__rmatmul__ else args
    if tape.is_constant(x) and tape.is_constant(weight):
        return derive(tape, function, args, kwargs)
    if tape.target(x) is not None and tape.target(weight) is None:
        return _from_the_left(tape, x, weight)
    if tape.target(weight) is None or weight.dim() > 2 or x.dim() < 2:
        raise UnsupportedUseError
    if tape.target(x) is not None:
        raise UnsupportedUseError
    if weight.dim() == 1:
        return _turned(tape, "matmul", x, weight.unsqueeze(1), None, weight).squeeze(-1)
    return _turned(tape, "matmul", x, weight, None, weight)


def _from_the_left(tape: Tape, weight: Tensor, x: Tensor) -> Tensor:
    """W X, the features of X along its last axis but one."""
    if weight.dim() != 2 or x.dim() < 3:
        raise UnsupportedUseError
    features = x.transpose(-1, -2)
    layout = layout_of_use(tape, "matmul", features, 1, weight)
    targets = (tape.target(weight), None)
    result = tapped_linear(tape, layout.first(features), weight, None, targets)
    return layout.back(result, features).transpose(-1, -2)


def _turned(
    tape: Tape, what: str, x: Tensor, matrix: Tensor, bias: Tensor | None, weight: Tensor
) -> Tensor:
    """X W + b, with a matrix that is a view of the weight."""
    layout = layout_of_use(tape, what, x, 1, weight, bias)
    targets = tape.target(weight), tape.target(bias)
    view = seen_as(tape, weight, matrix.t())
    result = tapped_linear(tape, layout.first(x), view, bias, targets, TurnedContraction)
    return layout.back(result, x)


@handles(torch.addmm, Tensor.addmm)
def addmm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """B + x W, as some transformers write it."""
    if kwargs or len(args) != 3:
        raise UnsupportedUseError
    bias, x, weight = args
    if tape.target(x) is not None or weight.dim() != 2 or bias.dim() > 1:
        raise UnsupportedUseError
    if tape.target(bias) is None and not tape.is_constant(bias):
        raise UnsupportedUseError
    return _turned(tape, "addmm", x, weight, bias, weight)


@handles(functional.bilinear, torch.bilinear)
def bilinear(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """X W Y' + b: a linear layer on the products of two inputs' entries."""
    return _bilinear(tape, *args, **kwargs)


def _bilinear(
    tape: Tape, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    if tape.target(input1) is not None or tape.target(input2) is not None or input1.dim() < 2:
        raise UnsupportedUseError
    products = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    layout = layout_of_use(tape, "bilinear", products, 1, weight, bias)
    targets = tape.target(weight), tape.target(bias)
    matrix = seen_as(tape, weight, weight.flatten(1))
    return layout.back(tapped_linear(tape, layout.first(products), matrix, bias, targets), products)
