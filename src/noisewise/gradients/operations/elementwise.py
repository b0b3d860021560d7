"""Bare parameters: added, multiplied, broadcast; class tokens, scales, positions.

A parameter that meets a batch entry by entry is repeated for every record first. What comes
back to the repeated copy is each record's own gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import GivenContraction, Target
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    derive,
    handles,
    place,
    tensors_in,
)
from noisewise.gradients.tape import Tape

__all__ = ["broadcast", "repeated"]


class _Repeat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, tape: Tape, target: Target) -> Tensor:
        ctx.tape, ctx.target = tape, target
        return parameter.unsqueeze(0).repeat(tape.rows, *[1] * parameter.dim())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        tape = ctx.tape
        (cotangent,) = cotangents
        if tape.views > 1:
            cotangent = cotangent.reshape(tape.records, tape.views, *cotangent.shape[1:]).sum(1)
        tape.arrive(GivenContraction({ctx.target: cotangent}))
        return None, None, None


def repeated(tape: Tape, parameter: Tensor, target: Target) -> Tensor:
    """One copy per row of the batch: (rows, *shape)."""
    tape.use(target)
    tape.unmeasured.update(tape.bases(target))
    result: Tensor = _Repeat.apply(parameter, tape, target)  # type: ignore[no-untyped-call]
    return result


_FUNCTIONS = [
    torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__,
    torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__, torch.subtract, Tensor.subtract,
    torch.rsub, Tensor.sub_, Tensor.__isub__,
    torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply,
    Tensor.mul_, Tensor.__imul__,
    torch.div, Tensor.div, Tensor.__truediv__, Tensor.__rtruediv__, torch.divide,
    torch.true_divide, Tensor.div_, Tensor.__itruediv__,
    torch.pow, Tensor.pow, Tensor.__pow__, Tensor.__rpow__,
    torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum,
    torch.where, Tensor.where, torch.lerp, Tensor.lerp,
    torch.addcmul, Tensor.addcmul, torch.addcdiv, Tensor.addcdiv,
]  # fmt: skip


@handles(*_FUNCTIONS)
def broadcast(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation entry by entry, between parameters and a batch."""
    found = tensors_in((args, kwargs))
    others = [t for t in found if not tape.is_constant(t)]
    used = [tape.target(t) for t in found]
    dimensions = max((t.dim() for t in others), default=0)
    widest = [t for t in others if t.dim() == dimensions and dimensions > 0]
    if not widest:
        return derive(tape, function, args, kwargs)
    what = place(tape, getattr(function, "__name__", "operation"), *used)
    largest = max(widest, key=lambda t: t.shape[0])
    if not tape.calls.batched(what, largest.shape[0], tape.rows, largest):
        return derive(tape, function, args, kwargs)

    def spread(value: Any) -> Any:
        target = tape.target(value)
        if target is None:
            return value
        if value.dim() > dimensions or (value.dim() == dimensions and value.shape[0] != 1):
            raise UnsupportedUseError
        copies = repeated(tape, value, target)
        inner = list(value.shape[1:] if value.dim() == dimensions else value.shape)
        return copies.reshape(tape.rows, *[1] * (dimensions - 1 - len(inner)), *inner)

    return function(*map(spread, args), **{name: spread(v) for name, v in kwargs.items()})


@handles(Tensor.expand, Tensor.repeat, Tensor.expand_as, torch.broadcast_to)
def expand(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A token that every record gets: (1, ...) or (...) spread over the batch."""
    parameter, *sizes = args
    target = tape.target(parameter)
    if target is None or kwargs:
        raise UnsupportedUseError
    if function is Tensor.expand_as:
        sizes = list(sizes[0].shape)
    elif len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = list(sizes[0])
    what = place(tape, function.__name__, target)
    copied = function is Tensor.repeat
    # expand gives the new size, repeat the number of copies of an axis of size one.
    if len(sizes) == parameter.dim() and parameter.shape[0] != 1:
        return derive(tape, function, args, kwargs)
    if not tape.calls.batched(what, int(sizes[0]), tape.rows):
        return derive(tape, function, args, kwargs)
    copies = repeated(tape, parameter, target)
    if len(sizes) == parameter.dim():
        copies = copies.squeeze(1)
    else:
        inner = list(parameter.shape)
        copies = copies.reshape(tape.rows, *[1] * (len(sizes) - 1 - len(inner)), *inner)
    return copies.repeat(1, *sizes[1:]) if copied else copies.expand(-1, *sizes[1:])


@handles(functional.prelu, torch.prelu)
def prelu(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """max(0, x) + a min(0, x), one slope or one per channel."""
    x, slope = args
    target = tape.target(slope)
    if target is None or kwargs or tape.target(x) is not None:
        raise UnsupportedUseError
    if not tape.calls.batched(place(tape, "prelu", target), x.shape[0], tape.rows):
        raise UnsupportedUseError
    copies = repeated(tape, slope, target)
    copies = copies.reshape(tape.rows, -1, *[1] * max(x.dim() - 2, 0))
    if x.dim() == 1:
        copies = copies.reshape(tape.rows)
    return torch.where(x > 0, x, copies * x)
