"""A layer that does nothing forward and clips each record's cotangent backward.

The hybrid of Béthune et al. (2024, section 3.1), in the form that is sound: per record, and for
losses that are summed over records, not averaged (docs/proofs/published.md#mean-reduction).
What passes is no longer a gradient but a multiple of it, record by record.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisewise.bounds import Call, register
from noisewise.bounds.norms.lengths import row_norms
from noisewise.bounds.rules.linear import IdentityRule
from noisewise.privacy import _validate

__all__ = ["ClipGradient"]


class _Clip(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, clip: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.clip = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        # Trusted code: function modes, which follow what users call, are left out.
        with torch._C.DisableTorchFunction():
            norm = row_norms(cotangent).to(cotangent.dtype)
            # A little below the limit, so that rounding cannot lift a record above it.
            limit = ctx.clip * (1.0 - 16 * torch.finfo(cotangent.dtype).eps)
            tiny = torch.finfo(cotangent.dtype).tiny
            scale = (limit / norm.clamp_min(tiny)).clamp_max(1.0)
            spread = (-1,) + (1,) * (cotangent.dim() - 1)
            kept = torch.isfinite(norm).view(spread)
            shorter = torch.where(kept, cotangent * scale.view(spread), 0.0)
        return shorter, None


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
        self.clip = _validate.positive("clip", clip)

    def forward(self, x: Tensor) -> Tensor:
        """Return x; the clipping happens on the way back."""
        result: Tensor = _Clip.apply(x, self.clip)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"clip={self.clip:g}"


@register(ClipGradient)
class ClipGradientRule(IdentityRule):
    """The cotangent that leaves is at most the clip, whatever arrives."""

    aligned = True

    def cotangent(self, call: Call[Any], index: int, arriving: float) -> float:
        """Smaller of the two."""
        return min(arriving, float(call.module.clip))
