"""From a bounded sum to a noisy mean: the one place where private gradients become public.

Contract, point 1: the sum over records, plus noise, divided by the *expected* batch size. The
noise of group k has the deviation of :mod:`noisewise.training.allocation`; it is added to the
gradient of the effective weight, and the engine then pulls the result back to the stored one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from noisewise.privacy import Randomness
from noisewise.training.allocation import deviations

__all__ = [
    "Approval",
    "BoundedSumLike",
    "EngineLike",
    "GroupLike",
    "NoisePlan",
    "add_noise",
    "digest_of",
]

#: Decides, with the noisy mean at hand and before anybody else sees it, whether it is released.
Approval = Callable[[Mapping[str, Tensor]], bool]


class GroupLike(Protocol):
    """Gradients that share a bound; see :class:`noisewise.gradients.Group`."""

    @property
    def name(self) -> str:
        """Name of the group."""
        ...

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """Sums over records."""
        ...

    @property
    def sensitivity(self) -> float:
        """Largest norm of one record's contribution."""
        ...

    @property
    def size(self) -> int:
        """Number of entries."""
        ...


class BoundedSumLike(Protocol):
    """A sum over the records of a batch; see :class:`noisewise.gradients.BoundedSum`."""

    @property
    def groups(self) -> Sequence[GroupLike]:
        """Groups of parameters, in a fixed order."""
        ...

    @property
    def records(self) -> int:
        """Number of records in the sum."""
        ...

    def add(self, other: Any) -> Any:
        """The sum over both batches."""
        ...


class EngineLike(Protocol):
    """What training needs of :class:`noisewise.gradients.GradientEngine`."""

    progress: float
    parameters: dict[str, Any]
    losses_of: Callable[[Any, Any], Tensor]
    unevenness: float

    @property
    def assumed(self) -> Any:
        """What is vouched for instead of proven, or None."""
        ...

    def accept_buffers(self) -> None:
        """Take the model's buffers as they are now for public."""
        ...

    def sum(self, x: Any, y: Any) -> BoundedSumLike:
        """Bounded sum over a batch."""
        ...

    def zeros(self, x: Any) -> BoundedSumLike:
        """Bounded sum over no records like those of x."""
        ...

    def pull_back(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of effective weights as gradients of stored ones."""
        ...

    def detach(self) -> Any:
        """Give the model back as it was before :meth:`forward`."""
        ...

    def forward(self, x: Any) -> Any:
        """Open a batch and run the model."""
        ...

    def losses(self, output: Any, y: Any) -> Tensor:
        """The mean loss of the open batch."""
        ...

    def collect(self) -> BoundedSumLike:
        """Close the batch."""
        ...

    def discard(self) -> None:
        """Close the batch without using it."""
        ...


class NoisePlan:
    """Deviations of the groups of one step; computed, and refused if invalid, before a charge."""

    def __init__(
        self, sensitivities: Sequence[float], sizes: Sequence[int], sigma: float, allocation: str
    ) -> None:
        self.deviations = deviations(sensitivities, sizes, sigma, allocation)


def add_noise(
    groups: Sequence[GroupLike],
    noise: NoisePlan,
    rng: Randomness,
    divisor: float,
    types: Mapping[str, torch.dtype],
) -> dict[str, Tensor]:
    """Return (sum + noise) / divisor for every tensor of every group, in the types given.

    Noise comes before rounding: two sums that are close may round to numbers further apart. It
    is drawn in float32 at least, whatever the type of the sum, so that the same seed gives the
    same noise however the batch was cut.
    """
    names: list[str] = []
    sums: list[Tensor] = []
    stds: list[float] = []
    quiet: dict[str, Tensor] = {}
    for group, deviation in zip(groups, noise.deviations, strict=True):
        for name, gradient in group.gradients.items():
            if deviation == 0.0:
                # No record can move this group: the sum is zero whatever the data.
                quiet[name] = torch.zeros_like(gradient, dtype=types[name])
                continue
            names.append(name)
            sums.append(gradient)
            stds.append(deviation / divisor)
    with torch.no_grad():
        alike = [_like(gradient, types[name]) for name, gradient in zip(names, sums, strict=True)]
        drawn = rng.normal_for(alike, stds) if sums else []
        noisy = {
            name: _mean(gradient, noise_, divisor).to(types[name])
            for name, gradient, noise_ in zip(names, sums, drawn, strict=True)
        }
    return {**noisy, **quiet}


def digest_of(mean: Mapping[str, Tensor]) -> str:
    """SHA-256 of a noisy mean, to the bit; it says no more than the mean, which is public."""
    total = hashlib.sha256()
    for name, tensor in mean.items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()


def _like(gradient: Tensor, kind: torch.dtype) -> Tensor:
    """A tensor of this shape and place that takes no memory."""
    kind = torch.promote_types(kind, torch.float32)
    return torch.empty((), dtype=kind, device=gradient.device).expand(gradient.shape)


def _mean(gradient: Tensor, noise: Tensor, divisor: float) -> Tensor:
    """Noise of the mean plus the mean; in place where the noise is not the narrower one."""
    wide = torch.promote_types(gradient.dtype, noise.dtype)
    return noise.to(wide).add_(gradient, alpha=1.0 / divisor)
