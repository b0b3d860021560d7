"""Noise on the tensors of one training step: a sum over records becomes a noisy mean.

The sum, plus noise, divided by the *expected* batch size, a public constant. Noise comes before
rounding and before the division, which rounds: two sums that are close may round to numbers further
apart. It is drawn in float32 at
least, whatever the type of the sum, so that the same seed gives the same noise however the batch
was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from noisewise.privacy import Event, Randomness, Sensitivity, training_step
from noisewise.release.allocation import deviations

__all__ = ["TensorNoise"]


@dataclass(frozen=True, eq=False)
class TensorNoise:
    """Gaussian noise, spread over groups of tensors.

    Planning it checks it: what is invalid is refused before a charge.

    Parameters
    ----------
    sensitivity : tuple of Sensitivity
        How far one record, added or removed, moves each group.
    sizes : tuple of int
        Entries of each group.
    noise_multiplier, sample_rate : float
        Of the step, as the accountant knows it.
    allocation : {"optimal", "per-layer", "global"}
        How noise is spread; see :mod:`noisewise.release.allocation`.
    divisor : float
        The expected batch size.
    types : mapping of str to dtype
        Of the results, by name.
    unit_rows : int, optional
        How many of the records belong to one unit, at most; default: every record is one.
    """

    sensitivity: tuple[Sensitivity, ...]
    sizes: tuple[int, ...]
    noise_multiplier: float
    allocation: str
    divisor: float
    types: Mapping[str, torch.dtype]
    sample_rate: float = 1.0
    unit_rows: int | None = None
    deviations: list[float] = field(init=False)

    def __post_init__(self) -> None:
        bounds = [part.value for part in self.sensitivity]
        spread = deviations(bounds, self.sizes, self.noise_multiplier, self.allocation)
        object.__setattr__(self, "deviations", spread)

    @cached_property
    def event(self) -> Event:
        """One noisy sum over a Poisson sample."""
        return training_step(self.noise_multiplier, self.sample_rate, self.unit_rows)

    @property
    def description(self) -> str:
        """One line."""
        return f"Gaussian noise ({self.allocation} allocation), divided by {self.divisor:g}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Said by the run, for all its steps."""
        return ()

    def applied(self, exact: Sequence[Mapping[str, Tensor]], rng: Randomness) -> dict[str, Tensor]:
        """Return (sum + noise) / divisor for every tensor of every group."""
        names: list[str] = []
        sums: list[Tensor] = []
        stds: list[float] = []
        quiet: dict[str, Tensor] = {}
        for group, deviation in zip(exact, self.deviations, strict=True):
            for name, gradient in group.items():
                if deviation == 0.0:
                    # No record can move this group: the sum is zero whatever the data.
                    quiet[name] = torch.zeros_like(gradient, dtype=self.types[name])
                    continue
                names.append(name)
                sums.append(gradient)
                stds.append(deviation)
        with torch.no_grad():
            kinds = [self.types[name] for name in names]
            # Asked for shape, type and place alone.
            alike = [
                total if total.dtype is kind is torch.float32 else _like(total, kind)
                for total, kind in zip(sums, kinds, strict=True)
            ]
            drawn = rng.normal_for(alike, stds) if sums else []
            alone = any(s.dtype is not n.dtype for s, n in zip(sums, drawn, strict=True))
            if sums and not alone:
                # The same sums as below, in one call.
                torch._foreach_add_(drawn, sums)
                torch._foreach_mul_(drawn, 1.0 / self.divisor)
                means = drawn
            else:
                pairs = zip(sums, drawn, strict=True)
                means = [_mean(total, noise, self.divisor) for total, noise in pairs]
            typed = zip(names, kinds, means, strict=True)
            noisy = {n: mean if mean.dtype is kind else mean.to(kind) for n, kind, mean in typed}
        return {**noisy, **quiet} if quiet else noisy


def _like(gradient: Tensor, kind: torch.dtype) -> Tensor:
    """A tensor of this shape and place, and of the type of its noise, that takes no memory."""
    kind = torch.promote_types(kind, torch.float32)
    if gradient.dtype == kind:
        return gradient
    return torch.empty((), dtype=kind, device=gradient.device).expand(gradient.shape)


def _mean(gradient: Tensor, noise: Tensor, divisor: float) -> Tensor:
    """Noise plus sum, divided; in place where the noise is not the narrower one."""
    wide = torch.promote_types(gradient.dtype, noise.dtype)
    return noise.to(wide).add_(gradient).mul_(1.0 / divisor)
