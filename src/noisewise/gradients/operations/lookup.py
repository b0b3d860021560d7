"""Embeddings and bags of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions import RowsContraction, Target
from noisewise.gradients.operations.dense import seen_as
from noisewise.gradients.operations.registry import (
    ConstantUseError,
    UnsupportedUseError,
    derive,
    handles,
    layout_of_use,
    place,
)
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted
from noisewise.separation import RefusedError, place as line

__all__ = ["bag", "embed"]


class _Embed(OwnFunction):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, tokens: Tensor, skipped: int | None, tape: Tape, table: Target
    ) -> Tensor:
        # A token that is not in the table would raise, and by ending tell that it was drawn.
        tokens = tokens.clamp(0, weight.shape[0] - 1)
        ctx.save_for_backward(tokens)
        ctx.skipped, ctx.tape, ctx.table = skipped, tape, table
        return functional.embedding(tokens, weight)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (tokens,) = ctx.saved_tensors
        records = ctx.tape.records
        width = cotangents[0].shape[-1]
        per_record = tokens.numel() // max(records, 1)
        ctx.tape.arrive(
            RowsContraction(
                tokens.reshape(records, per_record),
                cotangents[0].reshape(records, per_record, width),
                ctx.table,
                ctx.skipped,
            )
        )
        return None, None, None, None, None


@handles(functional.embedding, torch.embedding)
def embed(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of a table; a lookup that is the same for all records is part of the table."""
    if function is torch.embedding:
        raise UnsupportedUseError
    return _embed(tape, *args, **kwargs)


def _embed(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    target = tape.target(weight)
    if target is None or tape.target(input) is not None:
        raise UnsupportedUseError
    what = place(tape, "embedding", target)
    if max_norm is not None or scale_grad_by_freq:
        option = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise RefusedError(
            f"{what}, called at {line()}, uses {option}, which depends on the tokens of the whole "
            "batch",
            "Turn it off.",
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    layout = tape.layout(what, input, 0, tape.bases(target))
    if layout.constant:
        whole: Tensor = derive(tape, functional.embedding, (input, weight, padding_idx), {})
        return whole
    tape.use(target)
    first = layout.first(input, 0)
    result: Tensor = _Embed.apply(weight, first, padding_idx, tape, target)  # type: ignore[no-untyped-call]
    return layout.back(result, input, 0)


@handles(Tensor.__getitem__)
def pick(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of a table by number, or entries by several, written as an index."""
    table, index = args
    target = tape.target(table)
    numbers = index if isinstance(index, tuple) else (index,)
    tensors = [part for part in numbers if isinstance(part, Tensor)]
    if all(tape.is_constant(part) for part in tensors):
        raise ConstantUseError
    whole = len(tensors) == len(numbers) <= table.dim()
    if target is None or not whole or any(t.dtype != torch.long or not t.dim() for t in tensors):
        if target is not None and tape.are_public(tensors, "index"):
            raise ConstantUseError
        raise UnsupportedUseError
    rows = torch.zeros((), dtype=torch.long, device=table.device)
    for size, part in zip(table.shape, tensors, strict=False):
        rows = rows * size + torch.where(part < 0, part + size, part).clamp(0, size - 1)
    rest = table.shape[len(tensors) :]
    if len(tensors) == 1 and len(rest) == 1:
        return _embed(tape, rows, table)
    lines = seen_as(tape, table, table.reshape(-1, rest.numel()))
    layout = layout_of_use(tape, "index", rows, 0, table)
    tape.use(target)
    first = layout.first(rows, 0)
    result: Tensor = _Embed.apply(lines, first, None, tape, target)  # type: ignore[no-untyped-call]
    return layout.back(result, rows, 0).reshape(*rows.shape, *rest)


@handles(functional.embedding_bag)
def bag(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A bag is a lookup, then a sum, mean or maximum."""
    return _bag(tape, *args, **kwargs)


def _bag(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    if offsets is not None:
        input, per_sample_weights = _listed(
            tape, input, per_sample_weights, offsets, include_last_offset
        )
    if input.dim() != 2:
        raise RefusedError(
            f"{place(tape, 'embedding_bag', tape.target(weight))} gets something else than "
            "tokens of bags",
            "Give it tokens of shape (bags, tokens), padded with padding_idx, or a list of "
            "tokens with offsets.",
        )
    rows = _embed(tape, input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    kept = torch.ones_like(input, dtype=torch.bool)
    if padding_idx is not None:
        padding_idx += weight.shape[0] if padding_idx < 0 else 0
        kept = input != padding_idx
    if mode == "max":
        low = torch.finfo(rows.dtype).min
        found = rows.masked_fill(~kept.unsqueeze(-1), low).amax(1)
        return torch.where(kept.any(1, keepdim=True), found, torch.zeros_like(found))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    summed = (rows * kept.unsqueeze(-1)).sum(1)
    if mode == "sum":
        return summed
    return summed / kept.sum(1, keepdim=True).clamp_min(1)


def _listed(
    tape: Tape,
    tokens: Tensor,
    weights: Tensor | None,
    offsets: Tensor,
    last_included: bool,
) -> tuple[Tensor, Tensor | None]:
    """Bags of one length, whose borders follow from constants, as rows of tokens."""
    if tape.watch is not None and not tape.watch.shadow.const(offsets):
        raise RefusedError(
            f"embedding_bag, called at {line()}, gets offsets that are not constant, so it cannot "
            "be told which tokens belong to which record",
            "Give it tokens of shape (batch, tokens), "
            "padded with padding_idx, or offsets made by torch.arange.",
        )
    borders = offsets[:-1] if last_included else offsets
    bags = borders.shape[0]
    if bags == 0 or tokens.shape[0] % bags:
        raise RefusedError(
            "embedding_bag gets bags of different lengths",
            "Pad them to one length with padding_idx.",
        )
    length = tokens.shape[0] // bags
    if tape.watch is not None:
        with tape.watch.pause():
            regular = torch.arange(0, tokens.shape[0], length, device=borders.device)
            if not torch.equal(borders, regular.to(borders.dtype)):
                raise RefusedError(
                    "embedding_bag gets bags of different lengths",
                    "Pad them to one length with padding_idx.",
                )
    shaped = None if weights is None else weights.reshape(bags, length)
    return tokens.reshape(bags, length), shaped
