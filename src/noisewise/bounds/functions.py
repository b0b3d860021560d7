"""What is known of functions and methods that a model's forward calls on tensors.

A function is read as the module that computes the same (``functional.relu`` as ``nn.ReLU``), whose
rule then applies, or gets a rule of its own here: sums, products with public constants,
concatenation, slices, means. A handler receives the arguments of the call with records'
tensors replaced by :class:`Signal`, and returns a module or a rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from noisewise.bounds.layer import LayerRule, Signal
from noisewise.bounds.rules import arithmetic as ruled
from noisewise.bounds.rules.linear import IdentityRule
from noisewise.errors import UnsupportedModelError

__all__ = ["Handler", "functions", "register_function"]

Reading = nn.Module | LayerRule[Any]


@dataclass(frozen=True)
class Handler:
    """How to read a call; `reshapes` if its numbers are shapes, which may hold the batch size."""

    read: Callable[..., Reading]
    reshapes: bool = False


_FUNCTIONS: dict[Any, Handler] = {}


def register_function(
    *targets: Any, reshapes: bool = False
) -> Callable[[Callable[..., Reading]], Callable[..., Reading]]:
    """Read calls of these functions (or methods, by name) as a module or a rule."""

    def remember(read: Callable[..., Reading]) -> Callable[..., Reading]:
        for target in targets:
            _FUNCTIONS[target] = Handler(read, reshapes)
        return read

    return remember


def functions() -> Mapping[Any, Handler]:
    """Every function and method that is understood."""
    return MappingProxyType(_FUNCTIONS)


def _elementwise(module: type[nn.Module], *targets: Any) -> None:
    """Activations whose function takes the module's arguments in the same order."""

    def read(x: Signal, *args: Any, **kwargs: Any) -> nn.Module:
        return module(*args, **kwargs)

    register_function(*targets)(read)


for _module, _targets in (
    (nn.ReLU, (functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_")),
    (nn.ReLU6, (functional.relu6,)),
    (nn.ELU, (functional.elu,)),
    (nn.CELU, (functional.celu,)),
    (nn.SELU, (functional.selu,)),
    (nn.LeakyReLU, (functional.leaky_relu,)),
    (nn.Tanh, (functional.tanh, torch.tanh, "tanh")),
    (nn.Sigmoid, (functional.sigmoid, torch.sigmoid, "sigmoid")),
    (nn.Softplus, (functional.softplus,)),
    (nn.GELU, (functional.gelu,)),
    (nn.SiLU, (functional.silu,)),
    (nn.Mish, (functional.mish,)),
    (nn.Hardswish, (functional.hardswish,)),
    (nn.Hardtanh, (functional.hardtanh,)),
    (nn.Hardsigmoid, (functional.hardsigmoid,)),
    (nn.Softsign, (functional.softsign,)),
    (nn.LogSigmoid, (functional.logsigmoid,)),
    (nn.Tanhshrink, (functional.tanhshrink,)),
    (nn.Softshrink, (functional.softshrink,)),
    (nn.AvgPool1d, (functional.avg_pool1d,)),
    (nn.AvgPool2d, (functional.avg_pool2d,)),
    (nn.AvgPool3d, (functional.avg_pool3d,)),
    (nn.AdaptiveAvgPool1d, (functional.adaptive_avg_pool1d,)),
    (nn.AdaptiveAvgPool2d, (functional.adaptive_avg_pool2d,)),
    (nn.AdaptiveAvgPool3d, (functional.adaptive_avg_pool3d,)),
    (nn.AdaptiveMaxPool1d, (functional.adaptive_max_pool1d,)),
    (nn.AdaptiveMaxPool2d, (functional.adaptive_max_pool2d,)),
    (nn.AdaptiveMaxPool3d, (functional.adaptive_max_pool3d,)),
    (nn.PixelShuffle, (functional.pixel_shuffle,)),
    (nn.PixelUnshuffle, (functional.pixel_unshuffle,)),
):
    _elementwise(_module, *_targets)


def _max_pool(module: type[nn.Module], *targets: Any) -> None:
    """Maximum pooling, whose function has ceil_mode where the module has return_indices."""

    def read(
        x: Signal, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> nn.Module:  # fmt: skip
        return module(
            kernel_size, stride or kernel_size, padding, dilation, return_indices, ceil_mode
        )

    register_function(*targets)(read)


_max_pool(nn.MaxPool1d, functional.max_pool1d, torch.max_pool1d)
_max_pool(nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d)
_max_pool(nn.MaxPool3d, functional.max_pool3d, torch.max_pool3d)


@register_function(functional.softmax, torch.softmax, "softmax")
def _softmax(x: Signal, dim: int | None = None, **kwargs: Any) -> Reading:
    return nn.Softmax(dim)


@register_function(functional.log_softmax, torch.log_softmax, "log_softmax")
def _log_softmax(x: Signal, dim: int | None = None, **kwargs: Any) -> Reading:
    return nn.LogSoftmax(dim)


@register_function(functional.dropout, torch.dropout)
def _dropout(
    x: Signal, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> Reading:
    return nn.Dropout(p, inplace)


@register_function(torch.abs, operator.abs, "abs", torch.neg, operator.neg, "neg")
def _isometry(x: Signal) -> Reading:
    return ruled.EntrywiseIsometry()


@register_function(
    torch.flatten, "flatten", "view", "reshape", torch.reshape, "permute", torch.permute,
    "transpose", torch.transpose, "squeeze", torch.squeeze, "unsqueeze", torch.unsqueeze,
    "contiguous", "clone", "movedim", torch.movedim, "view_as", "unflatten", torch.unflatten,
    reshapes=True,
)  # fmt: skip
def _rearrangement(x: Signal, *args: Any, **kwargs: Any) -> Reading:
    return IdentityRule()


# Not half or bfloat16: their rounding alone may lift a norm above its bound.
@register_function("float", "double", "detach")
def _conversion(x: Signal) -> Reading:
    return IdentityRule()


@register_function("expand", "repeat", reshapes=True)
def _repetition(x: Signal, *args: Any, **kwargs: Any) -> Reading:
    return ruled.Repetition()


@register_function(operator.add, operator.iadd, torch.add, "add", "add_")
def _add(a: Any, b: Any, alpha: float = 1) -> Reading:
    if alpha != 1:
        raise _unclear("add", "alpha", alpha)
    return _sum(a, b)


@register_function(operator.sub, operator.isub, torch.sub, "sub", "sub_")
def _subtract(a: Any, b: Any, alpha: float = 1) -> Reading:
    if alpha != 1:
        raise _unclear("sub", "alpha", alpha)
    return _sum(a, b)


def _sum(a: Any, b: Any) -> Reading:
    if isinstance(a, Signal) and isinstance(b, Signal):
        return ruled.Sum()
    return ruled.Shift(b if isinstance(a, Signal) else a)


@register_function(operator.mul, operator.imul, torch.mul, "mul", "mul_")
def _multiply(a: Any, b: Any) -> Reading:
    if isinstance(a, Signal) and isinstance(b, Signal):
        return ruled.Gate()
    return ruled.Scale(b if isinstance(a, Signal) else a)


@register_function(operator.truediv, torch.div, torch.true_divide, "div", "div_")
def _divide(a: Any, b: Any) -> Reading:
    if not isinstance(a, Signal) or isinstance(b, Signal):
        raise UnsupportedModelError(
            "a division by a record's tensor has no bound near zero. Divide by a public constant, "
            "or normalise with noisewise.nn.LipschitzLayerNorm."
        )
    return ruled.Scale(torch.as_tensor(b, dtype=torch.float64).reciprocal())


@register_function(torch.cat, torch.concat, torch.concatenate)
def _concatenate(tensors: Any, dim: int = 0) -> Reading:
    _inside("cat", dim, tensors[0])
    return ruled.Concatenation()


@register_function(torch.stack)
def _stack(tensors: Any, dim: int = 0) -> Reading:
    _inside("stack", dim, tensors[0], extra=1)
    return ruled.Concatenation()


@register_function(torch.chunk, "chunk", torch.split, "split", torch.tensor_split, "tensor_split")
def _chunk(x: Signal, parts: Any, dim: int = 0) -> Reading:
    _inside("chunk", dim, x)
    return IdentityRule()


@register_function(torch.mean, "mean")
def _mean(x: Signal, dim: Any = None, keepdim: bool = False) -> Reading:
    _inside("mean", dim, x)
    return ruled.Reduction("mean")


@register_function(torch.sum, "sum")
def _summation(x: Signal, dim: Any = None, keepdim: bool = False) -> Reading:
    _inside("sum", dim, x)
    return ruled.Reduction("sum")


@register_function(torch.amax, "amax", torch.amin, "amin")
def _extremum(x: Signal, dim: Any = (), keepdim: bool = False) -> Reading:
    _inside("amax", dim if dim != () else None, x)
    return ruled.Reduction("select")


@register_function(torch.maximum, torch.minimum)
def _pairwise(a: Any, b: Any) -> Reading:
    if not (isinstance(a, Signal) and isinstance(b, Signal)):
        raise UnsupportedModelError("maximum with a constant: use clamp, whose limits are numbers.")
    return ruled.Choice()


@register_function(torch.clamp, "clamp", "clamp_")
def _clamp(x: Signal, min: float | None = None, max: float | None = None) -> Reading:
    low = float("-inf") if min is None else min
    high = float("inf") if max is None else max
    return nn.Hardtanh(low, high)


@register_function(functional.pad)
def _pad(x: Signal, pad: Any, mode: str = "constant", value: float | None = None) -> Reading:
    dimensions = len(pad) // 2
    if dimensions > len(x.shape):
        raise UnsupportedModelError("pad would pad the batch axis. Pad the axes of a record only.")
    kinds = {
        "constant": (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
        "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
        "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
        "circular": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
    }
    if not 1 <= dimensions <= 3 or mode not in kinds:
        raise UnsupportedModelError(f"pad of {dimensions} axes with mode {mode!r} has no rule.")
    kind: Callable[..., nn.Module] = kinds[mode][dimensions - 1]
    return kind(tuple(pad), value or 0.0) if mode == "constant" else kind(tuple(pad))


@register_function(functional.interpolate)
def _interpolate(
    x: Signal, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Reading:  # fmt: skip
    if antialias:
        raise UnsupportedModelError("interpolate with antialias has no rule. Set antialias=False.")
    return nn.Upsample(size, scale_factor, mode, align_corners, recompute_scale_factor)


def _item(x: Signal, index: Any) -> Reading:
    parts = index if isinstance(index, tuple) else (index,)
    simple = all(
        part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts
    )
    if not simple or parts[0] is None or (parts[0] is not Ellipsis and parts[0] != slice(None)):
        raise UnsupportedModelError(
            "an index that selects among the records of a batch, or a list of indices, has no "
            "rule. Write x[:, ...] with numbers and slices."
        )
    return IdentityRule()


register_function(operator.getitem)(_item)


def _inside(name: str, dim: Any, x: Signal, extra: int = 0) -> None:
    """Refuse an axis that is, or may be, the batch."""
    axes = len(x.shape) + 1 + extra
    given = (0,) if dim is None else (dim if isinstance(dim, (tuple, list)) else (dim,))
    if any(axis % axes == 0 for axis in given):
        raise UnsupportedModelError(
            f"{name} over the batch axis mixes records, so no sensitivity exists. Give it an axis "
            "of the record, for example dim=1."
        )


def _unclear(name: str, argument: str, value: Any) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} with {argument}={value!r} has no rule. Multiply first.")
