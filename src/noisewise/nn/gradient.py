"""Layers that do nothing forward and change the length of each record's cotangent backward.

The hybrid of Béthune et al. (2024, section 3.1), in the form that is sound: per record, and for
losses that are summed over records, not averaged (docs/proofs/published.md#mean-reduction).
What passes is no longer a gradient but a multiple of it, record by record.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import product
from noisewise.bounds import Call, register
from noisewise.bounds.rules import IdentityRule

__all__ = ["AdaptiveClipGradient", "ClipGradient", "RenewGradient"]

#: Least gamma: cotangents whose squares vanish in float64 are then far below the limit.
_LEAST = 1e-12


class _Lengths(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, clip: float, gamma: float | None) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.clip, ctx.gamma = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        # Trusted code: function modes, which follow what users call, are left out.
        with torch._C.DisableTorchFunction():
            norm = torch.linalg.vector_norm(cotangent.flatten(1), dim=1, dtype=torch.float64)
            # A little below the limit, so that rounding cannot lift a record above it.
            limit = ctx.clip * (1.0 - 16 * torch.finfo(cotangent.dtype).eps)
            if ctx.gamma is None:
                scale = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
            else:
                scale = limit / (norm + ctx.gamma)
            spread = (-1,) + (1,) * (cotangent.dim() - 1)
            kept = torch.isfinite(norm).view(spread)
            scale = scale.to(cotangent.dtype).view(spread)
            changed = torch.where(kept, cotangent * scale, 0.0)
        return changed, None, None


class ClipGradient(nn.Module):
    """Clip the cotangent of every record to norm at most `clip`; forward, the identity.

    A record whose cotangent is not finite contributes zero. Use losses that are summed
    over records: with a mean, the limit would apply to a gradient already divided by the
    batch size.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(2, 3, requires_grad=True)
    >>> (ClipGradient(0.5)(x) * torch.tensor([[4.0], [0.1]])).sum().backward()
    >>> x.grad.norm(dim=1).allclose(torch.tensor([0.5, 0.1 * 3**0.5]))
    True
    """

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.clip = checks.positive("clip", clip)

    def forward(self, x: Tensor) -> Tensor:
        """Return x; the clipping happens on the way back."""
        result: Tensor = _Lengths.apply(x, self.clip, None)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"clip={self.clip:g}"


class RenewGradient(nn.Module):
    """Give the cotangent g of every record the length ``clip |g| / (|g| + gamma)``.

    Forward, the identity. Backward, long cotangents are shortened and short ones lengthened, so
    what leaves is shorter than `clip` whatever arrives: no weight behind this layer enters a
    bound before it. Put one behind every layer with weights, and a deep network loses nothing to
    cotangents that shrink on their way. As lengths are renewed, an easy record would count as much
    as a hard one; ``InputScaled(knee=...)`` and ``Propagated(knee=...)`` count it for less.

    Parameters
    ----------
    clip : float
        Length of a cotangent much longer than gamma.
    gamma : float
        Cotangents much shorter than this stay short, in proportion. At least 1e-12.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(2, 3, requires_grad=True)
    >>> (RenewGradient(0.5)(x) * torch.tensor([[4.0], [0.1]])).sum().backward()
    >>> [round(length, 2) for length in x.grad.norm(dim=1).tolist()]
    [0.5, 0.5]
    """

    def __init__(self, clip: float, gamma: float = 1e-3) -> None:
        super().__init__()
        self.clip = checks.positive("clip", clip)
        self.gamma = checks.positive("gamma", gamma)
        if self.gamma < _LEAST:
            raise ValueError(
                f"gamma must be at least {_LEAST:g}, got {self.gamma:g}: lengths of shorter "
                "cotangents are lost to rounding"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return x; lengths change on the way back."""
        result: Tensor = _Lengths.apply(x, self.clip, self.gamma)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"clip={self.clip:g}, gamma={self.gamma:g}"


class _Quantile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, level: Tensor, quantile: float, gain: float) -> Tensor:
        ctx.save_for_backward(level)
        ctx.quantile, ctx.gain = quantile, gain
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (level,) = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            norm = torch.linalg.vector_norm(cotangent.flatten(1), dim=1, dtype=torch.float64)
            limit = level.flatten().double().exp() * (1.0 - 16 * torch.finfo(cotangent.dtype).eps)
            scale = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
            spread = (-1,) + (1,) * (cotangent.dim() - 1)
            kept = torch.isfinite(norm).view(spread)
            changed = torch.where(kept, cotangent * scale.to(cotangent.dtype).view(spread), 0.0)
            # Descent moves the logarithm of the limit by what share of lengths is too small.
            short = (norm <= limit).double() - ctx.quantile
            moved = (ctx.gain * short).to(level.dtype).view(level.shape)
        return changed, moved, None, None


class AdaptiveClipGradient(nn.Module):
    """Clip cotangents at a limit that follows a quantile of their lengths, privately.

    The logarithm of the limit is a parameter. A record's gradient of it is
    ``gain * (shorter - quantile)``, where `shorter` is one if its cotangent is within the limit and
    else zero, so at most `gain` long whatever the record; it is summed, gets noise and is charged
    with all other gradients of the step (Andrew et al. 2021; docs/proofs/layers.md#adaptive). For
    rules that bound layer by layer (`InputScaled`, `Propagated`, `PerLayer`), without a `knee`.

    Parameters
    ----------
    start : float
        First limit.
    quantile : float
        Share of cotangents that the limit should leave alone.
    gain : float
        With a learning rate r, the limit moves by at most the factor exp(r * gain) in a step; also
        how much of the noise budget it takes.
    least, most : float
        Between which the limit stays.

    Examples
    --------
    >>> layer = AdaptiveClipGradient(0.5)
    >>> round(layer.clip, 3)
    0.5
    """

    def __init__(
        self,
        start: float,
        quantile: float = 0.5,
        gain: float = 0.02,
        least: float = 1e-3,
        most: float = 1e3,
    ) -> None:
        super().__init__()
        self.least, self.most = checks.positive("least", least), checks.positive("most", most)
        if not self.least <= checks.positive("start", start) <= self.most:
            raise ValueError(f"start must lie between least {least:g} and most {most:g}")
        self.quantile = checks.fraction("quantile", quantile)
        self.gain = checks.positive("gain", gain)
        self.log_clip = nn.Parameter(torch.tensor([math.log(start)]))

    @property
    def clip(self) -> float:
        """The limit now."""
        logarithm = float(self.log_clip.detach().double())
        return min(max(math.exp(min(logarithm, 700.0)), self.least), self.most)

    def forward(self, x: Tensor) -> Tensor:
        """Return x; the clipping happens on the way back."""
        row = (x.detach().flatten(1)[:, :1] * 0.0).nan_to_num(0.0, 0.0, 0.0)
        level = (row + self.log_clip).clamp(math.log(self.least), math.log(self.most))
        result: Tensor = _Quantile.apply(x, level, self.quantile, self.gain)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Return the settings, and the limit as it is."""
        return f"clip={self.clip:g}, quantile={self.quantile:g}, gain={self.gain:g}"


@register(ClipGradient)
class ClipGradientRule(IdentityRule):
    """The cotangent that leaves is at most the clip, whatever arrives."""

    aligned = True

    def cotangent(self, call: Call[Any], index: int, arriving: float) -> float:
        """Smaller of the two."""
        return min(arriving, float(call.module.clip))


@register(RenewGradient)
class RenewGradientRule(IdentityRule):
    """The cotangent that leaves is at most the clip; it may be longer than what arrived."""

    renews = True

    def cotangent(self, call: Call[Any], index: int, arriving: float) -> float:
        """Return the clip."""
        return float(call.module.clip)


@register(AdaptiveClipGradient)
class AdaptiveClipGradientRule(IdentityRule):
    """As a clip at the present limit; the limit's own gradient is at most the gain."""

    parameters = ("log_clip",)
    aligned = True

    def cotangent(self, call: Call[Any], index: int, arriving: float) -> float:
        """Smaller of the two."""
        # The layer takes its limit in the parameter's own precision.
        return min(arriving, product(float(call.module.clip), 1 + 1e-5))

    def parameter_factors(self, call: Call[Any]) -> dict[str, float]:
        """None that a cotangent would be multiplied by."""
        return {"log_clip": 0.0}

    def own_gradients(self, call: Call[Any]) -> dict[str, float]:
        """Gain times the larger of both shares."""
        share = max(call.module.quantile, 1.0 - call.module.quantile)
        return {"log_clip": product(call.module.gain, share)}
