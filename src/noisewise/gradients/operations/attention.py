"""Multi-head attention as torch.nn.MultiheadAttention calls it.

The packed projection is one linear layer if query, key and value are the same tensor, else
three whose gradients are rows of the packed weight. Attention itself has no parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import Target
from noisewise.gradients.operations.dense import tapped_linear
from noisewise.gradients.operations.elementwise import repeated
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    handles,
    layout_of_use,
    place,
)
from noisewise.gradients.tape import Tape

__all__ = ["attend"]


@handles(functional.multi_head_attention_forward)
def attend(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the call apart into linear layers and attention."""
    return _attend(tape, *args, **kwargs)


@handles(functional.scaled_dot_product_attention)
def attend_with_bias(
    tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Attention whose additive mask is learnt (relative positions): a copy for every record."""
    given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
    rest = args[4:]
    query, mask = given["query"], given.get("attn_mask")
    target = tape.target(mask)
    if target is None or mask is None or rest or query.dim() != 4 or mask.dim() > 4:
        raise UnsupportedUseError
    inner = [1] * (4 - mask.dim()) + list(mask.shape)
    operands = [given[name][..., :1, :1] for name in ("query", "key", "value")]
    layout = layout_of_use(tape, "attention", operands, -1, mask)
    if layout.order is not None or inner[0] != 1:
        raise UnsupportedUseError
    copies = repeated(tape, mask, target, query.shape[0] // tape.records)
    given["attn_mask"] = copies.reshape(-1, *inner[1:])
    return function(**given)


def _attend(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    special = (bias_k, bias_v, static_k, static_v)
    if any(extra is not None for extra in special) or add_zero_attn or query.dim() != 3:
        raise UnsupportedUseError
    target = tape.target(out_proj_weight)
    what = place(tape, "attention", target)
    # The function takes (positions, batch, width); the tape wants records first. What it calls
    # batch may be records merged with windows, or stand in another order.
    turned = query.transpose(0, 1)
    layout = tape.layout(what, turned, -1, tape.bases(target))
    if layout.constant or layout.order is not None:
        raise UnsupportedUseError
    same = query is key and key is value
    first = [tensor.transpose(0, 1) for tensor in (query, key, value)]
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
        parts = [
            _project(tape, x, w, in_proj_bias, i, None)
            for i, (x, w) in enumerate(zip(first, weights, strict=True))
        ]
    elif same:
        assert in_proj_weight is not None
        targets = (tape.target(in_proj_weight), tape.target(in_proj_bias))
        packed = tapped_linear(tape, first[0], in_proj_weight, in_proj_bias, targets)
        parts = list(packed.chunk(3, dim=-1))
    else:
        assert in_proj_weight is not None
        parts = [_project(tape, x, in_proj_weight, in_proj_bias, i, 3) for i, x in enumerate(first)]
    heads = [part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2) for part in parts]
    mask = _mask(heads[0], heads[1], key_padding_mask, attn_mask, is_causal)
    drop = dropout_p if training else 0.0
    if need_weights:
        scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(heads[0].shape[-1])
        weights_ = functional.softmax(scores if mask is None else scores + mask, dim=-1)
        weights_ = functional.dropout(weights_, drop) if drop else weights_
        mixed = weights_ @ heads[2]
    else:
        mixed = functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], attn_mask=mask, dropout_p=drop
        )
        weights_ = None
    joined = mixed.transpose(1, 2).flatten(2)
    targets = (tape.target(out_proj_weight), tape.target(out_proj_bias))
    output = tapped_linear(tape, joined, out_proj_weight, out_proj_bias, targets)
    if weights_ is not None and average_attn_weights:
        weights_ = weights_.mean(1)
    return output.transpose(0, 1), weights_


def _project(
    tape: Tape,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    index: int,
    packed: int | None,
) -> Tensor:
    """Projection number `index`: rows of a packed weight, or a weight of its own."""
    assert weight is not None
    size = weight.shape[0] // packed if packed else weight.shape[0]
    rows = (index * size, (index + 1) * size)
    target = tape.target(weight)
    if target is not None and packed:
        target = Target(target.name, target.shape, rows)
    bias_target = tape.target(bias)
    if bias_target is not None:
        bias_target = Target(bias_target.name, bias_target.shape, rows)
    part = weight.detach()[rows[0] : rows[1]] if packed else weight
    own = None if bias is None else bias.detach()[rows[0] : rows[1]]
    if part.requires_grad is False and (target is not None or bias_target is not None):
        # Only so that autograd visits the layer; its gradient goes to the tape.
        part = part.requires_grad_()
        tape.anchors.append(part)
    return tapped_linear(tape, x, part, own, (target, bias_target))


def _mask(
    query: Tensor, key: Tensor, padding: Tensor | None, mask: Tensor | None, causal: bool
) -> Tensor | None:
    """One additive mask (batch or 1, heads or 1, queries, keys)."""

    def additive(value: Tensor) -> Tensor:
        if value.dtype != torch.bool:
            return value.to(query.dtype)
        return torch.zeros_like(value, dtype=query.dtype).masked_fill(value, -torch.inf)

    total: Tensor | None = None
    if mask is not None:
        total = additive(mask)
        if total.dim() == 3:
            total = total.reshape(query.shape[0], -1, *total.shape[1:])
            if total.shape[1] not in (1, query.shape[1]):
                raise UnsupportedUseError
    elif causal:
        length = query.shape[2], key.shape[2]
        total = additive(torch.ones(length, dtype=torch.bool, device=query.device).triu(1))
    if padding is not None:
        extra = additive(padding)[:, None, None, :]
        total = extra if total is None else total + extra
    return total
