"""Filters of the wavelet scattering transform: Morlet wavelets and a Gaussian, in Fourier.

Bruna and Mallat, *Invariant scattering convolution networks* (2013), section 2.1, with the
constants that the usual packages share: at scale 2^j a Gaussian envelope of deviation
0.8 * 2^j, flattened across the wave by the slant 4/L, and frequency (3 pi / 4) / 2^j at L angles
of half a turn. A multiple of the envelope is taken away so that a wavelet's values on the grid
add up to zero. Everything is periodic on the padded grid and computed in binary64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["averages", "coarsen", "gaussian", "morlet", "padded_size", "wavelets"]

_ENVELOPE = 0.8
_FREQUENCY = 0.75 * math.pi
# Copies of the grid on each side that a periodic filter is summed over. Beyond them an envelope
# of slant 1/2 is below exp(-10), which is what the published filters leave out as well.
_COPIES = 2


def padded_size(size: int, J: int) -> int:
    """Size of an axis with room for the averaging window on both sides, a multiple of 2^J."""
    window = 1 << J
    return ((size + window) // window + 1) * window


def gaussian(size: int, J: int) -> Tensor:
    """One axis of the averaging filter: a periodic Gaussian of deviation 0.8 * 2^(J-1).

    The filter in two dimensions is the outer product of its lines, so it is never formed.
    """
    deviation = _ENVELOPE * 2 ** (J - 1)
    bell: Tensor = torch.exp(-_copies(size).square() / (2 * deviation**2)).sum(0)
    return bell.div(math.sqrt(2 * math.pi) * deviation)


def averages(size: int, J: int, level: int) -> Tensor:
    """Line of the averaging filter on the grid of every 2^level-th point."""
    spectrum = torch.fft.fft(gaussian(size, J)).real
    line: Tensor = torch.fft.ifft(coarsen(spectrum, level, axes=1)).real
    return line


def morlet(height: int, width: int, j: int, angle: float, slant: float) -> Tensor:
    """Fourier transform of one wavelet, real because the wavelet is Hermitian, zero at zero."""
    deviation, frequency = _ENVELOPE * 2**j, _FREQUENCY / 2**j
    cos, sin = math.cos(angle), math.sin(angle)
    envelope = torch.zeros(height, width, dtype=torch.float64)
    wave = torch.zeros(height, width, dtype=torch.complex128)
    for rows in _copies(height):
        for columns in _copies(width):
            along = cos * rows[:, None] + sin * columns
            across = cos * columns - sin * rows[:, None]
            bell = torch.exp(-(along.square() + (slant * across).square()) / (2 * deviation**2))
            envelope += bell
            wave += torch.polar(bell, frequency * along)
    envelope *= slant / (2 * math.pi * deviation**2)
    wave *= slant / (2 * math.pi * deviation**2)
    wavelet = wave - (wave.sum() / envelope.sum()) * envelope
    spectrum: Tensor = torch.fft.fft2(wavelet).real
    spectrum[0, 0] = 0.0  # zero up to rounding
    return spectrum


def wavelets(height: int, width: int, j: int, L: int) -> Tensor:
    """Fourier transforms of the L wavelets of scale 2^j, ``(L, height, width)``."""
    angles = [(int(L / 2 - 1) - index) * math.pi / L for index in range(L)]
    return torch.stack([morlet(height, width, j, angle, 4.0 / L) for angle in angles])


def coarsen(spectrum: Tensor, level: int, axes: int = 2) -> Tensor:
    """Filter for the grid of every 2^level-th point: the frequencies that this grid has.

    Each of the last `axes` axes keeps its frequencies from -size/2 (included) to size/2, where
    size is that of the coarse grid.
    """
    for axis in range(-axes, 0):
        half = spectrum.shape[axis] // 2 ** (level + 1)
        rest = spectrum.shape[axis] // 2**level - half
        ends = spectrum.narrow(axis, 0, rest), spectrum.narrow(axis, -half, half)
        spectrum = torch.cat(ends, dim=axis) if level else spectrum
    return spectrum


def _copies(size: int) -> Tensor:
    """Coordinates of the grid and of its copies around the origin, ``(copies, size)``."""
    shifts = torch.arange(-_COPIES, _COPIES + 1, dtype=torch.float64) * size
    return shifts[:, None] + torch.arange(size, dtype=torch.float64)
