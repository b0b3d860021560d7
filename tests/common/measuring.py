"""How large a layer's output, Jacobian and gradients really are, against the bounds.

Everything is measured in float64 from dense Jacobians. Inputs are drawn at random,
chosen for their shape (constants, spikes, alternating signs, ...) and then improved by
gradient ascent on the measured quantity, within the ball in which the bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.bounds import Improvements, propagate, trace

TOLERANCE = 1e-9
REGIMES = ("initial", "noisy", "boundary")


@dataclass(frozen=True)
class Example:
    """A configuration in which a layer is measured.

    `twin` gives the model that is measured, for layers whose parameters are not what gets
    noise: the same function with the effective weight as its parameter.

    `known` gives, per quantity ("output", "lipschitz" or a parameter's last name), the best
    ratio of measurement to bound that can be expected; 0.9 by default. `None` leaves a
    quantity out (an integer input has no Jacobian).
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    norm: float = 1.0
    known: dict[str, float | None] = field(default_factory=dict)
    hints: Callable[[nn.Module], list[Tensor]] = lambda module: []
    tokens: int | None = None
    twin: Callable[[nn.Module], nn.Module] = lambda model: model

    def expected(self, quantity: str) -> float | None:
        return self.known.get(quantity, 0.9)


@dataclass
class Finding:
    """Largest measured value of a quantity, with the state and input that gave it."""

    value: float
    bound: float
    state: dict[str, Tensor]

    @property
    def ratio(self) -> float:
        if self.bound == 0:
            return 0.0 if self.value <= TOLERANCE else math.inf
        return self.value / self.bound


def bounds_of(model: nn.Module, example: Example) -> dict[str, float]:
    """The library's bounds on output, Jacobian and gradients, for a cotangent of norm one."""
    graph = trace(model, example.shape)
    found = propagate(graph, example.norm, 1.0, improvements=Improvements.none())
    result = {"output": found.output_norm, "lipschitz": found.input_cotangent}
    result.update(found.gradients)
    return result


def prepare(example: Example, regime: str, seed: int = 0) -> nn.Module:
    """Build a layer at its start, after noisy updates, or with its weights at the boundary."""
    torch.manual_seed(seed)
    model = example.make().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if regime == "noisy":
                parameter.add_(0.5 * torch.randn_like(parameter))
            elif regime == "boundary":
                parameter.mul_(20.0).add_(0.01 * torch.randn_like(parameter))
    for module in model.modules():
        if regime != "initial" and hasattr(module, "project_"):
            module.project_()
    return model


def candidates(example: Example, model: nn.Module) -> Iterator[Tensor]:
    """Inputs of one record within the ball, random and of special form."""
    if example.tokens is not None:
        yield torch.zeros((1, *example.shape), dtype=torch.long)
        for token in range(example.tokens):
            yield torch.full((1, *example.shape), token)
        yield torch.randint(0, example.tokens, (1, *example.shape))
        return
    size = math.prod(example.shape)
    ramp = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    spike = torch.zeros(size, dtype=torch.float64)
    spike[size // 2] = 1.0
    corner = torch.zeros(size, dtype=torch.float64)
    corner[0] = 1.0
    bump = torch.sin(math.pi * (torch.arange(size, dtype=torch.float64) + 1) / (size + 1))
    alternating = torch.ones(size, dtype=torch.float64)
    alternating[1::2] = -1.0
    forms = [
        torch.ones(size, dtype=torch.float64), -torch.ones(size, dtype=torch.float64), spike,
        -spike, corner, ramp, bump, alternating, torch.randn(size, dtype=torch.float64),
        torch.randn(size, dtype=torch.float64).abs(),
    ]  # fmt: skip
    for hint in example.hints(model):
        yield clip(hint.double().reshape(1, *example.shape), example.norm)
    for form in forms:
        yield (example.norm * form / form.norm()).reshape(1, *example.shape)
    small = torch.randn(size, dtype=torch.float64)
    yield (1e-3 * example.norm * small / small.norm()).reshape(1, *example.shape)
    yield torch.full((1, *example.shape), 1e-9 * example.norm, dtype=torch.float64)


def clip(x: Tensor, norm: float) -> Tensor:
    return x * min(1.0, norm / max(float(x.norm()), 1e-300))


def run(model: nn.Module, x: Tensor) -> Tensor:
    """Forward pass with the same random draws each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        result: Tensor = model(x)
    return result


def jacobians(model: nn.Module, x: Tensor, only: str | None = None) -> dict[str, Tensor]:
    """Dense Jacobians of the output in the input and in each parameter (or in one of them)."""
    learnt = {
        name: p for name, p in model.named_parameters() if p.requires_grad and only in (None, name)
    }
    sources: list[Tensor] = [*learnt.values()]
    names = list(learnt)
    if x.is_floating_point() and only in (None, "lipschitz"):
        x = x.clone().requires_grad_()
        sources, names = [x, *sources], ["lipschitz", *names]
    output = run(model, x).flatten()
    if not sources or not output.requires_grad:
        return {}
    rows = torch.eye(len(output), dtype=torch.float64)
    found = _rows(output, sources, rows)
    return {name: value.reshape(len(output), -1) for name, value in zip(names, found, strict=True)}


def _rows(output: Tensor, sources: list[Tensor], rows: Tensor) -> list[Tensor]:
    """Vector-Jacobian products with every row, one by one: right for every backward."""
    parts = [
        torch.autograd.grad(
            output, sources, row, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for row in rows
    ]
    return [torch.stack(column) for column in zip(*parts, strict=True)]


def measure_at(model: nn.Module, x: Tensor, only: str | None = None) -> dict[str, float]:
    """Norms of output and Jacobians at one input (or of one of them)."""
    result = {}
    if only in (None, "output"):
        with torch.no_grad():
            result["output"] = float(run(model, x).norm())
    if only != "output":
        for name, jacobian in jacobians(model, x, only).items():
            result[name] = float(torch.linalg.matrix_norm(jacobian, 2))
    return result


def ascend(model: nn.Module, x: Tensor, quantity: str, norm: float, steps: int) -> Tensor:
    """Move the input uphill on the measured quantity, staying in the ball."""
    best, best_value = x, measure_at(model, x, quantity).get(quantity, 0.0)
    for _ in range(steps):
        direction = _uphill(model, best, quantity)
        if direction is None or not torch.isfinite(direction).all() or direction.norm() == 0:
            return best
        unit = direction / direction.norm()
        # The first try is a power iteration, exact for linear layers; then shorter steps.
        tries = [clip(unit * norm, norm)] + [
            clip(best + size * norm * unit, norm) for size in (1.0, 0.3, 0.05)
        ]
        values = [measure_at(model, candidate, quantity).get(quantity, 0.0) for candidate in tries]
        top = max(range(len(tries)), key=values.__getitem__)
        if values[top] <= best_value * (1 + 1e-6):
            return best
        best, best_value = tries[top], values[top]
    return best


def _uphill(model: nn.Module, x: Tensor, quantity: str) -> Tensor | None:
    x = x.clone().requires_grad_()
    output = run(model, x)
    if quantity == "output":
        goal = output.norm()
    else:
        jacobian = jacobians(model, x.detach(), quantity)[quantity]
        left, _, right = torch.linalg.svd(jacobian, full_matrices=False)
        weighted = (output.flatten() * left[:, 0]).sum()
        source: Any = x if quantity == "lipschitz" else dict(model.named_parameters())[quantity]
        try:
            (gradient,) = torch.autograd.grad(weighted, source, create_graph=True)
        except RuntimeError:
            return None
        goal = (gradient.flatten() * right[0]).sum()
    if not goal.requires_grad:
        return None
    return torch.autograd.grad(goal, x, allow_unused=True)[0]


def search(example: Example, regime: str, steps: int = 6) -> dict[str, Finding]:
    """Largest values found in one regime, with the bounds that must hold there."""
    model = prepare(example, regime)
    limits = bounds_of(model, example)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model = example.twin(model)
    best: dict[str, tuple[float, Tensor]] = {}
    for x in candidates(example, model):
        for quantity, value in measure_at(model, x).items():
            if quantity not in best or value > best[quantity][0]:
                best[quantity] = (value, x)
    findings = {}
    for quantity, (value, x) in best.items():
        wanted = example.expected(quantity.rpartition(".")[2])
        if wanted is None:
            continue
        close = limits[quantity] > 0 and value > 0.995 * limits[quantity]
        if example.tokens is None and not close:
            x = ascend(model, x, quantity, example.norm, steps)
            value = max(value, measure_at(model, x, quantity)[quantity])
        findings[quantity] = Finding(value, limits[quantity], state)
    return findings
