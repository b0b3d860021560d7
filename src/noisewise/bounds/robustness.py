"""How far an input may be moved before a model with proven bounds changes its answer.

A by-product of Lipschitz models: the difference of two outputs moves by at most its Lipschitz
constant times the distance, so a margin divided by that constant is a radius within which no
attack succeeds (Béthune et al. 2024). Between the last matrix's rows j and y the constant is
||w_j - w_y|| times that of the layers before, for every pair by itself.

Proof: docs/proofs/layers.md#robustness.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.arithmetic import product, total
from noisewise.bounds.certificate import bounds_its_input
from noisewise.bounds.graph import Graph, trace
from noisewise.bounds.improvements import Head, find_head
from noisewise.bounds.layer import NormMemory, Signal
from noisewise.bounds.rules.linear import LinearRule
from noisewise.errors import UnsupportedModelError

__all__ = ["certified_radius", "robust_accuracy"]

#: How far, of its norm bound, what a layer computes may be from exact arithmetic.
_ROUNDING = 1e-5
_CHUNK = 500
#: Beyond this the sum over a record may overflow, and layers count it as not finite.
_LARGEST = 1e15


def certified_radius(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return, for each record, a Euclidean radius within which its class cannot change.

    Parameters
    ----------
    model : Module
        Any model that :func:`certify` accepts, whose output has one number for each class, or a
        single number that is positive for class 1. It is judged as in evaluation.
    x : Tensor
        Records along the first axis.
    y : Tensor
        Their classes.

    Returns
    -------
    Tensor of float64
        0 where the model is wrong or too near to a tie. No input that differs from the record by at
        most this, in the norm of what the model is given, gets another class. It is computed from
        the records: not private.

    Raises
    ------
    UnsupportedModelError
        If the model is no Lipschitz function of its input, such as with
        ``BoundedInput(mode="normalise")``, which blows up short inputs.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> radius = certified_radius(model, torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    >>> round(float(radius), 3)  # the margin 3, divided by |(3, -4)|
    0.6
    """
    _check(x, y)
    judged = copy.deepcopy(model).eval()
    graph = trace(judged, tuple(x.shape[1:]), x.dtype)
    lengths = torch.linalg.vector_norm(x.double().flatten(1), dim=1)
    longest = float(lengths.max()) if len(x) else 1.0
    # Constants may hold only up to a norm: twice the longest record, and no move beyond it.
    enforced = bounds_its_input(graph)
    ball = math.inf if enforced else 2.0 * longest + 1.0
    constants = _Constants.of(graph, ball)
    # Parameters in float64, so that the margins are those of the weights as they are.
    wide = judged.double()
    found = []
    with torch.no_grad():
        for start in range(0, len(x), _CHUNK):
            part = slice(start, start + _CHUNK)
            found.append(_margins(wide(x[part].double()), y[part], constants))
    radius = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
    finite = torch.isfinite(lengths) & (lengths < _LARGEST)
    radius = torch.where(finite.to(radius.device), radius, 0.0)
    return radius if enforced else torch.minimum(radius, (ball - lengths).to(radius.device))


def robust_accuracy(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
    """Return the share of records that stay right however they are moved within a radius.

    Parameters
    ----------
    model, x, y
        As for :func:`certified_radius`.
    radius : float
        Euclidean. 0 gives the accuracy, without records that are too near to a tie.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.eye(2)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 0.1]]), torch.tensor([0, 1])
    >>> robust_accuracy(model, x, y, radius=0.5)
    0.5
    """
    if not math.isfinite(radius) or radius < 0:
        raise ValueError(f"radius must be a finite number >= 0, got {radius!r}")
    if not len(x):
        raise ValueError("robust_accuracy needs at least one record")
    found = certified_radius(model, x, y)
    return float(((found >= radius) & (found > 0)).double().mean())


def _check(x: Tensor, y: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(
            f"x must hold floating-point numbers, got {x.dtype}: there is no small step from one "
            "whole number to the next"
        )
    if y.is_floating_point() or y.dim() != 1 or len(y) != len(x):
        raise ValueError(
            f"y must hold one class, a whole number, for each of the {len(x)} records, got "
            f"{y.dtype} of shape {tuple(y.shape)}"
        )


class _Constants:
    """Lipschitz constants of a model: of its output, and of the differences of outputs."""

    def __init__(self, lipschitz: float, rounding: float, gaps: Tensor | None) -> None:
        self.lipschitz, self.rounding, self.gaps = lipschitz, rounding, gaps

    @staticmethod
    def of(graph: Graph, norm: float) -> _Constants:
        memory = NormMemory()
        signals = [Signal(graph.input_shape, norm)]
        constants, errors = [1.0], [0.0]
        calls: list[Any] = [None]
        for node in graph.nodes[1:]:
            call = node.call(tuple(signals[i] for i in node.inputs), memory)
            node.rule.check(call)
            if reason := node.rule.jump(call):
                raise UnsupportedModelError(
                    f'{node.kind} at "{node.path}" {reason}, so no radius can be certified.'
                )
            slopes = [node.rule.lipschitz_of(call, index) for index in range(len(node.inputs))]
            output = node.rule.output_norm(call)
            constants.append(_through(slopes, [constants[i] for i in node.inputs]))
            own = product(_ROUNDING, output) if math.isfinite(output) else math.inf
            errors.append(total(own, _through(slopes, [errors[i] for i in node.inputs])))
            signals.append(Signal(node.shape, output))
            calls.append(call)
        if not (math.isfinite(constants[-1]) and math.isfinite(errors[-1])):
            raise UnsupportedModelError(
                "the model has no finite Lipschitz constant, so no radius is certified. Look in "
                "noisewise.certify for the layer whose Lipschitz bound is infinite."
            )
        position = find_head(graph)
        if position is None or len(graph.nodes[-1].shape) != 1:
            return _Constants(constants[-1], errors[-1], None)
        node = graph.nodes[position]
        assert isinstance(node.rule, LinearRule)
        head = Head(position, node.rule.matrix(calls[position]), None)
        before = constants[node.inputs[0]]
        return _Constants(constants[-1], errors[-1], head.gaps() * before * (1 + 1e-12))


def _through(slopes: list[float], arriving: list[float]) -> float:
    # A layer that is not reached by the input passes nothing on, however steep it is.
    terms = [product(s, a) for s, a in zip(slopes, arriving, strict=True) if a > 0]
    return total(*terms) if terms else 0.0


def _margins(output: Tensor, y: Tensor, constants: _Constants) -> Tensor:
    output = output.squeeze(1) if output.dim() == 2 and output.shape[1] == 1 else output
    if output.dim() == 1:
        signed = torch.where(y > 0, output, -output)
        margin = signed - constants.rounding
        return (margin / max(constants.lipschitz, 1e-300)).clamp_min(0.0)
    if output.dim() != 2:
        raise UnsupportedModelError(
            f"the output of a record has shape {tuple(output.shape[1:])}: give a model with one "
            "number for each class"
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < output.shape[1]:
        raise ValueError(f"y must hold classes from 0 to {output.shape[1] - 1}")
    own = output.gather(1, y[:, None])
    margins = own - output - 2 * constants.rounding
    if constants.gaps is None:
        radii = margins / max(product(math.sqrt(2.0) * (1 + 1e-15), constants.lipschitz), 1e-300)
    else:
        radii = margins / constants.gaps.to(output.device)[y].clamp_min(1e-300)
    radii = radii.scatter(1, y[:, None], math.inf)
    smallest = radii.min(dim=1).values
    return torch.where(torch.isfinite(smallest) & (smallest > 0), smallest, 0.0)
