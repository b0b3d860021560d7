"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import (
    ConvolutionContraction,
    Target,
    TransposedContraction,
)
from noisewise.gradients.contractions.convolution import Convolution
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    handles,
    layout_of_use,
)
from noisewise.gradients.slopes import is_differentiated, standing_for
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted

__all__ = ["convolve", "convolve_transposed"]


class _Convolve(OwnFunction):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: Convolution,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings, ctx.tape, ctx.targets = settings, tape, targets
        extra = list(settings.output_padding or (0,) * len(settings.kernel))
        return torch.convolution(
            x,
            weight,
            bias,
            list(settings.stride),
            list(settings.padding),
            list(settings.dilation),
            settings.transposed,
            extra,
            settings.groups,
        )

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        cotangent = cotangents[0].contiguous()
        x, weight = ctx.saved_tensors
        kind = TransposedContraction if ctx.settings.transposed else ConvolutionContraction
        each = x.shape[0] // ctx.tape.records
        ctx.tape.arrive(kind(x, cotangent, ctx.settings, each, *ctx.targets))
        into = None
        if ctx.needs_input_grad[0]:
            if is_differentiated(ctx.tape):
                own = (ctx.targets[0], None)
                kernel = standing_for(ctx.tape, weight.to(cotangent.dtype), own)
                settings = ctx.settings.turned(cotangent.shape[2:], x.shape[2:])
                ctx.tape.use(*own)
                into = _Convolve.apply(cotangent, kernel, None, settings, ctx.tape, own)  # type: ignore[no-untyped-call]
                return into.to(x.dtype), None, None, None, None, None
            # Under autocast in the type of the forward pass, as torch does it.
            same = x.to(cotangent.dtype), weight.to(cotangent.dtype)
            into, _ = ctx.settings.backward(cotangent, *same, (True, False))
            into = None if into is None else into.to(x.dtype)
        return into, None, None, None, None, None


def _tuple(value: Any, dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    entries = tuple(int(entry) for entry in value)
    return entries * dimensions if len(entries) == 1 else entries


def _apply(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Convolution
) -> Tensor:
    targets = (tape.target(weight), tape.target(bias))
    if x.dim() != 2 + len(settings.kernel):
        raise UnsupportedUseError
    layout = layout_of_use(tape, "convolution", x, -1, weight, bias)
    tape.use(*targets)
    first = layout.first(x)
    result: Tensor = _Convolve.apply(first, weight, bias, settings, tape, targets)  # type: ignore[no-untyped-call]
    return layout.back(result, x)


@handles(torch.conv1d, torch.conv2d, torch.conv3d)
def convolve(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cross-correlation, with numbers or words for the padding."""
    return _convolve(tape, *args, **kwargs)


def _convolve(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    dimensions = weight.dim() - 2
    kernel = tuple(weight.shape[2:])
    dilations = _tuple(dilation, dimensions)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        if any(size % 2 for size in total):
            # An odd total goes one further at the end, which only explicit padding can do.
            pads = [edge for size in reversed(total) for edge in (size // 2, size - size // 2)]
            input, padding = functional.pad(input, pads), 0
        else:
            padding = tuple(size // 2 for size in total)
    settings = Convolution(
        kernel, _tuple(stride, dimensions), _tuple(padding, dimensions), dilations, groups
    )
    return _apply(tape, input, weight, bias, settings)


@handles(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def convolve_transposed(
    tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The adjoint of a convolution."""
    return _convolve_transposed(tape, *args, **kwargs)


def _convolve_transposed(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    dimensions = weight.dim() - 2
    settings = Convolution(
        tuple(weight.shape[2:]),
        _tuple(stride, dimensions),
        _tuple(padding, dimensions),
        _tuple(dilation, dimensions),
        groups,
        True,
        _tuple(output_padding, dimensions),
    )
    return _apply(tape, input, weight, bias, settings)
