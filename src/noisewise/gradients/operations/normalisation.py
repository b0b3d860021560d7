"""Affine parameters of layer, group, instance and RMS normalisation.

The normalised input is computed by torch; scale and shift then meet each channel, and a
record's gradient is a sum over its positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import GivenContraction, Target
from noisewise.gradients.contractions.base import working
from noisewise.gradients.operations.registry import UnsupportedUseError, handles, layout_of_use
from noisewise.gradients.slopes import is_differentiated, standing_for
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted
from noisewise.separation import RefusedError

__all__ = ["affine"]


def _arrive(
    tape: Tape,
    normalised: Tensor,
    cotangent: Tensor,
    targets: tuple[Target | None, Target | None],
    channels_first: bool,
) -> None:
    """Sum over positions: channels are axis 1, or all last axes of the parameter."""
    weight, bias = targets
    shape = next(t.shape for t in targets if t is not None)
    records = tape.records

    def summed(values: Tensor) -> Tensor:
        if channels_first:
            flat = working(values).reshape(*values.shape[:2], -1).sum(2)
            return flat.reshape(records, flat.shape[0] // max(records, 1), -1).sum(1)
        positions = values.numel() // max(records * torch.Size(shape).numel(), 1)
        return working(values).reshape(records, positions, *shape).sum(1)

    def jacobian() -> Tensor:
        """Largest root of squares that one scale meets, and the positions of a shift."""
        wide = working(normalised)
        result = wide.new_zeros(records)
        if weight is not None:
            result = result + summed(wide.square()).flatten(1).amax(1)
        if bias is not None:
            result = result + wide.numel() / max(records * torch.Size(shape).numel(), 1)
        return result

    gradients: dict[Target, Tensor] = {}
    if weight is not None:
        gradients[weight] = summed(working(cotangent) * working(normalised))
    if bias is not None:
        gradients[bias] = summed(cotangent)
    tape.arrive(GivenContraction(gradients, jacobian))


class _LayerNorm(OwnFunction):
    """Saves what torch saves; the normalised input is made anew in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: tuple[int, ...],
        eps: float,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        output, mean, inverse = torch.native_layer_norm(x, list(shape), weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.shape, ctx.eps, ctx.tape, ctx.targets = shape, eps, tape, targets
        return output

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        cotangent = cotangents[0].contiguous()
        x, weight, bias, mean, inverse = ctx.saved_tensors
        normalised = (working(x) - mean) * inverse
        _arrive(ctx.tape, normalised, cotangent, ctx.targets, False)
        into = None
        if ctx.needs_input_grad[0]:
            if is_differentiated(ctx.tape):
                normalised = functional.layer_norm(x, ctx.shape, None, None, ctx.eps)
                scaled = _scaled_again(ctx, cotangent, weight, False)
                (into,) = torch.autograd.grad(normalised, x, scaled, create_graph=True)
                return into, None, None, None, None, None, None
            into, _, _ = torch.ops.aten.native_layer_norm_backward(
                cotangent, x, list(ctx.shape), mean, inverse, weight, bias, [True, False, False]
            )
        return into, None, None, None, None, None, None


class _Affine(OwnFunction):
    """Scale and shift of an input that is normalised already."""

    @staticmethod
    def forward(
        ctx: Any,
        normalised: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        channels_first: bool,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        shape = (-1, *[1] * (normalised.dim() - 2)) if channels_first else None
        wide = [None if p is None else (p.view(shape) if shape else p) for p in (weight, bias)]
        ctx.save_for_backward(normalised, wide[0])
        ctx.tape, ctx.targets, ctx.channels_first = tape, targets, channels_first
        output = normalised if wide[0] is None else normalised * wide[0]
        return output.clone() if wide[1] is None else output + wide[1]

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (cotangent,) = cotangents
        normalised, weight = ctx.saved_tensors
        _arrive(ctx.tape, normalised, cotangent, ctx.targets, ctx.channels_first)
        if is_differentiated(ctx.tape):
            into = _scaled_again(ctx, cotangent, weight, ctx.channels_first)
        else:
            into = cotangent if weight is None else cotangent * weight
        return into, None, None, None, None, None


def _scaled_again(
    ctx: Any, cotangent: Tensor, weight: Tensor | None, channels_first: bool
) -> Tensor:
    """A cotangent times the scale that its values met, on the tape."""
    if weight is None:
        return cotangent
    own = (ctx.targets[0], None)
    ctx.tape.use(*own)
    leaf = standing_for(ctx.tape, weight, own)
    result: Tensor = _Affine.apply(cotangent, leaf, None, channels_first, ctx.tape, own)  # type: ignore[no-untyped-call]
    return result


def affine(
    tape: Tape,
    normalised: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    channels_first: bool,
) -> Tensor:
    """Scale and shift on the tape."""
    targets = (tape.target(weight), tape.target(bias))
    tape.use(*targets)
    result: Tensor = _Affine.apply(normalised, weight, bias, channels_first, tape, targets)  # type: ignore[no-untyped-call]
    return result


@handles(functional.layer_norm, torch.layer_norm)
def layer_norm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over the last axes."""
    return _layer_norm(tape, *args, **kwargs)


def _layer_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    features = len(tuple(normalized_shape))
    layout = layout_of_use(tape, "layer_norm", input, features, weight, bias)
    first = layout.first(input, features)
    if weight is not None and weight.dtype != input.dtype:
        normalised = functional.layer_norm(first, tuple(normalized_shape), None, None, eps)
        return layout.back(affine(tape, normalised, weight, bias, False), input, features)
    targets = (tape.target(weight), tape.target(bias))
    tape.use(*targets)
    result: Tensor = _LayerNorm.apply(  # type: ignore[no-untyped-call]
        first, weight, bias, tuple(normalized_shape), eps, tape, targets
    )
    return layout.back(result, input, features)


@handles(functional.rms_norm, torch.rms_norm)
def rms_norm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over the last axes, without centring."""
    return _rms_norm(tape, *args, **kwargs)


def _rms_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    features = len(tuple(normalized_shape))
    layout = layout_of_use(tape, "rms_norm", input, features, weight)
    first = layout.first(input, features)
    normalised = functional.rms_norm(first, tuple(normalized_shape), None, eps)
    return layout.back(affine(tape, normalised, weight, None, False), input, features)


@handles(functional.group_norm, torch.group_norm)
def group_norm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over groups of channels."""
    return _group_norm(tape, *args, **kwargs)


def _group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    layout = layout_of_use(tape, "group_norm", input, -1, weight, bias)
    normalised = functional.group_norm(layout.first(input), num_groups, None, None, eps)
    return layout.back(affine(tape, normalised, weight, bias, True), input)


@handles(functional.instance_norm, torch.instance_norm)
def instance_norm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each channel of a record by itself."""
    return _instance_norm(tape, *args, **kwargs)


def _instance_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    if running_mean is not None or not use_input_stats:
        raise RefusedError(
            f'instance_norm at "{tape.stack[-1] if tape.stack else ""}" keeps running statistics, '
            "which are averages over other records",
            "Set track_running_stats=False, or call noisewise.nn.fix(model).",
        )
    layout = layout_of_use(tape, "instance_norm", input, -1, weight, bias)
    normalised = functional.instance_norm(layout.first(input), eps=eps)
    return layout.back(affine(tape, normalised, weight, bias, True), input)


@handles(functional.batch_norm, torch.batch_norm)
def batch_norm(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In evaluation mode an affine map; in training mode it mixes the records of a batch."""
    if function is torch.batch_norm:
        raise UnsupportedUseError
    return _batch_norm(tape, *args, **kwargs)


def _batch_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        raise RefusedError(
            f'batch_norm at "{tape.stack[-1] if tape.stack else ""}" mixes the records of a batch, '
            "so one record's gradient would depend on the others and no sensitivity exists",
            "noisewise.nn.fix(model) replaces batch normalisation by group normalisation; with "
            "frozen statistics (evaluation mode) it is an affine map and is accepted.",
        )
    layout = layout_of_use(tape, "batch_norm", input, -1, weight, bias)
    normalised = functional.batch_norm(layout.first(input), running_mean, running_var, eps=eps)
    return layout.back(affine(tape, normalised, weight, bias, True), input)
