"""Losses that torch computes in one operation."""

from __future__ import annotations

import torch

from noisewise.separation.call import Call, Planes, all_but, everything, over
from noisewise.separation.registry import rule
from noisewise.separation.rules.elementwise import pointwise

__all__ = ["elementwise_loss", "nll"]


@rule(
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss",
    "binary_cross_entropy_with_logits",
)
def elementwise_loss(call: Call) -> list[Planes]:
    """Entry by entry unless it is reduced."""
    return everything(call) if call["reduction"] else pointwise(call)


@rule(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward",
    "soft_margin_loss_backward",
)
def elementwise_loss_backward(call: Call) -> list[Planes]:
    """Entry by entry; of what was reduced one number comes back, for all entries."""
    return pointwise(call)


@rule("nll_loss_forward nll_loss2d_forward")
def nll(call: Call) -> list[Planes]:
    """Each row with its target and the weights of the classes."""
    x, weight = call["self"], call["weight"]
    if call["reduction"] or x.dim() == 1:
        return everything(call)
    planes = torch.maximum(over(call.planes(x), 1).squeeze(2), call.planes(call["target"]))
    if weight is not None:
        rest = (1,) * (planes.dim() - 1)
        planes = torch.maximum(planes, all_but(call.planes(weight)).reshape(2, *rest))
    total = planes.reshape(2, -1).amax(1)
    return [planes, *[total.reshape(2, *(1,) * r.dim()) for r in call.results[1:]]]


@rule("nll_loss_backward nll_loss2d_backward")
def nll_backward(call: Call) -> list[Planes]:
    """Into the row of each target; of what was reduced one number comes back, for all rows."""
    weight = call["weight"]
    if call["reduction"] == 1 or call["self"].dim() == 1:
        return everything(call)
    call.skip("self", "total_weight")  # a shape; and what only a mean divides by
    target = call["target"]
    planes = call.joined((call["grad_output"], target), target.shape).unsqueeze(2)
    if weight is not None:
        rest = (1,) * (planes.dim() - 1)
        planes = torch.maximum(planes, all_but(call.planes(weight)).reshape(2, *rest))
    return [planes]


@rule(
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward",
    "multilabel_margin_loss_backward",
)
def margins(call: Call) -> list[Planes]:
    """Each row with its target, unless reduced."""
    x = call["self"]
    if call["reduction"] or x.dim() != 2:
        return everything(call)
    total = over(call.planes(x), 1)
    for name in ("target", "grad_output", "is_target"):
        found = call.found(call[name])
        if found is not None:
            total = torch.maximum(total, over(found.reshape(2, x.shape[0], -1), 1))
    weight = call.found(call["weight"])
    if weight is not None:
        total = torch.maximum(total, weight.reshape(2, -1).amax(1).reshape(2, 1, 1))
    return [total if r.dim() == 2 else total.squeeze(2) for r in call.results]


@rule("_ctc_loss _ctc_loss_backward")
def ctc(call: Call) -> list[Planes]:
    """Alignments of (T, N, C) with padded targets (N, S): each sequence by itself.

    What is kept for the backward pass, (N, T, 2S + 1), has memory in it that nobody has written:
    nothing else may read it (`Watch`).
    """
    scores, targets = call["log_probs"], call["targets"]
    if scores.dim() != 3 or targets.dim() != 2:
        return everything(call)
    total = all_but(call.planes(scores), 1).reshape(2, -1)
    for tensor in call.tensors:
        if tensor is scores:
            continue
        planes = call.planes(tensor)
        if tensor.dim() and tensor.shape[0] == scores.shape[1]:
            planes = all_but(planes, 0).reshape(2, -1)
        else:
            planes = planes.reshape(2, -1).amax(1, keepdim=True)
        total = torch.maximum(total, planes)
    if call.name.endswith("backward"):
        return [total.reshape(2, 1, -1, 1)]
    return [total, total.reshape(2, -1, 1, 1)]
