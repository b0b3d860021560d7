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
    layout_of_use,
    place,
    tensors_in,
)
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted
from noisewise.separation import broadcast_shapes

__all__ = ["broadcast", "repeated"]


class _Repeat(OwnFunction):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, tape: Tape, target: Target, each: int) -> Tensor:
        ctx.tape, ctx.target = tape, target
        return parameter.unsqueeze(0).repeat(tape.records * each, *[1] * parameter.dim())

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        tape = ctx.tape
        (cotangent,) = cotangents
        if cotangent.shape[0] > tape.records:
            cotangent = cotangent.reshape(tape.records, -1, *cotangent.shape[1:]).sum(1)
        tape.arrive(GivenContraction({ctx.target: cotangent}))
        return None, None, None, None


def repeated(tape: Tape, parameter: Tensor, target: Target, each: int | None = None) -> Tensor:
    """Copies (records * each, *shape); by default one for every row of the batch."""
    tape.use(target)
    tape.unmeasured.update(tape.bases(target))
    each = tape.views if each is None else each
    result: Tensor = _Repeat.apply(parameter, tape, target, each)  # type: ignore[no-untyped-call]
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
    torch.clamp, Tensor.clamp, torch.clip, Tensor.clip, torch.clamp_min, Tensor.clamp_min,
    torch.clamp_max, Tensor.clamp_max, torch.fmax, Tensor.fmax, torch.fmin, Tensor.fmin,
    torch.float_power, Tensor.float_power, torch.atan2, Tensor.atan2, torch.arctan2,
    Tensor.arctan2, torch.hypot, Tensor.hypot, torch.xlogy, Tensor.xlogy, torch.special.xlogy,
    torch.logaddexp, Tensor.logaddexp, torch.logaddexp2, Tensor.logaddexp2,
    torch.fmod, Tensor.fmod, torch.remainder, Tensor.remainder, Tensor.__mod__,
    torch.copysign, Tensor.copysign,
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
    layout = tape.layout(what, others, 0, tape.bases(*used))
    if layout.constant:
        return derive(tape, function, args, kwargs)
    axis = layout.axis
    if axis < 0:
        raise UnsupportedUseError
    positions = broadcast_shapes(*[t.shape for t in others])[axis]

    def spread(value: Any) -> Any:
        target = tape.target(value)
        if target is None:
            return value
        inner = [1] * (dimensions - value.dim()) + list(value.shape)
        if value.dim() > dimensions or inner[axis] != 1:
            raise UnsupportedUseError
        if layout.owners is None:
            copies = repeated(tape, value, target)
        elif layout.order is None:
            copies = repeated(tape, value, target, positions // tape.records)
        else:
            copies = repeated(tape, value, target, 1).index_select(0, layout.owners)
        del inner[axis]
        return copies.reshape(-1, *inner).movedim(0, axis)

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
    copied = function is Tensor.repeat
    what = place(tape, function.__name__, target)
    inner = [1] * (len(sizes) - parameter.dim()) + list(parameter.shape)
    if not copied:
        sizes = [old if new == -1 else new for new, old in zip(sizes, inner, strict=True)]
    # expand gives the new size, repeat the number of copies of an axis.
    axis = next((i for i, n in enumerate(sizes) if n == tape.rows and inner[i] == 1), 0)
    if inner[axis] != 1:
        if not copied or not tape.spreads(what, int(sizes[0]), target):
            return derive(tape, function, args, kwargs)
        # The whole parameter for record after record, one below the other.
        return repeated(tape, parameter, target).flatten(0, 1).repeat(1, *sizes[1:])
    if not tape.spreads(what, int(sizes[axis]), target):
        return derive(tape, function, args, kwargs)
    del inner[axis]
    copies = repeated(tape, parameter, target).reshape(tape.rows, *inner).movedim(0, axis)
    if copied:
        return copies.repeat(*sizes[:axis], 1, *sizes[axis + 1 :])
    return copies.expand(sizes)


@handles(functional.prelu, torch.prelu)
def prelu(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """max(0, x) + a min(0, x), one slope or one per channel."""
    x, slope = args
    target = tape.target(slope)
    if target is None or kwargs or tape.target(x) is not None:
        raise UnsupportedUseError
    layout = layout_of_use(tape, "prelu", x, -1, slope)
    first = layout.first(x)
    copies = repeated(tape, slope, target, first.shape[0] // tape.records)
    copies = copies.reshape(first.shape[0], -1, *[1] * max(x.dim() - 2, 0))
    if x.dim() == 1:
        copies = copies.reshape(first.shape[0])
    return layout.back(torch.where(first > 0, first, copies * first), x)
