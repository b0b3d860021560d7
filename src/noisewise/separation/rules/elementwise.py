"""Entry by entry, with broadcasting. Operations that torch tags as pointwise need no line here."""

from __future__ import annotations

import torch

from noisewise.separation.call import Call, Planes
from noisewise.separation.registry import rule
from noisewise.separation.shadow import broadcast_shapes

__all__ = ["pointwise"]


@rule(
    "pointwise",  # the tag's own name: what torch calls pointwise
    "clone _to_copy contiguous native_dropout native_dropout_backward bernoulli tril triu polar",
    "complex softplus softplus_backward elu elu_backward hardtanh_backward hardswish_backward lerp",
    "leaky_relu_backward hardsigmoid_backward normal log_sigmoid_forward log_sigmoid_backward",
    "_prelu_kernel _prelu_kernel_backward nan_to_num threshold_backward",
    "_fused_dropout masked_fill where floor_divide hardswish mish_backward softshrink_backward",
    "hardshrink_backward fake_quantize_per_tensor_affine_cachemask poisson binomial",
    "_standard_gamma _standard_gamma_grad _dirichlet_grad",
)
def pointwise(call: Call) -> list[Planes]:
    """Each entry of a result depends on the entries that broadcasting aligns with it."""
    shape = broadcast_shapes(*[t.shape for t in call.tensors])
    return [call.joined(call.tensors, shape)] * len(call.results)


@rule("rrelu_with_noise_backward")
def random_slopes_backward(call: Call) -> list[Planes]:
    """Slopes that were not drawn are not read."""
    if not call["training"]:
        call.skip("noise")
        shape = call["self"].shape
        return [call.joined([call["grad_output"], call["self"]], shape)] * len(call.results)
    return pointwise(call)


@rule("fake_quantize_per_channel_affine_cachemask")
def rounded_by_channel(call: Call) -> list[Planes]:
    """Entry by entry, with the scale and the zero of its channel."""
    x, axis = call["self"], call["axis"] % call["self"].dim()
    planes = call.planes(x)
    for name in ("scale", "zero_point"):
        given = call.planes(call[name])
        given = given.reshape(2, *(x.shape[axis] if a == axis else 1 for a in range(x.dim())))
        planes = torch.maximum(planes, given)
    return [planes] * len(call.results)


@rule("glu")
def gated(call: Call) -> list[Planes]:
    """One half of an axis with the other."""
    first, second = call.planes(call["self"]).chunk(2, _behind(call["dim"]))
    return [torch.maximum(first, second)]


@rule("glu_backward")
def gated_backward(call: Call) -> list[Planes]:
    """Into both halves."""
    axis = _behind(call["dim"])
    first, second = call.planes(call["self"]).chunk(2, axis)
    half = torch.maximum(torch.maximum(first, second), call.planes(call["grad_output"]))
    return [torch.cat([half, half], axis)]


def _behind(axis: int) -> int:
    """The same axis of planes, which have one more in front."""
    return axis + 1 if axis >= 0 else axis


@rule("rrelu_with_noise")
def random_slopes(call: Call) -> list[Planes]:
    """Slopes are drawn in training; else, or if torch writes to a copy, they are left alone."""
    entries, slopes = call.planes(call["self"]), call.planes(call["noise"])
    overwritten = call["training"] and call["noise"].is_contiguous()
    drawn = entries if overwritten else torch.maximum(entries, slopes)
    return [drawn if result is call["noise"] else entries for result in call.results]
