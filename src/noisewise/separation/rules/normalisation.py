"""Layer, RMS, group and batch normalisation, forward and backward."""

from __future__ import annotations

import torch

from noisewise.separation.call import Call, Planes, all_but, over
from noisewise.separation.origin import place
from noisewise.separation.registry import rule
from noisewise.separation.rules.convolution import channels, grouped, spread
from noisewise.separation.shadow import Origin

__all__ = ["batch_norm", "group_norm", "layer_norm"]


@rule("native_layer_norm _fused_rms_norm")
def layer_norm(call: Call) -> list[Planes]:
    """Over the last axes."""
    x, count = call["input"], len(call["normalized_shape"])
    planes = over(call.planes(x), *range(-count, 0))
    affine = call.joined([call["weight"], call["bias"]], x.shape)
    statistics = [planes.reshape(2, *result.shape) for result in call.results[1:]]
    return [torch.maximum(planes, affine), *statistics]


@rule("native_layer_norm_backward _fused_rms_norm_backward")
def layer_norm_backward(call: Call) -> list[Planes]:
    """Into the input over the last axes; into scale and shift over all others."""
    x, count = call["input"], len(call["normalized_shape"])
    call.skip("bias")
    names = ("grad_out", "input", "mean", "rstd", "weight")
    planes = call.joined([call[n] for n in names], x.shape)
    affine = all_but(planes, *range(x.dim() - count, x.dim())).reshape(2, *x.shape[-count:])
    wanted = zip(
        (over(planes, *range(-count, 0)), affine, affine), call["output_mask"], strict=False
    )
    return [found for found, asked in wanted if asked]


@rule("native_group_norm")
def group_norm(call: Call) -> list[Planes]:
    """Over groups of channels of each image."""
    x, images, groups = call["input"], call["N"], call["group"]
    planes = grouped(call.planes(x).reshape(2, images, -1), groups)
    output = torch.maximum(spread(planes, x.shape), channels(call, ("weight", "bias"), x.dim()))
    return [output, *[planes.reshape(2, images, groups)] * (len(call.results) - 1)]


@rule("native_group_norm_backward")
def group_norm_backward(call: Call) -> list[Planes]:
    """As forward, with the statistics that were saved."""
    x, images, groups = call["input"], call["N"], call["group"]
    planes = torch.maximum(call.planes(call["grad_out"]), call.planes(x))
    planes = torch.maximum(planes, channels(call, ("weight",), x.dim()))
    saved = torch.maximum(call.planes(call["mean"]), call.planes(call["rstd"]))
    saved = saved.reshape(2, images, groups, 1)
    each = torch.maximum(grouped(planes.reshape(2, images, -1), groups), saved)
    affine = all_but(torch.maximum(planes, spread(saved, x.shape)), 1).reshape(2, -1)
    wanted = zip((spread(each, x.shape), affine, affine), call["output_mask"], strict=True)
    return [found for found, asked in wanted if asked]


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training",
    "_batch_norm_with_update _batch_norm_no_update",
)
def batch_norm(call: Call) -> list[Planes]:
    """In evaluation mode an affine map; in training mode each channel over the whole batch."""
    x = call["input"]
    state = [call["running_mean"], call["running_var"]]
    quiet = call.name.endswith(("_no_training", "_no_update"))
    asked = call["training"] if "training" in call.arguments else call["train"]
    training = not quiet and (asked is None or bool(asked) or state[0] is None)
    given = channels(call, ("weight", "bias", "running_mean", "running_var"), x.dim())
    own = call.planes(x)
    planes = torch.maximum(all_but(own, 1) if training else own, given)
    flat = all_but(planes, 1).reshape(2, -1)
    for buffer in state if training else []:
        if buffer is not None:
            call.shadow.write(buffer, flat, False, Origin("batch normalisation", place()))
    return [planes, *[flat if r.numel() else None for r in call.results[1:]]]


@rule("native_batch_norm_backward batch_norm_backward")
def batch_norm_backward(call: Call) -> list[Planes]:
    """In evaluation mode a factor per channel."""
    x = call["input"]
    names = ("weight", "running_mean", "running_var", "save_mean", "save_invstd", "save_var")
    arriving = torch.maximum(call.planes(call["grad_out"]), channels(call, names, x.dim()))
    call.skip("reserve")
    both = all_but(torch.maximum(arriving, call.planes(x)), 1)
    training = call["train"] if "train" in call.arguments else call["update"]
    into = both if training else arriving
    wanted = zip((into, both.reshape(2, -1), both.reshape(2, -1)), call["output_mask"], strict=True)
    return [found for found, asked in wanted if asked]
