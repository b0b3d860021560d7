"""Fused attention and fused recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes, all_but, over
from noisewise.separation.registry import rule
from noisewise.separation.shadow import PLANE

__all__ = ["attention", "recurrent"]


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
)
def attention(call: Call) -> list[Planes]:
    """Each index of the first axis by itself: queries, keys, values and its part of the mask."""
    first = call["query"]
    batch = first.shape[0]
    total = torch.zeros(2, batch, dtype=PLANE)
    for tensor in call.tensors:
        planes = call.found(tensor)
        if planes is None:
            continue
        if (tensor.dim() == 4 and tensor.shape[0] == batch) or (
            tensor.dim() >= 1 and tensor is not call["attn_mask"] and tensor.shape[0] == batch
        ):
            planes = all_but(planes, 0).reshape(2, batch)
        else:  # a mask that is broadcast
            planes = planes.reshape(2, -1).amax(1).reshape(2, 1)
        total = torch.maximum(total, planes)
    return [_laid(total, result, batch) for result in call.results]


def _laid(total: Tensor, result: Tensor, batch: int) -> Tensor:
    if result.dim() == 0 or result.shape[0] != batch:
        return total.amax(1).reshape(2, *(1,) * result.dim())
    return total.reshape(2, batch, *(1,) * (result.dim() - 1))


@rule("mkldnn_rnn_layer mkldnn_rnn_layer_backward")
def recurrent(call: Call) -> list[Planes]:
    """OneDNN's LSTM layer: (T, B, d) and (B, d). Its workspace repeats what is followed anyway."""
    backward, records = call.name.endswith("backward"), call["input"].shape[1]
    total = torch.zeros(2, records, dtype=PLANE)
    call.skip("workspace")
    for name, tensor in call.arguments.items():
        if not isinstance(tensor, Tensor) or name == "workspace":
            continue
        planes = call.found(tensor)
        if planes is None:
            continue
        weight = "weight" in name or "bias" in name
        planes = over(planes.reshape(2, -1), 0) if weight else all_but(planes, tensor.dim() - 2)
        total = torch.maximum(total, planes.reshape(2, -1))
    apart = (0, 5, 6) if backward else (0, 1, 2)
    whole = total.amax(1)
    return [
        total.reshape(2, *(1,) * (result.dim() - 2), records, 1)
        if i in apart
        else whole.reshape(2, *(1,) * result.dim())
        for i, result in enumerate(call.results)
    ]
