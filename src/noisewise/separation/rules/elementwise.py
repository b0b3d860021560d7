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
    "_prelu_kernel _prelu_kernel_backward rrelu_with_noise_backward nan_to_num threshold_backward",
    "_fused_dropout masked_fill where floor_divide",
)
def pointwise(call: Call) -> list[Planes]:
    """Each entry of a result depends on the entries that broadcasting aligns with it."""
    shape = broadcast_shapes(*[t.shape for t in call.tensors])
    return [call.joined(call.tensors, shape)] * len(call.results)


@rule("rrelu_with_noise")
def random_slopes(call: Call) -> list[Planes]:
    """Slopes are drawn in training; else, or if torch writes to a copy, they are left alone."""
    entries, slopes = call.planes(call["self"]), call.planes(call["noise"])
    overwritten = call["training"] and call["noise"].is_contiguous()
    drawn = entries if overwritten else torch.maximum(entries, slopes)
    return [drawn if result is call["noise"] else entries for result in call.results]
