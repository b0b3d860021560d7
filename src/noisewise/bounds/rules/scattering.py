"""How much a bank of filters with subsampling can amplify: a Littlewood-Paley sum with aliases.

Keeping every k-th point of a filtered image adds up the k^2 frequencies that the coarse grid
cannot tell apart. In the unitary Fourier basis, with f + a running over the aliases of f,

    |T x|^2 = (1/k^2) sum_{classes} |sum_a h(f+a) x(f+a)|^2
           <= (1/k^2) sum_f |h(f)| (sum_a |h(f+a)|) |x(f)|^2

by Cauchy-Schwarz with weights |h| (Schur's test). So every band is at most a multiplication by
its *aliased energy* ``e(f) = |h(f)| sum_a |h(f+a)| / k^2``, bands add up, and the largest value
of the weighted sum bounds the squared norm of the whole bank. For k = 1 this is the ordinary
Littlewood-Paley sum. A real image has the same energy at f and -f, so the mean of both counts.
The frequencies are those of the periodic grid on which the convolution is done: no others occur.

This file knows nothing of the layer; the rule that uses it stands beside the layer.

Proof: docs/proofs/layers.md#scattering.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.arithmetic import product
from noisewise.bounds.norms.rounding import check_weight, relative

__all__ = ["Band", "bank_energy", "line_spectrum"]


@dataclass(frozen=True)
class Band:
    """Filters that are followed by the same subsampling and by maps of the same constant.

    Attributes
    ----------
    spectra : Tensor
        Moduli of the Fourier transforms, ``(filters, height, width)``.
    factor : int
        Every `factor`-th point is kept along both axes.
    weight : float
        Square of the Lipschitz constant of what follows.
    """

    spectra: Tensor
    factor: int
    weight: float

    def energy(self) -> Tensor:
        """Aliased energy at each frequency, summed over the filters."""
        modulus = self.spectra.detach().cpu().to(torch.float64).abs()
        count, height, width = modulus.shape
        k = self.factor
        folded = modulus.reshape(count, k, height // k, k, width // k).sum((1, 3))
        energy = (modulus * folded.repeat(1, k, k)).sum(0)
        return energy * (self.weight / k**2)


def bank_energy(bands: Iterable[Band]) -> float:
    """Bound on the squared norm of a bank of filters on real images, rounded up.

    Examples
    --------
    A filter that keeps everything, without subsampling, has norm one; every other point of
    its result can hold all the energy, too.

    >>> import torch
    >>> round(bank_energy([Band(torch.ones(1, 4, 4), 1, 1.0)]), 9)
    1.0
    >>> round(bank_energy([Band(torch.ones(1, 4, 4), 2, 1.0)]), 9)
    1.0
    """
    bands = list(bands)
    for band in bands:
        check_weight(band.spectra)
    total = torch.stack([band.energy() for band in bands]).sum(0)
    mirrored = total.flip(0, 1).roll((1, 1), (0, 1))
    largest = float(((total + mirrored) / 2).max())
    # All terms are non-negative, so every rounding is relative to the sum itself.
    terms = sum(band.factor**2 + len(band.spectra) for band in bands)
    return product(largest, 1.0 + relative(terms + 8))


def line_spectrum(line: Tensor) -> Tensor:
    """Moduli, rounded up, of the Fourier transform of a real filter along one axis."""
    values = line.detach().cpu().to(torch.float64)
    angle = torch.outer(*[torch.arange(len(values), dtype=torch.float64)] * 2)
    angle = (angle % len(values)) * (2 * torch.pi / len(values))
    real, imaginary = angle.cos() @ values, angle.sin() @ values
    # Both sums are inner products with cosines that are right to a few units.
    slack = 4 * relative(len(values)) * values.abs().sum()
    return torch.hypot(real, imaginary) + slack
