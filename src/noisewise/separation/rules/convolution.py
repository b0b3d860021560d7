"""Convolutions of any dimension: an image, and within it a group of channels, stays by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes, all_but
from noisewise.separation.registry import rule
from noisewise.separation.shadow import PLANE

__all__ = ["channels", "grouped", "spread"]


def grouped(planes: Tensor, groups: int) -> Tensor:
    """(2, N, C, ...) to (2, N, groups, 1)."""
    return planes.reshape(2, planes.shape[1], groups, -1).amax(-1, keepdim=True)


def spread(planes: Tensor, shape: Sequence[int]) -> Tensor:
    """(2, N, groups, 1) to (2, N, C, 1, ...)."""
    images, width = shape[0], shape[1]
    every = planes.expand(2, images, -1, width // planes.shape[2])
    return every.reshape(2, images, width, *(1,) * (len(shape) - 2))


def channels(call: Call, names: Sequence[str], rank: int) -> Tensor:
    """Join vectors over axis 1: biases, weights, running statistics."""
    total = torch.zeros(2, *(1,) * rank, dtype=PLANE)
    for name in names:
        planes = call.found(call[name])
        if planes is not None and planes.numel():
            total = torch.maximum(total, planes.reshape(2, 1, -1, *(1,) * (rank - 2)))
    return total


def _kernel(call: Call, groups: int) -> Tensor:
    """Shadow of a kernel, whose first axis the groups divide, transposed or not."""
    return grouped(call.planes(call["weight"]).unsqueeze(1), groups)


@rule("convolution")
def convolution(call: Call) -> list[Planes]:
    """Input, kernel and bias."""
    groups, shape = call["groups"], call.results[0].shape
    planes = torch.maximum(grouped(call.planes(call["input"]), groups), _kernel(call, groups))
    return [torch.maximum(spread(planes, shape), channels(call, ("bias",), len(shape)))]


@rule("convolution_backward")
def convolution_backward(call: Call) -> list[Planes]:
    """Gradients of input, kernel (a sum over images) and bias."""
    groups, weight = call["groups"], call["weight"]
    arriving = grouped(call.planes(call["grad_output"]), groups)
    entering = grouped(call.planes(call["input"]), groups)
    into = spread(torch.maximum(arriving, _kernel(call, groups)), call["input"].shape)
    each = torch.maximum(arriving, entering).amax(1, keepdim=True)
    kernel = spread(each, (1, *weight.shape)).squeeze(1)
    bias = all_but(call.planes(call["grad_output"]), 1).reshape(2, -1)
    wanted = zip((into, kernel, bias), call["output_mask"], strict=True)
    return [planes for planes, asked in wanted if asked]
