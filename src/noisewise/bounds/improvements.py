"""Smaller bounds that hold as well (docs/proofs/layers.md#improvements).

Each is a valid bound by itself and is used only as a minimum with the plain one.

``polytope``        Gradients of cross-entropy lie in conv{e_j - e_y}. Through the last matrix W
                    they have norm at most max ||w_j - w_y||, instead of sqrt(2) ||W||.
``centred``         They sum to zero, so W may be replaced by W minus its mean row; likewise the
                    logits that the loss sees are the centred ones.
``bounded_logits``  Logits of bounded norm bound the probabilities, and so ||p - e_y||.
``balancing``       Between two matrices an entrywise layer has a diagonal Jacobian D, which
                    commutes with a diagonal R > 0: W2 D W1 = (W2 R) D (R^-1 W1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from noisewise.arithmetic import product, root, total
from noisewise.bounds.graph import Graph
from noisewise.bounds.layer import Call, LayerRule, NormMemory
from noisewise.bounds.norms import spectral_norm
from noisewise.bounds.rules.linear import LinearRule
from noisewise.bounds.rules.vectors import largest_row, vector_norm, wide

__all__ = ["Balance", "Head", "Improvements", "find_chains", "find_head"]


@dataclass(frozen=True)
class Improvements:
    """Which of the smaller bounds to use; all are sound, balancing costs three norms a layer."""

    polytope: bool = True
    centred: bool = True
    bounded_logits: bool = True
    balancing: bool = True

    @classmethod
    def none(cls) -> Improvements:
        """Return the plain bounds of the layer table."""
        return cls(False, False, False, False)


@dataclass(frozen=True)
class Head:
    """The matrix whose outputs are the logits, as the loss sees it, at the weights of one step."""

    position: int
    matrix: Tensor
    bias: Tensor | None

    @cached_property
    def centred_norm(self) -> float:
        """Norm of the matrix after its mean row is taken away."""
        matrix = wide(self.matrix)
        # Removing the mean again leaves the rounding error of the first removal, which the
        # certified norm of the stored result does not see; it is below this slack.
        centred = matrix - matrix.mean(dim=0, keepdim=True)
        slack = 1e-15 * matrix.shape[0] * float(matrix.abs().sum())
        return total(spectral_norm(centred).value, slack)

    def centred_bias(self) -> float:
        """Norm of the bias after its mean is taken away."""
        if self.bias is None:
            return 0.0
        bias = wide(self.bias)
        slack = 1e-15 * bias.shape[0] * float(bias.abs().sum())
        return total(vector_norm(bias - bias.mean()), slack)

    def gaps(self) -> Tensor:
        """Distances between all rows, ||w_j - w_y||, rounded up."""
        matrix = wide(self.matrix.detach())
        slack = 1e-15 * float(matrix.abs().amax(dim=0).sum()) * matrix.shape[1]
        rows = [torch.linalg.vector_norm(matrix - row, dim=1) for row in matrix]
        return torch.stack(rows) * (1 + 1e-12) + slack

    def widest_gap(self) -> float:
        """Largest distance between two rows, max ||w_j - w_y||."""
        matrix = wide(self.matrix)
        slack = 1e-15 * float(matrix.abs().amax(dim=0).sum())
        widest = 0.0
        for row in matrix:
            widest = max(widest, largest_row(matrix - row))
        return total(widest, slack)


def find_head(graph: Graph) -> int | None:
    """Position of a dense layer (one position per record) that gives the model's output."""
    position = len(graph.nodes) - 1
    while True:
        node = graph.nodes[position]
        if isinstance(node.rule, LinearRule):
            return position if len(node.shape) == 1 else None
        if not node.rule.aligned or len(node.inputs) != 1:
            return None
        source = node.inputs[0]
        if len(graph.users(source)) != 1 or graph.nodes[source].shape != node.shape:
            return None
        position = source


@dataclass(frozen=True)
class Chain:
    """Dense layers with only entrywise layers, each read once, between them."""

    dense: tuple[int, ...]
    between: dict[int, int]


def find_chains(graph: Graph) -> list[Chain]:
    """Maximal runs dense, entrywise..., dense, ... of a graph."""
    following: dict[int, int] = {}
    between: dict[int, int] = {}
    for start, node in enumerate(graph.nodes):
        if not isinstance(node.rule, LinearRule):
            continue
        path: list[int] = []
        users = graph.users(start)
        while len(users) == 1:
            user = graph.nodes[users[0]]
            if isinstance(user.rule, LinearRule):
                following[start] = users[0]
                between.update(dict.fromkeys(path, start))
                break
            if not _entrywise(user.rule):
                break
            path.append(users[0])
            users = graph.users(users[0])
    chains = []
    for start in following:
        if start in following.values():
            continue
        dense = [start]
        while dense[-1] in following:
            dense.append(following[dense[-1]])
        inside = {p: owner for p, owner in between.items() if owner in dense}
        chains.append(Chain(tuple(dense), inside))
    return chains


def _entrywise(rule: LayerRule[object]) -> bool:
    return type(rule).diagonal is not LayerRule.diagonal


@dataclass
class Balance:
    """Weighted norms along the chains of one propagation.

    Hidden layer j of a chain gets scales R_j. Forward it keeps a bound on ||R_j^-1 h_j||,
    backward on ||R_j g_j||; both pass entrywise layers like plain norms.
    """

    scales: dict[int, Tensor] = field(default_factory=dict)
    below: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    memory: NormMemory = field(default_factory=NormMemory)

    @classmethod
    def of(cls, graph: Graph, chains: list[Chain]) -> Balance:
        """Choose the scales that equalise rows of a matrix and columns of the next."""
        balance = cls()
        for chain in chains:
            balance.owners.update(chain.between)
            for first, second in zip(chain.dense, chain.dense[1:], strict=False):
                balance.below[second] = first
                balance.scales[first] = _scales(_matrix(graph, first), _matrix(graph, second))
        return balance

    def _norm(self, position: int, matrix: Tensor, left: bool, right: bool) -> float:
        """Certified norm of R^-1 W, W R' or R^-1 W R', R' the scales of the layer below."""

        def compute() -> float:
            scaled = wide(matrix)
            if left:
                scaled = scaled / self.scales[position].to(scaled.device)[:, None]
            if right:
                scaled = scaled * self.scales[self.below[position]].to(scaled.device)[None, :]
            # Two roundings per entry change the norm by no more than their sum of squares.
            slack = 3e-16 * float(torch.linalg.vector_norm(scaled))
            return total(spectral_norm(scaled).value, slack)

        return self.memory.of((position, left, right), compute)

    def _spread(self, position: int, vector: Tensor | None) -> float:
        if vector is None:
            return 0.0
        long = wide(vector)
        return product(1 + 4e-16, vector_norm(long / self.scales[position].to(long.device)))

    def output_norm(self, position: int, call: Call[object], rule: LinearRule) -> float:
        """Bound on a dense layer's output; remembers the weighted one."""
        linear: Call[object] = call
        matrix = rule.matrix(linear)  # type: ignore[arg-type]
        bias: Tensor | None = getattr(call.module, "bias", None)
        across = root(LinearRule.positions(linear))  # type: ignore[arg-type]
        entering = self.forward.get(self.below.get(position, -1))
        plain = float("inf")
        if entering is not None:
            gain = self._norm(position, matrix, left=False, right=True)
            plain = total(product(gain, entering), product(across, vector_norm(bias)))
        if position in self.scales:
            ways = [product(self._norm(position, matrix, True, False), call.norm)]
            if entering is not None:
                ways.append(product(self._norm(position, matrix, True, True), entering))
            shift = product(across, self._spread(position, bias))
            self.forward[position] = total(min(ways), shift)
        return plain

    def pass_forward(self, position: int, call: Call[object], rule: LayerRule[object]) -> None:
        """Take the weighted norm through an entrywise layer."""
        owner, known = self.owners[position], rule.diagonal(call)
        if known is None:
            self.forward.pop(owner, None)
            return
        entries = len(self.scales[owner])
        spread = product(
            root(call.size / entries), self._spread(owner, torch.ones(entries, dtype=torch.float64))
        )
        self.forward[owner] = total(
            product(known.growth, self.forward[owner]), product(known.offset, spread)
        )

    def cotangent(self, position: int, matrix: Tensor, arriving: float) -> float:
        """Bound on what a dense layer sends down; remembers the weighted one."""
        entering = self.backward.get(position)
        plain = float("inf")
        if entering is not None:
            plain = product(self._norm(position, matrix, left=True, right=False), entering)
        if position in self.below:
            ways = [product(self._norm(position, matrix, False, True), arriving)]
            if entering is not None:
                ways.append(product(self._norm(position, matrix, True, True), entering))
            self.backward[self.below[position]] = min(ways)
        return plain

    def pass_backward(self, position: int, call: Call[object], rule: LayerRule[object]) -> None:
        """Take the weighted cotangent through an entrywise layer."""
        owner, known = self.owners[position], rule.diagonal(call)
        if known is None:
            self.backward.pop(owner, None)
        elif owner in self.backward:
            self.backward[owner] = product(known.slope, self.backward[owner])


def _matrix(graph: Graph, position: int) -> Tensor:
    node = graph.nodes[position]
    call = Call(node.module, node.path, (), node.shape)
    return node.rule.matrix(call).detach()  # type: ignore[attr-defined, no-any-return]


def _scales(first: Tensor, second: Tensor) -> Tensor:
    """sqrt(row norm above / column norm below), one where either vanishes; any choice is sound."""
    rows = torch.linalg.vector_norm(wide(first), dim=1)
    columns = torch.linalg.vector_norm(wide(second), dim=0)
    ratio = (rows / columns).sqrt()
    usable = torch.isfinite(ratio) & (ratio > 0)
    middle = ratio[usable].log().mean().exp() if bool(usable.any()) else torch.tensor(1.0)
    return torch.where(usable, ratio / middle, torch.ones_like(ratio)).clamp(1e-6, 1e6)
