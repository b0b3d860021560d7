"""Dense layers whose norm is certified to stay within a limit.

The weight is an ordinary parameter: it is projected after the step (`project_`), not
reparametrised, so that gradient bounds of a plain linear layer apply to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.bounds import NormCache
from noisewise.bounds.norms import NormBound, induced_norm
from noisewise.nn.projections import (
    PROJECTIONS,
    bjorck_,
    clip_absolute_sums,
    clip_singular_values,
    clip_weights,
    fix_weights,
)

__all__ = ["FrobeniusLinear", "InducedLinear", "SpectralLinear"]


_CHANGES: dict[str, Callable[..., NormBound]] = {
    "clip": clip_weights,
    "fix": fix_weights,
    "singular-values": clip_singular_values,
    "bjorck": bjorck_,
}


class SpectralLinear(nn.Linear):
    """A linear layer with spectral norm at most `limit`.

    Parameters
    ----------
    in_features, out_features, bias
        As of `torch.nn.Linear`. The bias is free: bounds use its norm as it is.
    limit : float
        Largest spectral norm after `project_`, and at construction.
    projection : str
        ``singular-values`` (the nearest matrix, default), ``clip``, ``fix`` or ``bjorck``; see
        `noisewise.nn.projections`.

    Examples
    --------
    >>> layer = SpectralLinear(8, 4, limit=2.0)
    >>> float(layer.norm_bound()) <= 2.0
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        limit: float = 1.0,
        *,
        projection: str = "singular-values",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.limit = checks.positive("limit", limit)
        self.projection = checks.choice("projection", projection, PROJECTIONS)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.norms = NormCache(tolerance=0.01)
        self.project_()

    def reset_parameters(self) -> None:
        """Draw an orthogonal weight on the limit; the bias starts at zero."""
        with torch.no_grad():
            wide = self.weight.new_empty(self.weight.shape, dtype=torch.float32)
            self.weight.copy_(nn.init.orthogonal_(wide) * self.limit)
            if self.bias is not None:
                self.bias.zero_()

    def _norm(self, weight: Tensor) -> NormBound:
        return self.norms.spectral_norm(weight)

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm of the stored weight."""
        return self._norm(self.weight)

    def project_(self) -> NormBound:
        """Bring the weight back to norm <= limit, certified; return its norm."""
        check_finite(self)
        change = _CHANGES[self.projection]
        self._norm(self.weight)  # looks at the values; below, only this method changes them
        with self.norms.undisturbed():
            return change(self.weight, self.limit, self._norm, rescale=self.norms.rescale_)

    def extra_repr(self) -> str:
        """Options beyond those of the torch layer."""
        return f"{super().extra_repr()}, limit={self.limit:g}, projection={self.projection!r}"


class FrobeniusLinear(nn.Linear):
    """A linear layer with Frobenius norm, hence spectral norm, at most `limit`.

    Cheaper and cruder than `SpectralLinear`. Rescaling is the exact projection here.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        limit: float = 1.0,
        *,
        projection: str = "clip",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.limit = checks.positive("limit", limit)
        self.projection = checks.choice("projection", projection, ("clip", "fix"))
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.norms = NormCache(tolerance=0.0)
        self.project_()

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm of the stored weight."""
        return self.norms.spectral_norm(self.weight, method="frobenius")

    def project_(self) -> NormBound:
        """Bring the weight back to Frobenius norm <= limit, certified; return its norm."""
        check_finite(self)
        change = clip_weights if self.projection == "clip" else fix_weights
        return change(self.weight, self.limit, lambda _: self.norm_bound())

    def extra_repr(self) -> str:
        """Options beyond those of the torch layer."""
        return f"{super().extra_repr()}, limit={self.limit:g}, projection={self.projection!r}"


class InducedLinear(nn.Linear):
    """A linear layer with norm at most `limit` between l_p and l_p, p = 1, 2 or infinity.

    For p = infinity absolute row sums are at most the limit, for p = 1 column sums: what the
    largest entry, or the sum of entries, can grow by. Weights are projected on the nearest such
    matrix after the step. Privacy is counted in Euclidean norms, so bounds on gradients take the
    certified spectral norm of the weight, whatever p is.

    Parameters
    ----------
    in_features, out_features, bias
        As of `torch.nn.Linear`.
    limit : float
        Largest induced norm after `project_`, and at construction.
    p : 1, 2 or infinity

    Examples
    --------
    >>> layer = InducedLinear(8, 4, p=float("inf"))
    >>> bool(layer.weight.abs().sum(1).max() <= 1.0)
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        limit: float = 1.0,
        *,
        p: float = math.inf,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.limit, self.p = checks.positive("limit", limit), p
        if p not in (1, 2, math.inf):
            raise ValueError(f"p must be 1, 2 or infinity, got {p!r}")
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.project_()

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the induced norm of the stored weight."""
        return induced_norm(self.weight.detach(), self.p)

    def project_(self) -> NormBound:
        """Bring the weight back to induced norm <= limit, certified; return its norm."""
        check_finite(self)
        if self.p == 2:
            return clip_singular_values(self.weight, self.limit)
        return clip_absolute_sums(self.weight, self.limit, self.p)

    def extra_repr(self) -> str:
        """Options beyond those of the torch layer."""
        return f"{super().extra_repr()}, limit={self.limit:g}, p={self.p:g}"


def check_finite(layer: Any) -> None:
    """Refuse a bias about which nothing holds; the weight's own norm refuses the weight."""
    if layer.bias is not None and not bool(torch.isfinite(layer.bias).all()):
        raise ValueError(
            f"the bias of {type(layer).__name__} has NaN or infinite entries, so no bound of the "
            "layer holds; restore a checkpoint or lower the learning rate"
        )
