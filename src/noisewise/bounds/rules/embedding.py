"""Rules of embeddings: the input is a list of T tokens, which have no norm and no gradient.

Proof: docs/proofs/layers.md#embedding.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from typing import Any

from torch import nn

from noisewise.arithmetic import product, root
from noisewise.bounds.layer import Call, LayerRule
from noisewise.bounds.registry import register
from noisewise.bounds.rules.vectors import largest_row, vector_norm

__all__ = ["EmbeddingBagRule", "EmbeddingRule"]


class _Lookup(LayerRule[Any]):
    parameters = ("weight",)

    def check(self, call: Call[Any]) -> None:
        module = call.module
        if module.max_norm is not None:
            call.refuse(
                "with max_norm rescales exactly the rows that the batch looks up, so the weights "
                "would tell which tokens occurred.",
                "Set max_norm=None and project all rows after each step.",
            )
        if module.scale_grad_by_freq:
            call.refuse(
                "with scale_grad_by_freq divides by token counts of the whole batch, so one "
                "record's gradient depends on the others.",
                "Set scale_grad_by_freq=False.",
            )

    def lipschitz(self, call: Call[Any]) -> float:
        return 0.0

    def tokens(self, call: Call[Any]) -> int:
        """Tokens of one record."""
        return math.prod(call.shape)


@register(nn.Embedding)
class EmbeddingRule(_Lookup):
    """T rows side by side; a row that is looked up T times gets the sum of T cotangents."""

    def output_norm(self, call: Call[nn.Embedding]) -> float:
        return product(root(self.tokens(call)), largest_row(call.module.weight))

    def parameter_factors(self, call: Call[nn.Embedding]) -> dict[str, float]:
        return {"weight": root(self.tokens(call))}


@register(nn.EmbeddingBag)
class EmbeddingBagRule(_Lookup):
    """Sum, mean or maximum of T rows; (B, T) input without offsets."""

    def check(self, call: Call[nn.EmbeddingBag]) -> None:
        super().check(call)
        if len(call.shape) != 1:
            call.refuse(
                "needs one list of tokens per record, so that no bag crosses records.",
                "Give it input of shape (batch, tokens) without offsets.",
            )

    def output_norm(self, call: Call[nn.EmbeddingBag]) -> float:
        weight, tokens = call.module.weight, self.tokens(call)
        row = largest_row(weight)
        if call.module.mode == "sum":
            return product(tokens, row)
        if call.module.mode == "mean":
            return row
        columns = weight.detach().abs().amax(dim=0)
        return min(product(root(tokens), row), vector_norm(columns))

    def parameter_factors(self, call: Call[nn.EmbeddingBag]) -> dict[str, float]:
        # Row v gets (count_v / divisor) d; of all counts that sum to T, one alone is largest.
        return {"weight": float(self.tokens(call)) if call.module.mode == "sum" else 1.0}
