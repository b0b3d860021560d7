"""How clipping changes the kernel, and with it the loss.

Equations 4.3 and 4.4 of Bu, Wang, Dai and Long (2021).

Under gradient flow with per-record factors the loss changes by dL/dt = -s' K s with s the
derivatives of the mean loss by the outputs and

    K = H C            flat clipping, C = diag(C_i) repeated over a record's outputs
    K = sum_r H_r C_r  layerwise clipping.

C_i is min(1, R/|g_i|) for "clip" (the paper's local clipping), 1 if |g_i| <= R and else 0 for
"global", and R/(|g_i| + 0.01) for "automatic" (Bu, Wang, Zha and Karypis 2023). Not private.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.analysis.inputs import FloatArray
from noisewise.analysis.ntk.kernel import Kernels, kernels
from noisewise.analysis.ntk.positivity import Positivity, positivity
from noisewise.gradients import clip_scale, layer_of, record_losses

__all__ = ["ClippedKernel", "LossChange", "analyse", "clipping_factors", "table_of_kernels"]

Rule = Literal["clip", "global", "automatic", "none"]


def clipping_factors(norms: Any, clip: float, rule: str = "clip") -> FloatArray:
    """Return the factor of each record.

    Examples
    --------
    >>> clipping_factors([0.5, 1.0, 4.0], 1.0).tolist()
    [1.0, 1.0, 0.25]
    >>> clipping_factors([0.5, 1.0, 4.0], 1.0, "global").tolist()
    [1.0, 1.0, 0.0]
    """
    clip = checks.positive("clip", clip)
    checks.choice("rule", rule, ("clip", "global", "automatic", "none"))
    values = np.asarray(norms, np.float64)
    if rule == "none":
        return np.ones_like(values)
    return np.asarray(clip_scale(torch.as_tensor(values), clip, rule).numpy())


@dataclass(frozen=True)
class LossChange:
    """Change of the mean loss by one small step: what the kernel says, and what happened."""

    step: float
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over predicted; 1 in the limit of small steps, NaN if nothing was to move."""
        return self.measured / self.predicted if self.predicted else float("nan")


@dataclass(frozen=True, eq=False)
class ClippedKernel:
    """A batch's kernel under one way of clipping. Made by :func:`analyse`.

    Parameters
    ----------
    kernels : Kernels
        The kernels without clipping.
    slopes : array
        Records x outputs: derivative of each record's loss by its outputs.
    factors : dict
        Layer to the factor of each record; equal in all layers for flat clipping.
    rule, per : str
        What was asked for.
    """

    kernels: Kernels
    slopes: FloatArray
    factors: dict[str, FloatArray]
    rule: str
    per: str

    @cached_property
    def matrix(self) -> FloatArray:
        """H C, or sum_r H_r C_r."""
        m = self.kernels.outputs
        return np.asarray(
            sum(h * np.repeat(self.factors[name], m) for name, h in self.kernels.blocks.items())
        )

    @cached_property
    def positivity(self) -> Positivity:
        """Symmetry and positivity of the matrix."""
        if self.per == "layer":
            return positivity(self.matrix)
        factors = next(iter(self.factors.values()))
        return positivity(self.kernels.total, np.repeat(factors, self.kernels.outputs))

    @property
    def slope(self) -> float:
        """dL/dt under gradient flow; positive if clipping makes the loss grow."""
        s = self.slopes.reshape(-1) / self.kernels.records
        return float(-s @ self.matrix @ s)

    @property
    def clipped_fraction(self) -> float:
        """Share of (record, layer) pairs whose factor is not 1."""
        return float(np.mean([np.mean(f != 1) for f in self.factors.values()]))

    def loss_change(
        self, model: nn.Module, loss: Any, x: Tensor, target: Tensor, *, step: float
    ) -> LossChange:
        """Compare one step's predicted and measured change of the mean loss.

        The model is left as it was.
        """
        step = checks.positive("step", step)
        direction = _direction(model, loss, x, target, self.factors)
        names = dict(model.named_parameters())
        losses = record_losses(loss)
        before = {name: names[name].detach().clone() for name in direction}
        with torch.no_grad():
            start = losses(model(x), target).double().mean()
            try:
                for name, change in direction.items():
                    names[name].sub_(change, alpha=step)
                end = losses(model(x), target).double().mean()
            finally:
                for name, value in before.items():
                    names[name].copy_(value)
        return LossChange(step, self.slope * step, float(end - start))


def analyse(
    model: nn.Module,
    loss: Any,
    x: Tensor,
    target: Tensor,
    *,
    clip: float | dict[str, float] = 1.0,
    rule: Rule = "clip",
    per: Literal["model", "layer"] = "model",
    contract: bool = False,
    found: Kernels | None = None,
    memory: int = 1 << 29,
) -> ClippedKernel:
    """Compute the kernel of a batch and what clipping makes of it.

    Parameters
    ----------
    model, loss, x, target
        As for training; see :func:`kernels` for what a model must not do.
    clip : float or dict
        The clipping norm R, for ``per="layer"`` also one for each layer.
    rule : {"clip", "global", "automatic", "none"}
        How a record's factor follows from its norm.
    per : {"model", "layer"}
        Flat or layerwise clipping.
    contract : bool
        Look at the kernel of the losses, one row a record, instead of the outputs: for
        models with many outputs. Its quadratic form is that of H C on vectors that are
        multiples of the slopes within each record.
    found : Kernels, optional
        Kernels of the same batch that are already known.
    memory : int
        See :func:`kernels`.
    """
    checks.choice("per", per, ("model", "layer"))
    if found is None:
        extra: dict[str, Any] = {"target": target, "loss": loss} if contract else {}
        found = kernels(model, x, memory=memory, **extra)
    slopes = np.ones((found.records, 1)) if contract else _slopes(model, loss, x, target)
    norms = found.gradient_norms(slopes)
    if per == "model":
        if isinstance(clip, dict):
            raise ValueError("clip must be one number for per='model'")
        whole = np.sqrt(np.sum([n**2 for n in norms.values()], axis=0))
        factors = dict.fromkeys(norms, clipping_factors(whole, clip, rule))
    else:
        limits = clip if isinstance(clip, dict) else dict.fromkeys(norms, clip)
        if set(limits) != set(norms):
            raise ValueError(f"clip must name the layers {sorted(norms)}, got {sorted(limits)}")
        factors = {name: clipping_factors(n, limits[name], rule) for name, n in norms.items()}
    return ClippedKernel(found, slopes, factors, rule, per)


def table_of_kernels(
    model: nn.Module,
    loss: Any,
    x: Tensor,
    target: Tensor,
    *,
    clip: float = 1.0,
    contract: bool = False,
    memory: int = 1 << 29,
) -> list[dict[str, Any]]:
    """Return the rows of Table 1 of Bu, Wang, Dai and Long (2021), measured on this batch.

    One row for each of: no clipping, local, global and automatic flat clipping, local and
    global layerwise clipping. `contract` and `memory` as of :func:`analyse`.
    """
    one = partial(analyse, model, loss, x, target, clip=clip, contract=contract, memory=memory)
    first = one(rule="none")
    ways: list[tuple[Rule, Literal["model", "layer"]]] = [
        ("none", "model"),
        ("clip", "model"),
        ("global", "model"),
        ("automatic", "model"),
        ("clip", "layer"),
        ("global", "layer"),
    ]
    rows = []
    for rule, per in ways:
        found = one(rule=rule, per=per, found=first.kernels)
        p = found.positivity
        rows.append(
            {
                "rule": rule,
                "per": per,
                "clipped": found.clipped_fraction,
                "asymmetry": p.asymmetry,
                "symmetric": p.symmetric,
                "smallest_quadratic": p.smallest_quadratic,
                "positive_in_quadratic_form": p.positive_in_quadratic_form,
                "smallest_eigenvalue": p.smallest_eigenvalue,
                "positive_in_eigenvalues": p.positive_in_eigenvalues,
                "slope": found.slope,
            }
        )
    return rows


def _slopes(model: nn.Module, loss: Any, x: Tensor, target: Tensor) -> FloatArray:
    with torch.no_grad():
        output = model(x)
    output = output.detach().requires_grad_()
    total = record_losses(loss)(output, target).sum()
    (slopes,) = torch.autograd.grad(total, output)
    return np.asarray(slopes.double().reshape(len(x), -1).cpu().numpy())


def _direction(
    model: nn.Module, loss: Any, x: Tensor, target: Tensor, factors: dict[str, FloatArray]
) -> dict[str, Tensor]:
    """Mean over records of the scaled gradients, one weighted backward pass for each layer."""
    losses = record_losses(loss)(model(x), target)
    direction: dict[str, Tensor] = {}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for layer, factor in factors.items():
        own = [(name, p) for name, p in named if layer_of(name) == layer]
        weights = torch.as_tensor(factor, dtype=losses.dtype, device=losses.device)
        mean = (weights * losses).mean()
        found = torch.autograd.grad(mean, [p for _, p in own], retain_graph=True)
        direction |= {name: g for (name, _), g in zip(own, found, strict=True)}
    return direction
