"""The plain form of every layer of noisewise.nn.

Each function states one layer in traceable form: no Python decision depends on a tensor's
shape or type, and the operations are those of the layer, in the same order.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.bounds.norms import underflow
from noisewise.nn import (
    activations,
    conv,
    gradient,
    input as bounded,
    linear,
    normalisation,
    pooling,
    residual,
)
from noisewise.nn.orthogonal import OrthogonalConv2d
from noisewise.nn.plain.export import Export, register_plain, traced
from noisewise.nn.standardised import StandardisedConv2d, StandardisedLinear

M = TypeVar("M", bound=nn.Module)


def _copy_weights(plain: M, source: nn.Module, export: Export, **instead: Tensor) -> M:
    for name, value in source.named_parameters(recurse=False):
        if name in instead:
            new = nn.Parameter(instead[name].detach().clone(), requires_grad=value.requires_grad)
            setattr(plain, name, new)
        else:
            setattr(plain, name, export.tensor(value))
    return plain


@register_plain(linear.SpectralLinear, linear.FrobeniusLinear, linear.InducedLinear)
def _linear(layer: nn.Linear, export: Export) -> nn.Module:
    plain = nn.Linear(
        layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta"
    )
    return _copy_weights(plain, layer, export)


@register_plain(StandardisedLinear)
def _standardised_linear(layer: StandardisedLinear, export: Export) -> nn.Module:
    plain = nn.Linear(
        layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta"
    )
    return _copy_weights(plain, layer, export, weight=layer.effective_weight())


_CONVOLUTIONS: dict[type[nn.Module], type[nn.Module]] = {
    conv.SpectralConv1d: nn.Conv1d,
    conv.SpectralConv2d: nn.Conv2d,
    conv.SpectralConv3d: nn.Conv3d,
    conv.SpectralConvTranspose1d: nn.ConvTranspose1d,
    conv.SpectralConvTranspose2d: nn.ConvTranspose2d,
    conv.SpectralConvTranspose3d: nn.ConvTranspose3d,
    OrthogonalConv2d: nn.Conv2d,
    StandardisedConv2d: nn.Conv2d,
}


@register_plain(*_CONVOLUTIONS)
def _convolution(layer: Any, export: Export) -> nn.Module:
    options: dict[str, Any] = {
        name: getattr(layer, name)
        for name in ("stride", "padding", "dilation", "groups", "padding_mode")
    }
    if layer.transposed:
        options["output_padding"] = layer.output_padding
    plain = _CONVOLUTIONS[type(layer)](
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        bias=layer.bias is not None,
        device="meta",
        **options,
    )
    if isinstance(layer, (OrthogonalConv2d, StandardisedConv2d)):
        return _copy_weights(plain, layer, export, weight=layer.effective_weight())
    return _copy_weights(plain, layer, export)


@register_plain(gradient.AdaptiveClipGradient, gradient.ClipGradient, gradient.RenewGradient)
def _identity(layer: nn.Module, export: Export) -> nn.Module:
    return nn.Identity()


@register_plain(activations.GroupSort)
def _group_sort(layer: activations.GroupSort, export: Export) -> nn.Module:
    size = layer.group_size
    return traced(lambda x: x.unflatten(1, (-1, size)).sort(dim=2).values.flatten(1, 2))


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs: Tensor = x.unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
    return pairs.select(2, 0), pairs.select(2, 1)


@register_plain(activations.MaxMin)
def _max_min(layer: activations.MaxMin, export: Export) -> nn.Module:
    def sort_pairs(x: Tensor) -> Tensor:
        first, second = _pairs(x)
        ordered = [torch.maximum(first, second), torch.minimum(first, second)]
        return torch.stack(ordered, dim=2).flatten(1, 2)

    return traced(sort_pairs)


@register_plain(activations.AbsoluteValue)
def _absolute(layer: activations.AbsoluteValue, export: Export) -> nn.Module:
    return traced(lambda x: x.abs())


@register_plain(activations.CReLU)
def _crelu(layer: activations.CReLU, export: Export) -> nn.Module:
    return traced(lambda x: torch.cat([x.relu(), (-x).relu()], dim=1))


@register_plain(activations.HouseholderActivation)
def _householder(layer: activations.HouseholderActivation, export: Export) -> nn.Module:
    def reflect(x: Tensor, angle: Tensor) -> Tensor:
        first, second = (part.movedim(1, -1) for part in _pairs(x))
        sine, cosine = angle.sin(), angle.cos()
        half = angle.detach() / 2
        stays = first.detach() * half.sin() > second.detach() * half.cos()
        one = torch.where(stays, first, first * cosine + second * sine)
        other = torch.where(stays, second, first * sine - second * cosine)
        return torch.stack([one, other], dim=-1).flatten(-2).movedim(-1, 1)

    return traced(reflect, angle=export.tensor(layer.angle))


@register_plain(activations.TemperedSigmoid)
def _tempered(layer: activations.TemperedSigmoid, export: Export) -> nn.Module:
    scale, temperature, offset = layer.scale, layer.temperature, layer.offset
    return traced(lambda x: scale * torch.sigmoid(temperature * x) - offset)


def _normalise(groups: Tensor, alpha: float) -> Tensor:
    centred = groups - groups.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / variance.clamp_min(alpha * alpha).sqrt()


@register_plain(normalisation.LipschitzGroupNorm)
def _group_norm(layer: normalisation.LipschitzGroupNorm, export: Export) -> nn.Module:
    count, alpha = layer.num_groups, layer.alpha

    def normalise(x: Tensor) -> Tensor:
        groups = x.flatten(1).unflatten(1, (count, -1))  # type: ignore[no-untyped-call]
        return _normalise(groups, alpha).reshape(x.shape)

    def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (normalise(x).movedim(1, -1) * weight + bias).movedim(-1, 1)

    if layer.weight is None or layer.bias is None:
        return traced(normalise)
    return traced(affine, weight=export.tensor(layer.weight), bias=export.tensor(layer.bias))


@register_plain(normalisation.LipschitzLayerNorm)
def _layer_norm(layer: normalisation.LipschitzLayerNorm, export: Export) -> nn.Module:
    axes, alpha = len(layer.normalized_shape), layer.alpha

    def normalise(x: Tensor) -> Tensor:
        return _normalise(x.flatten(-axes), alpha).reshape(x.shape)

    def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return normalise(x) * weight + bias

    if layer.weight is None or layer.bias is None:
        return traced(normalise)
    return traced(affine, weight=export.tensor(layer.weight), bias=export.tensor(layer.bias))


@register_plain(normalisation.LayerCentering)
def _centering(layer: normalisation.LayerCentering, export: Export) -> nn.Module:
    if layer.axes is not None:
        axes = [axis + 1 for axis in layer.axes]
        return traced(lambda x: x - x.mean(dim=axes, keepdim=True))

    def centre(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return (flat - flat.mean(dim=1, keepdim=True)).reshape(x.shape)

    return traced(centre)


@register_plain(pooling.ScaledAvgPool2d)
def _average_pool(layer: pooling.ScaledAvgPool2d, export: Export) -> nn.Module:
    window = (layer.kernel_size, layer.stride, layer.padding)
    scale = layer.scale
    return traced(lambda x: functional.avg_pool2d(x, *window) * scale)


@register_plain(pooling.ScaledL2Pool2d)
def _l2_pool(layer: pooling.ScaledL2Pool2d, export: Export) -> nn.Module:
    window = (layer.kernel_size, layer.stride, layer.padding)
    scale, tiny = layer.scale, export.numbers.tiny

    def pool(x: Tensor) -> Tensor:
        squares = functional.avg_pool2d(x.square(), *window, divisor_override=1)
        positive = squares > tiny
        roots = torch.where(positive, squares, torch.ones_like(squares)).sqrt()
        return torch.where(positive, roots, torch.zeros_like(roots)) * scale

    return traced(pool)


@register_plain(bounded.BoundedInput)
def _bounded_input(layer: bounded.BoundedInput, export: Export) -> nn.Module:
    clip, hsv, flat = layer.mode == "clip", layer.colour == "hsv", (1,) * len(layer.shape)
    target = layer.norm * (1.0 - 16 * export.numbers.eps)
    floor = math.sqrt(export.numbers.tiny)
    channels = 1 if layer.colour == "grayscale" else layer.shape[0]
    precise = torch.float64 if export.numbers.bits == 64 else torch.float32
    lost = underflow(channels * math.prod(layer.shape[1:]), precise)

    def bound(x: Tensor, matrix: Tensor | None = None) -> Tensor:
        finite = torch.isfinite(x).flatten(1).all(dim=1).view(-1, *flat)
        x = torch.where(finite, x, torch.zeros_like(x))
        if matrix is not None:
            x = torch.einsum("oc,bchw->bohw", matrix.to(x.dtype), x)
        elif hsv:
            x = bounded._hsv(x)
        length = torch.linalg.vector_norm(x.flatten(1), dim=1).double() + lost
        scale = target / length.to(x.dtype).clamp_min(floor)
        if clip:
            scale = scale.clamp_max(1.0)
        return cast(Tensor, x * scale.view(-1, *flat))

    if layer.matrix is None:
        return traced(bound)
    plain = traced(bound, matrix=export.tensor(layer.matrix))
    plain._non_persistent_buffers_set.add("matrix")  # a constant, as in the layer: not saved
    return plain


@register_plain(residual.ConvexMix)
def _convex_mix(layer: residual.ConvexMix, export: Export) -> nn.Module:
    def mix(first: Tensor, second: Tensor, raw: Tensor) -> Tensor:
        return torch.lerp(first, second, torch.sigmoid(raw).to(first.dtype))

    return traced(mix, inputs=2, raw=export.tensor(layer.raw))


@register_plain(residual.LipschitzResidual)
def _residual(layer: residual.LipschitzResidual, export: Export) -> nn.Module:
    def mixed(x: Tensor, branch: nn.Module, shortcut: nn.Module, mix: nn.Module) -> Tensor:
        return cast(Tensor, mix(shortcut(x), branch(x)))

    def added(x: Tensor, branch: nn.Module, shortcut: nn.Module) -> Tensor:
        return cast(Tensor, shortcut(x) + branch(x))

    function = added if layer.mix is None else mixed
    return traced(function, inputs=1, **export.children(layer))
