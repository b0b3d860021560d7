"""Rules of arithmetic between tensors of one record, and with public constants.

Proof: docs/proofs/layers.md#arithmetic.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from noisewise.arithmetic import hypotenuse, loose, product, quotient, root, total
from noisewise.bounds.layer import Call, Diagonal, LayerRule
from noisewise.bounds.rules.vectors import vector_norm, wide

__all__ = [
    "Choice",
    "Concatenation",
    "EntrywiseIsometry",
    "Gate",
    "Reduction",
    "Repetition",
    "Scale",
    "Shift",
    "Sum",
]


def _spread(call: Call[Any], index: int) -> float:
    """Growth of a norm when a tensor is broadcast to the output's shape."""
    return root(call.size // max(call.inputs[index].size, 1))


class EntrywiseIsometry(LayerRule[Any]):
    """Absolute value and sign change."""

    def lipschitz(self, call: Call[Any]) -> float:
        return 1.0

    def diagonal(self, call: Call[Any]) -> Diagonal:
        return Diagonal(1.0, 1.0, 0.0)


class Sum(LayerRule[Any]):
    """Residual sum: norms add, and each branch receives the whole cotangent.

    Proof: docs/proofs/layers.md#residual.
    """

    def lipschitz(self, call: Call[Any]) -> float:
        return self.lipschitz_of(call, 0)

    def lipschitz_of(self, call: Call[Any], index: int) -> float:
        return _spread(call, index)

    def output_norm(self, call: Call[Any]) -> float:
        return total(*(product(_spread(call, i), s.norm) for i, s in enumerate(call.inputs)))


class Choice(LayerRule[Any]):
    """Larger or smaller of two tensors, entry by entry: no more than both together."""

    def lipschitz(self, call: Call[Any]) -> float:
        return self.lipschitz_of(call, 0)

    def lipschitz_of(self, call: Call[Any], index: int) -> float:
        return _spread(call, index)

    def output_norm(self, call: Call[Any]) -> float:
        return hypotenuse(*(product(_spread(call, i), s.norm) for i, s in enumerate(call.inputs)))


class Gate(LayerRule[Any]):
    """Product of two tensors of a record: ||x * y|| <= ||x|| ||y||, each the other's Jacobian."""

    def lipschitz(self, call: Call[Any]) -> float:
        return self.lipschitz_of(call, 0)

    def lipschitz_of(self, call: Call[Any], index: int) -> float:
        return call.inputs[1 - index].norm

    def output_norm(self, call: Call[Any]) -> float:
        return product(call.inputs[0].norm, call.inputs[1].norm)


class Concatenation(LayerRule[Any]):
    """Side by side: squares of norms add."""

    def lipschitz(self, call: Call[Any]) -> float:
        return 1.0

    def output_norm(self, call: Call[Any]) -> float:
        return hypotenuse(*(signal.norm for signal in call.inputs))


class Repetition(LayerRule[Any]):
    """Every entry the same number of times."""

    def lipschitz(self, call: Call[Any]) -> float:
        return _spread(call, 0)


@dataclass(frozen=True)
class Scale(LayerRule[Any]):
    """Product with a public constant, broadcast if need be."""

    factor: float | Tensor

    def lipschitz(self, call: Call[Any]) -> float:
        factor = wide(torch.as_tensor(self.factor))
        return product(_spread(call, 0), loose(float(factor.abs().max())))


@dataclass(frozen=True)
class Shift(LayerRule[Any]):
    """Sum with a public constant, broadcast if need be."""

    constant: float | Tensor

    def lipschitz(self, call: Call[Any]) -> float:
        return _spread(call, 0)

    def output_norm(self, call: Call[Any]) -> float:
        constant = wide(torch.as_tensor(self.constant))
        repeated = root(call.size / max(constant.numel(), 1))
        return total(product(_spread(call, 0), call.norm), product(repeated, vector_norm(constant)))


@dataclass(frozen=True)
class Reduction(LayerRule[Any]):
    """Sum, mean or selection over some axes of a record, m entries into one."""

    kind: Literal["sum", "mean", "select"]

    def lipschitz(self, call: Call[Any]) -> float:
        entries = call.inputs[0].size / max(call.size, 1)
        if self.kind == "select":
            return 1.0
        return root(entries) if self.kind == "sum" else quotient(1.0, entries**0.5 * (1 - 1e-15))
