"""Bounds carried through a model: norms forward, cotangents backward (Béthune et al. 2024).

Forward, every node gets a bound on the norm of a record's tensor. Backward, starting from the
loss constant, every node gets a bound on the norm of the cotangent of its output: the sum over
all nodes that read it, which gives residual branches L_a + L_b and not L_a * L_b
(docs/proofs/layers.md#residual). A parameter's gradient is at most the sum over its uses of
factor times cotangent, so tied weights are covered. Nothing depends on data; every operation
rounds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from noisewise import checks
from noisewise.arithmetic import product, total
from noisewise.bounds.cache import NormCache
from noisewise.bounds.graph import Graph
from noisewise.bounds.improvements import (
    Balance,
    Chain,
    Head,
    Improvements,
    find_chains,
    find_head,
)
from noisewise.bounds.layer import Call, LateSignal, LayerBounds, LayerRule, NormMemory, Signal
from noisewise.bounds.losses import LossRule
from noisewise.bounds.rules.linear import LinearRule
from noisewise.errors import UnsupportedModelError

__all__ = ["Propagation", "propagate", "uses_of"]


@dataclass(frozen=True)
class Propagation:
    """Bounds of all layers, and of each parameter's gradient for one record."""

    layers: tuple[LayerBounds, ...]
    gradients: dict[str, float]
    loss_lipschitz: float
    output_norm: float
    input_cotangent: float


def propagate(
    graph: Graph,
    input_norm: float,
    loss: tuple[LossRule[Any], Any] | float,
    *,
    improvements: Improvements | None = None,
    loss_clip: float | None = None,
    cache: NormCache | None = None,
) -> Propagation:
    """Bound every layer's output, cotangent and gradients for one record.

    Parameters
    ----------
    graph : Graph
        The traced model; its weights are read as they are now.
    input_norm : float
        Bound on the norm of a record; ``inf`` if the model bounds it by itself.
    loss : (LossRule, loss) or float
        The loss with its rule, or a bound on its gradient with respect to the output.
    loss_clip : float, optional
        A limit to which each record's loss gradient is clipped before it is propagated.
    cache : NormCache, optional
        Remembers certified norms from one propagation to the next, for training steps.
    """
    improvements = Improvements() if improvements is None else improvements
    return _Pass(graph, input_norm, loss, improvements, loss_clip, cache).run()


def uses_of(
    graph: Graph,
    groups: Sequence[Sequence[str]],
    input_norm: float,
    loss: tuple[LossRule[Any], Any] | float,
    *,
    improvements: Improvements | None = None,
    loss_clip: float | None = None,
    cache: NormCache | None = None,
) -> list[list[float]]:
    """Bound the cotangents of all uses of a layer, for groups of parameters, and nothing else.

    The same numbers as those of `propagate`, from which it takes its parameters. Norms of
    weights are certified only where such a bound depends on them: behind a layer that gives every
    cotangent a bound of its own, none is.
    """
    improvements = Improvements() if improvements is None else improvements
    run = _Pass(graph, input_norm, loss, improvements, loss_clip, cache)
    return run.uses([frozenset(names) for names in groups])


class _Pass:
    def __init__(
        self,
        graph: Graph,
        input_norm: float,
        loss: tuple[LossRule[Any], Any] | float,
        improvements: Improvements,
        loss_clip: float | None,
        cache: NormCache | None,
    ) -> None:
        self.graph, self.loss, self.use, self.loss_clip = graph, loss, improvements, loss_clip
        if not math.isinf(input_norm):
            checks.positive("input_norm", input_norm, zero=True)
        self.norms = NormMemory(cache)
        self.signals: list[Signal] = [Signal(graph.input_shape, float(input_norm))]
        self.calls: list[Call[Any]] = [graph.nodes[0].call((), self.norms)]
        chains: list[Chain] = find_chains(graph) if improvements.balancing else []
        self.balance = Balance.of(graph, chains)
        self.dense = {position for chain in chains for position in chain.dense}
        self.head = self._head()

    def _head(self) -> Head | None:
        position = find_head(self.graph)
        if position is None or isinstance(self.loss, float):
            return None
        node = self.graph.nodes[position]
        rule = node.rule
        assert isinstance(rule, LinearRule)
        call = node.call((), self.norms)
        return Head(position, rule.matrix(call), getattr(node.module, "bias", None))

    def run(self) -> Propagation:
        self._forward()
        constant, simplex = self._loss()
        layers, gradients, reaching = self._backward(constant, simplex)
        for name, value in gradients.items():
            if not math.isfinite(value):
                self._refuse_unbounded(name)
        return Propagation(layers, gradients, constant, self.signals[-1].norm, reaching)

    def uses(self, groups: Sequence[frozenset[str]]) -> list[list[float]]:
        if self.dense:  # Balanced norms are carried along, layer by layer.
            self._forward()
        else:
            self._prepare()
        self._arriving: dict[int, float] = {}
        found: list[list[float]] = [[] for _ in groups]
        for position, node in enumerate(self.graph.nodes):
            for names, uses in zip(groups, found, strict=True):
                if own := names.intersection(node.parameters.values()):
                    known = node.rule.own_gradients(self.calls[position])
                    named = {name: local for local, name in node.parameters.items()}
                    if all(named[name] in known for name in own):
                        uses.append(total(*(known[named[name]] for name in own)))
                        continue
                    uses.append(self._cotangent(position))
                    if not math.isfinite(uses[-1]):
                        self._refuse_unbounded(next(iter(own)))
        return found

    def _prepare(self) -> None:
        """Let every norm be bounded when it is asked for."""
        for position, node in enumerate(self.graph.nodes[1:], start=1):
            call = node.call(tuple(self.signals[i] for i in node.inputs), self.norms)
            node.rule.check(call)
            self.calls.append(call)
            self.signals.append(LateSignal(node.shape, partial(self._norm_at, position)))

    def _norm_at(self, position: int) -> float:
        return self._finite(position, self.graph.nodes[position].rule, self.calls[position])

    def _cotangent(self, position: int) -> float:
        """Bound on the cotangent of a node's output, from those who read it."""
        if position not in self._arriving:
            terms = []
            if position == len(self.graph.nodes) - 1:
                terms.append(self._loss()[0])
            for reader in range(len(self.graph.nodes) - 1, position, -1):
                node = self.graph.nodes[reader]
                for index, source in enumerate(node.inputs):
                    if source == position:
                        terms.append(self._sent(reader, index))
            self._arriving[position] = total(*terms)
        return self._arriving[position]

    def _sent(self, position: int, index: int) -> float:
        """Bound on what a node sends to one of its inputs."""
        node, call = self.graph.nodes[position], self.calls[position]
        arriving = math.inf if node.rule.renews else self._cotangent(position)
        sent = node.rule.cotangent(call, index, arriving)
        if isinstance(node.rule, LinearRule):
            simplex = self._loss()[1] if self.head and self.head.position == position else None
            sent = min([sent, *self._smaller(position, arriving, simplex)])
        elif position in self.balance.owners:
            self.balance.pass_backward(position, call, node.rule)
        return sent

    def _finite(self, position: int, rule: LayerRule[Any], call: Call[Any]) -> float:
        norm = rule.output_norm(call)
        if math.isnan(norm):
            node = self.graph.nodes[position]
            raise UnsupportedModelError(
                f'{node.kind} at "{node.path}" has weights that are not finite, so nothing can '
                "be bounded. Load finite weights."
            )
        return norm

    def _forward(self) -> None:
        for position, node in enumerate(self.graph.nodes[1:], start=1):
            call = node.call(tuple(self.signals[i] for i in node.inputs), self.norms)
            node.rule.check(call)
            norm = self._finite(position, node.rule, call)
            if position in self.dense and isinstance(node.rule, LinearRule):
                norm = min(norm, self.balance.output_norm(position, call, node.rule))
            elif position in self.balance.owners:
                self.balance.pass_forward(position, call, node.rule)
            self.calls.append(call)
            self.signals.append(Signal(node.shape, norm))

    def _loss(self) -> tuple[float, float | None]:
        """Bound on the loss gradient, and the scale of the polytope that holds it."""
        if isinstance(self.loss, float):
            return self._clipped(self.loss), None
        rule, loss = self.loss
        output = self.signals[-1]
        rule.check(loss, output)
        seen = Signal(output.shape, output.norm if self.use.bounded_logits else math.inf)
        if self.use.bounded_logits and self.use.centred and rule.shift_invariant and self.head:
            entering = self.calls[self.head.position].norm
            centred = total(product(self.head.centred_norm, entering), self.head.centred_bias())
            seen = Signal(output.shape, min(seen.norm, centred))
        # Losses whose very constant is the range of the output (squares) need it in any case.
        constant = rule.lipschitz(loss, seen)
        if math.isinf(constant):
            constant = rule.lipschitz(loss, output)
        return self._clipped(constant), rule.simplex(loss, seen)

    def _clipped(self, constant: float) -> float:
        return constant if self.loss_clip is None else min(constant, self.loss_clip)

    def _backward(
        self, constant: float, simplex: float | None
    ) -> tuple[tuple[LayerBounds, ...], dict[str, float], float]:
        arriving: list[list[float]] = [[] for _ in self.graph.nodes]
        arriving[-1].append(constant)
        gradients: dict[str, list[float]] = {name: [] for name in self.graph.parameters}
        layers: list[LayerBounds] = []
        for position in range(len(self.graph.nodes) - 1, 0, -1):
            node, call = self.graph.nodes[position], self.calls[position]
            cotangent = total(*arriving[position])
            passed = [
                node.rule.cotangent(call, index, cotangent) for index in range(len(node.inputs))
            ]
            if isinstance(node.rule, LinearRule):
                passed[0] = min([passed[0], *self._smaller(position, cotangent, simplex)])
            elif position in self.balance.owners:
                self.balance.pass_backward(position, call, node.rule)
            for source, value in zip(node.inputs, passed, strict=True):
                arriving[source].append(value)
            layers.append(self._layer(position, cotangent, tuple(passed), gradients))
        bounds = {name: total(*uses) for name, uses in gradients.items()}
        return tuple(reversed(layers)), bounds, total(*arriving[0])

    def _smaller(self, position: int, cotangent: float, simplex: float | None) -> list[float]:
        """Other valid bounds on what a dense layer sends to its input."""
        ways = []
        rule, call = self.graph.nodes[position].rule, self.calls[position]
        assert isinstance(rule, LinearRule)
        if self.head is not None and self.head.position == position:
            if self.use.polytope and simplex is not None:
                ways.append(product(simplex, self.head.widest_gap()))
            if (
                self.use.centred
                and not isinstance(self.loss, float)
                and self.loss[0].shift_invariant
            ):
                ways.append(product(self.head.centred_norm, cotangent))
        if position in self.dense:
            ways.append(self.balance.cotangent(position, rule.matrix(call), cotangent))
        return ways

    def _layer(
        self,
        position: int,
        cotangent: float,
        passed: tuple[float, ...],
        gradients: dict[str, list[float]],
    ) -> LayerBounds:
        node, call = self.graph.nodes[position], self.calls[position]
        known = node.rule.parameter_factors(call) if node.parameters else {}
        bounded = node.rule.own_gradients(call)
        factors, own = {}, {}
        for local, name in node.parameters.items():
            if local not in known:
                raise UnsupportedModelError(
                    f'{node.kind} at "{node.path}" has the parameter {local!r}, for which the rule '
                    f"{node.rule.name} gives no bound."
                )
            factors[name] = known[local]
            own[name] = bounded.get(local, product(known[local], cotangent))
            gradients[name].append(own[name])
        return LayerBounds(
            path=node.path,
            kind=node.kind,
            rule=node.rule.name,
            input_norm=max(signal.norm for signal in call.inputs),
            output_norm=self.signals[position].norm,
            lipschitz=node.rule.lipschitz(call),
            cotangent=cotangent,
            passed=passed,
            factors=factors,
            gradients=own,
            output_shape=node.shape,
            module=node.module,
        )

    def _refuse_unbounded(self, name: str) -> None:
        for node, signal in zip(self.graph.nodes, self.signals, strict=True):
            if math.isinf(signal.norm):
                raise UnsupportedModelError(
                    f'the gradient of "{name}" has no bound, because the norm of a record at '
                    f'"{node.path}" has none. Start the model with noisewise.nn.BoundedInput, or '
                    "state input_norm and keep that promise."
                )
        raise UnsupportedModelError(
            f'the gradient of "{name}" has no bound, because a cotangent has none on the way back '
            "to it. Look for a layer or loss without a finite Lipschitz constant (for example "
            "BoundedInput in mode 'normalise' after a layer that learns)."
        )
