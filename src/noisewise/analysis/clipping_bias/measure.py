"""How far bounding takes the gradient from the true one: one measurement.

For a batch, g is the mean of the records' gradients and b the mean of their bounded ones, as
:func:`noisewise.bounded_sum` gives them, both without noise. Barczewski and Ramon (2024, figure
3) and Barczewski (2025, figure 5.3.3) draw |g - b| and |b| over training: the model stops where
b is zero, not where g is. An estimator that rescales every record (InputScaled) makes |g - b|
large without harm, so the cosine of g and b and the part of g that no multiple of b reaches,
sqrt(1 - cos^2), stand beside it. NOT PRIVATE: everything here is computed from private records
without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.gradients import (
    BoundedSum,
    GradientEngine,
    Group,
    GroupSpec,
    propagating,
    record_losses,
    rule_of,
)
from noisewise.release import deviations

__all__ = ["GroupBias", "Measurement", "boundary_layers", "measure"]

#: Factors closer to 1 than this count as 1: engine and autograd round differently.
SAME = 1e-3


@dataclass(frozen=True)
class GroupBias:
    """One group of parameters that are bounded together.

    Parameters
    ----------
    name : str
        The group.
    parameters : int
        Number of entries.
    true_norm, bounded_norm, bias_norm : float
        Norms of the mean gradient g, of the mean bounded gradient b, and of g - b.
    cosine : float
        Between g and b; NaN if one of them is zero.
    sensitivity : float
        How far one record can move the group's sum.
    clipped_fraction : float
        Share of the records whose gradient of this group was shortened or dropped.
    noise_norm : float
        Expected norm of the noise on b; NaN if it is not known.
    """

    name: str
    parameters: int
    true_norm: float
    bounded_norm: float
    bias_norm: float
    cosine: float
    sensitivity: float
    clipped_fraction: float
    noise_norm: float

    @property
    def signal_to_noise(self) -> float:
        """Norm of b over that of its noise."""
        return self.bounded_norm / self.noise_norm


@dataclass(frozen=True)
class Measurement:
    """What bounding does to one batch of private records. NOT PRIVATE.

    Parameters
    ----------
    groups : tuple of GroupBias
    records : int
        Records that were looked at.
    true_norm, bounded_norm, bias_norm, cosine : float
        Of the whole gradient, as in `GroupBias`.
    clipped_fraction : float
        Share of the records of which some group was shortened.
    boundary : tuple of str
        Constrained layers whose norm has reached its limit.
    step : int
        When, in steps of training.
    """

    groups: tuple[GroupBias, ...]
    records: int
    true_norm: float
    bounded_norm: float
    bias_norm: float
    cosine: float
    clipped_fraction: float
    boundary: tuple[str, ...] = ()
    step: int = 0
    private: bool = field(default=False, init=False)

    @property
    def direction_error(self) -> float:
        """Part of g, in [0, 1], that no multiple of b reaches; NaN if b is zero."""
        return math.sqrt(max(0.0, 1.0 - min(1.0, self.cosine**2)))

    @property
    def signal_to_noise(self) -> float:
        """Of all groups together; NaN if the noise is not known."""
        return self.bounded_norm / math.sqrt(sum(g.noise_norm**2 for g in self.groups))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers; it says that it is not private."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"NOT PRIVATE: step {self.step}, {self.records} records: |g| {self.true_norm:.4g}, "
            f"|bounded| {self.bounded_norm:.4g}, |g - bounded| {self.bias_norm:.4g}, "
            f"cosine {self.cosine:.3f}, clipped {self.clipped_fraction:.0%}"
        )


def measure(
    model: nn.Module,
    loss: Any,
    x: Tensor,
    target: Tensor,
    gradients: Any,
    *,
    chunk: int = 256,
    noise_multiplier: float | None = None,
    allocation: str = "optimal",
    batch_size: float | None = None,
    step: int = 0,
    engine: GradientEngine | None = None,
) -> Measurement:
    """Compare the true and the bounded gradient of a batch.

    Parameters
    ----------
    model, loss, x, target
        As of training. Only the first `chunk` records are looked at: one ordinary backward
        pass and one bounded sum.
    gradients : estimator
        For example ``nw.Clipped(1.0)``.
    chunk : int
        Records that are looked at.
    noise_multiplier, allocation : float, str, optional
        Of the plan, to compare the sum with its noise.
    batch_size : float, optional
        Expected number of records in a training batch, to compare its sum with the noise;
        the size of the batch at hand by default.
    step : int
        Noted in the result.
    engine : GradientEngine, optional
        One of the same model, loss and estimator, so that the model is not checked again.

    Examples
    --------
    >>> from noisewise.gradients import Clipped
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = nn.Linear(3, 2), torch.randn(8, 3), torch.randint(2, (8,))
    >>> found = measure(model, nn.CrossEntropyLoss(), x, y, Clipped(1e6))
    >>> found.clipped_fraction, round(found.cosine, 6), found.bias_norm < 1e-6
    (0.0, 1.0, True)
    """
    chunk = checks.integer("chunk", chunk, minimum=1)
    x, target = x[:chunk], target[:chunk]
    records = len(x)
    if records == 0:
        raise ValueError("the batch is empty: there is no gradient to look at")
    if engine is None:
        engine = GradientEngine(model, loss, gradients, expected=float(records))
    with _same_randomness() as restart:
        restart()
        true, steep = _true_sum(model, loss, x, target, engine.estimator)
        restart()
        bounded = engine.sum(x, target)
    size = float(records if batch_size is None else batch_size)
    deviation = _deviations(bounded, noise_multiplier, allocation)
    shortened = {group.name: _shortened(group, bounded, engine, steep) for group in bounded.groups}
    groups = []
    for group in bounded.groups:
        own = {name: true[name] for name in group.names}
        g, b, difference, inner = _norms(own, group.gradients, records)
        groups.append(
            GroupBias(
                name=group.name,
                parameters=group.size,
                true_norm=g,
                bounded_norm=b,
                bias_norm=difference,
                cosine=_cosine(inner, g, b),
                sensitivity=group.sensitivity,
                clipped_fraction=float(shortened[group.name].double().mean()),
                noise_norm=deviation[group.name] * math.sqrt(group.size) / size,
            )
        )
    g, b, difference, inner = _norms(true, bounded.gradients, records)
    some = torch.stack(list(shortened.values())).any(0)
    return Measurement(
        groups=tuple(groups),
        records=records,
        true_norm=g,
        bounded_norm=b,
        bias_norm=difference,
        cosine=_cosine(inner, g, b),
        clipped_fraction=float(some.double().mean()),
        boundary=boundary_layers(model),
        step=step,
    )


def boundary_layers(model: nn.Module, tolerance: float = 1e-2) -> tuple[str, ...]:
    """Return the constrained layers whose norm has reached its limit.

    A layer on its boundary could become better if the limit were larger (Barczewski 2025,
    section 5.2.4). Reads the weights only, so it is as private as they are.

    Examples
    --------
    >>> from noisewise.nn import SpectralLinear
    >>> layer = SpectralLinear(4, 4, limit=2.0)
    >>> boundary_layers(nn.Sequential(layer, nn.Linear(4, 1)))
    ('0',)
    >>> with torch.no_grad():
    ...     _ = layer.weight.mul_(0.5)
    >>> boundary_layers(layer)
    ()
    """
    tolerance = checks.positive("tolerance", tolerance, zero=True)
    found = []
    for name, module in model.named_modules():
        limit, bound = getattr(module, "limit", None), getattr(module, "norm_bound", None)
        if limit is None or bound is None:
            continue
        if float(bound()) >= float(limit) * (1 - tolerance):
            found.append(name)
    return tuple(found)


def _true_sum(
    model: nn.Module, loss: Any, x: Tensor, target: Tensor, estimator: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the sum of gradients, and whose loss is too steep for the estimator's loss clip."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        output = model(x)
        total = record_losses(loss)(output, target).sum()
        found = torch.autograd.grad(total, [output, *named.values()], allow_unused=True)
    sums = {
        name: torch.zeros_like(p) if g is None else g.detach()
        for (name, p), g in zip(named.items(), found[1:], strict=True)
    }
    steep = torch.zeros(len(x), dtype=torch.bool, device=output.device)
    bounded = propagating(estimator)
    limit = None if bounded is None else bounded.loss_clip
    if limit is not None and found[0] is not None:
        steep = found[0].flatten(1).norm(dim=1) > limit * (1 + SAME)
    return sums, steep


def _shortened(group: Group, bounded: BoundedSum, engine: GradientEngine, steep: Tensor) -> Tensor:
    """Return whose gradient of this group was multiplied by less than one.

    The engine notes what it measured of every record where clipping depends on it. Lipschitz
    estimators clip at the loss only; dividing by the own input norm is a change of weights,
    not clipping.
    """
    measured = bounded.norms.get(group.name)
    if measured is None:
        return steep
    rule = rule_of(engine.estimator, GroupSpec(group.name, group.names, group.size))
    factor = rule.scale(measured, group.sensitivity / (1 + group.slack))
    return (factor < 1 - SAME) | ~torch.isfinite(measured)


def _norms(
    true: Mapping[str, Tensor], bounded: Mapping[str, Tensor], records: int
) -> tuple[float, float, float, float]:
    """Norms of the means g, b and g - b, and the inner product of g and b."""
    g = torch.cat([value.flatten() for value in true.values()]) / records
    b = torch.cat([bounded[name].flatten() for name in true]) / records
    parts = torch.stack([(g * g).sum(), (b * b).sum(), ((g - b) ** 2).sum(), (g * b).sum()])
    square_g, square_b, square_d, inner = parts.tolist()
    return math.sqrt(square_g), math.sqrt(square_b), math.sqrt(square_d), inner


def _cosine(inner: float, a: float, b: float) -> float:
    return inner / (a * b) if a > 0 and b > 0 else math.nan


def _deviations(
    bounded: BoundedSum, noise_multiplier: float | None, allocation: str
) -> dict[str, float]:
    """Return the deviation of the noise on each group's sum; NaN if there is none."""
    names = [group.name for group in bounded.groups]
    if noise_multiplier is None:
        return dict.fromkeys(names, math.nan)
    sensitivities = [group.sensitivity for group in bounded.groups]
    sizes = [group.size for group in bounded.groups]
    found = deviations(sensitivities, sizes, noise_multiplier, allocation)
    return dict(zip(names, found, strict=True))


@contextmanager
def _same_randomness() -> Iterator[Callable[[], None]]:
    """Let every pass see the same dropout, and leave training's random numbers untouched."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):

        def restart() -> None:
            torch.manual_seed(0)

        yield restart
