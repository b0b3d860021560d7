"""Limits of the estimators that need a Lipschitz model: bounds propagated at every step.

Propagated: the propagated bound of each parameter. InputScaled: a record's layer gradient,
divided by its own input norm, is at most the bound on the cotangent, summed over the uses of
the layer. A group with a parameter whose input norm is not measured (a bare scale) keeps
factor one and the propagated bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.arithmetic import hypotenuse, total
from noisewise.bounds import (
    Graph,
    Improvements,
    NormCache,
    Propagation,
    bounds_its_input,
    loss_rule_for,
    propagate,
    trace,
    uses_of,
)
from noisewise.bounds.norms import row_norms
from noisewise.gradients.contractions.convolution import is_narrow
from noisewise.gradients.contractions.rounding import SLACK, propagated_slack
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.unnoted import unnoted
from noisewise.separation import RefusedError

__all__ = ["Gate", "LipschitzBounds", "Way", "changed", "shortened"]

#: Digests of all that a forward pass asked of torch, and of the floats in it.
Way = tuple[int, int]


class LipschitzBounds:
    """A traced model whose bounds are renewed for the weights of every step."""

    def __init__(self, graph: Graph, loss: Any, enforced: bool) -> None:
        self.graph, self.loss, self.enforced = graph, loss, enforced
        self.cache = NormCache()
        #: What forward passes did that were seen to do what the graph says.
        self.ways: set[Way] = set()

    def require_current(self, loss: Any) -> None:
        """Refuse to bound what is no longer what was read."""
        rule, module = loss_rule_for(loss)
        known = type(module) is type(self.loss[1]) and (module is loss) == (self.loss[1] is loss)
        if not (self.graph.is_current() and rule is self.loss[0] and known):
            raise changed("a layer, a hook, a buffer or the loss is another one")

    @staticmethod
    def of(model: nn.Module, loss: Any, x: Any, views: int) -> LipschitzBounds:
        """Trace a model for records like those of x."""
        if not isinstance(x, Tensor):
            raise RefusedError(
                "bounds are propagated through models with one input tensor",
                "Use noisewise.Clipped or noisewise.Factored, which need no bounds.",
            )
        shape = tuple(x.shape[2:] if views > 1 else x.shape[1:])
        ruled = loss_rule_for(loss)
        graph = trace(model, shape, x.dtype)
        return LipschitzBounds(graph, ruled, bounds_its_input(graph))

    def check(self, estimator: Any) -> None:
        """Refuse what has no finite bound, before training."""
        self._propagate(estimator, None)

    def _input_norm(self, estimator: Any) -> float:
        norm = estimator.input_norm
        if norm is None:
            if not self.enforced:
                raise RefusedError(
                    f"{type(estimator).__name__} needs a bound on the norm of a record",
                    "Start the model with noisewise.nn.BoundedInput(shape, norm), or state "
                    "input_norm=..., "
                    "to which longer records are scaled down.",
                )
            return math.inf
        return float(norm)

    def _propagate(self, estimator: Any, improvements: Improvements | None) -> Propagation:
        return propagate(
            self.graph,
            self._input_norm(estimator),
            self.loss,
            improvements=improvements,
            loss_clip=estimator.loss_clip,
            cache=self.cache,
        )

    def slacks(self, groups: Sequence[GroupSpec], views: int) -> dict[str, float]:
        """Slack for rounding of each group: the largest of its uses (rounding.md#propagated)."""
        found = {group.name: SLACK for group in groups}
        owner = {name: group.name for group in groups for name in group.names}
        for node in self.graph.nodes:
            for local, name in node.parameters.items():
                if name in owner:
                    slack = _slack_of(getattr(node.module, local), node.shape, views)
                    found[owner[name]] = max(found[owner[name]], slack)
        return found

    def limits(
        self,
        groups: Sequence[tuple[GroupSpec, Any]],
        unmeasured: set[str],
        improvements: Improvements,
    ) -> dict[str, float]:
        """Bound on one record's contribution to each group by its rule, at the present weights."""
        result, scaled = {}, []
        whole: Propagation | None = None
        for group, rule in groups:
            if rule.measures != "nothing" and unmeasured.isdisjoint(group.names):
                scaled.append((group, rule))
                continue
            whole = self._propagate(rule, improvements) if whole is None else whole
            result[group.name] = hypotenuse(*(whole.gradients[n] for n in group.names))
        if not scaled:
            return result
        rule = scaled[0][1]
        nodes = uses_of(
            self.graph,
            [group.names for group, _ in scaled],
            self._input_norm(rule),
            self.loss,
            improvements=improvements,
            loss_clip=rule.loss_clip,
            cache=self.cache,
        )
        for (group, _), uses in zip(scaled, nodes, strict=True):
            result[group.name] = total(*uses) if uses else 0.0
        return result


def _slack_of(parameter: nn.Parameter, shape: Sequence[int], views: int) -> float:
    """Slack of a parameter's sensitivity, for one use that returns this shape for every record."""
    if parameter.dim() < 2:
        return SLACK
    positions = math.prod(shape) * views // parameter.shape[0]
    kind = torch.promote_types(parameter.dtype, torch.float32)
    return propagated_slack(max(positions, 1), kind, is_narrow(parameter.shape))


def changed(what: str) -> RefusedError:
    """Say that bounds are those of another program."""
    return RefusedError(
        f"bounds were propagated through the model as it was at the first batch, and {what}",
        "Make a new run, or bounded sum, after a change; write what depends on the state of "
        "training as settings of layers, and tensors that forward makes as buffers.",
    )


def shortened(x: Tensor, limit: float) -> Tensor:
    """Scale records beyond the promised norm down to it."""
    norm = row_norms(x)
    # A little below the limit, so that rounding cannot lift a record above it.
    factor = (limit * (1 - 1e-6) / norm.clamp_min(1e-30)).clamp_max(1.0)
    shorter: Tensor = x * factor.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    return shorter


class Gate:
    """Where cotangents enter a model whose bounds were propagated from its loss.

    Those bounds hold for the gradient of that loss alone, so nothing else may enter: what
    arrives at the output from elsewhere (a term that was added to the loss, a factor) is
    ignored, and the loss's own cotangent takes its place, row by row, clipped if asked to.
    """

    def __init__(self, loss_clip: float | None) -> None:
        self.loss_clip = loss_clip
        self.cotangent: Tensor | None = None
        self.lengths: Tensor | None = None

    def guard(self, output: Any) -> Any:
        """Return the model's output, behind the gate."""
        if not isinstance(output, Tensor):
            raise RefusedError(
                "bounds need a model that returns one tensor",
                "Let it return one, or use noisewise.Clipped.",
            )
        result: Tensor = _Guard.apply(output, self)  # type: ignore[no-untyped-call]
        return result

    def enter(self, losses: Tensor, leaf: Tensor, seeds: Tensor, output: Tensor) -> Tensor:
        """Take the loss's cotangent; returns the losses, whose backward opens the gate."""
        (cotangent,) = torch.autograd.grad(losses, leaf, seeds.to(losses.dtype))
        norm = self.lengths = row_norms(cotangent)
        shape = (-1, *[1] * (cotangent.dim() - 1))
        if self.loss_clip is not None:
            # A little below the limit, so that rounding cannot lift a record above it.
            factor = (self.loss_clip * (1 - 1e-6) / norm.clamp_min(1e-30)).clamp_max(1.0)
            cotangent = cotangent * factor.view(shape).to(cotangent.dtype)
        zero = torch.zeros((), dtype=cotangent.dtype, device=cotangent.device)
        self.cotangent = torch.where(torch.isfinite(norm).view(shape), cotangent, zero)
        result: Tensor = _Opened.apply(output, losses.detach())  # type: ignore[no-untyped-call]
        return result

    def counts(self, knee: float, views: int) -> Tensor:
        """Return min(1, length of the loss gradient / knee) of every record, mean of its views."""
        assert self.lengths is not None
        share = torch.nan_to_num(self.lengths.double() / knee, 0.0, 0.0, 0.0).clamp_max(1.0)
        return share.reshape(-1, views).mean(1)


class _Guard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, gate: Gate) -> Tensor:
        ctx.gate = gate
        return output.view_as(output)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        entered = ctx.gate.cotangent
        return torch.zeros_like(cotangents[0]) if entered is None else entered, None


class _Opened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, losses: Tensor) -> Tensor:
        ctx.shape = output.shape
        return losses

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return cotangents[0].new_zeros(ctx.shape), None
