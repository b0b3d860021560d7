"""Wavelet scattering: fixed features of images that no record had a part in.

Bruna and Mallat, *Invariant scattering convolution networks* (2013): averages of an image
(order 0), of the moduli of its wavelet coefficients (order 1), and of the moduli of the wavelet
coefficients of those (order 2), at L angles and the scales 2^0 to 2^(J-1). Nothing is learnt, so
features cost no privacy, and each record's depend on that record alone.

Convolutions are periodic on an image that was padded by its mirror image. A coarse scale is
computed on a coarse grid, by folding the spectrum before the inverse transform; the averages,
whose filter is a product of lines, are two small matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise import checks
from noisewise.arithmetic import product, root
from noisewise.bounds import Call, LayerRule, Shape, Signal, register, rule_for
from noisewise.bounds.rules import (
    Band,
    bank_energy,
    copies_of_entries,
    line_spectrum,
    padding_sources,
)
from noisewise.nn.normalisation import LipschitzGroupNorm, LipschitzGroupNormRule
from noisewise.nn.plain import register_plain, traced
from noisewise.nn.plain.export import Export
from noisewise.nn.scattering_filters import averages, coarsen, padded_size, wavelets

__all__ = ["Scattering2d"]

_TYPES = (torch.float32, torch.float64)


class Scattering2d(nn.Module):
    """Wavelet scattering of images, ``(batch, channels, height, width)``, as fixed features.

    The result has ``channels * paths`` channels (all paths of the first colour, then those of
    the next) of ``height // 2**J`` by ``width // 2**J`` points. With order 2 there are
    ``1 + L J + L^2 J (J-1)/2`` paths: 81 for J=2, L=8. They come in the usual order: the average,
    then ``(j1, angle1)``, then ``(j1, angle1, j2, angle2)``.

    Parameters
    ----------
    shape : pair of int
        Height and width of an image; both larger than ``2**J``.
    J : int
        Octaves; averages are over windows of about ``2**J`` points.
    L : int
        Angles of half a turn.
    order : {0, 1, 2}
        How many wavelet transforms a path holds at most.
    channels : int
        Colours of an image; each is transformed by itself. An input ``(batch, height, width)``
        is read as one colour.
    normalise : int, optional
        Group normalisation of each record's own features, in this many groups of channels.
    alpha : float
        Least deviation that a group is divided by, if they are normalised; the slope of
        the layer grows as ``1/alpha``. Images in [0, 1] have features of about 0.01.
    dtype : torch.dtype, optional
        Precision of the stored filters; that of the computation is the input's.

    Notes
    -----
    Filters are derived anew, not saved: they are no part of the ``state_dict``.

    Examples
    --------
    >>> import torch
    >>> layer = Scattering2d((28, 28), J=2, normalise=27)
    >>> layer(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 81, 7, 7])
    """

    def __init__(
        self,
        shape: Sequence[int],
        J: int = 2,
        L: int = 8,
        order: int = 2,
        *,
        channels: int = 1,
        normalise: int | None = None,
        alpha: float = 1e-3,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.J = checks.integer("J", J, minimum=1)
        self.L = checks.integer("L", L, minimum=1)
        self.order = checks.integer("order", order, maximum=2)
        self.channels = checks.integer("channels", channels, minimum=1)
        self.shape = _image_shape(shape, self.J)
        self.padded = tuple(padded_size(size, self.J) for size in self.shape)
        self._add_filters(torch.get_default_dtype() if dtype is None else dtype)
        self.normalise = normalise
        self.norm: nn.Module = nn.Identity()
        if normalise is not None:
            self.norm = LipschitzGroupNorm(normalise, self.channels * self.paths, alpha)

    def _add_filters(self, dtype: torch.dtype) -> None:
        if dtype not in _TYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        height, width = self.padded
        for level in range(self.J):
            for axis, size in enumerate((height, width)):
                line = averages(size, self.J, level).to(dtype)
                self.register_buffer(f"average_{level}_{axis}", line, persistent=False)
        for j in range(self.J if self.order else 0):
            spectra = wavelets(height, width, j, self.L)
            for level in range(max(j, 1)):
                if level == 0 or self.order == 2:
                    filters = coarsen(spectra, level).to(dtype)
                    self.register_buffer(f"wavelet_{level}_{j}", filters, persistent=False)

    @property
    def paths(self) -> int:
        """Features of one colour at one point."""
        second = self.L**2 * self.J * (self.J - 1) // 2
        return sum((1, self.L * self.J, second)[: self.order + 1])

    @property
    def output_shape(self) -> Shape:
        """Shape of one record's features."""
        rows, columns = (size // 2**self.J - 2 for size in self.padded)
        return self.channels * self.paths, rows, columns

    def forward(self, x: Tensor) -> Tensor:
        """Scatter each record, then normalise it by itself if so set."""
        expected = (self.channels, *self.shape)
        if tuple(x.shape[1:]) not in (expected, expected[1:] if self.channels == 1 else expected):
            raise ValueError(
                f"images must have shape {expected}, got a batch of shape {tuple(x.shape)}"
            )
        if x.dtype not in _TYPES:
            raise TypeError(
                f"images must be float32 or float64, got {x.dtype}, for which there is no Fourier "
                "transform on every device. Convert them, for example images.float() / 255."
            )
        if len(x) == 0:  # a Poisson batch may be empty, a Fourier transform may not
            return x.sum() * x.new_zeros((0, *self.output_shape))
        result: Tensor = self.norm(self.scatter(x, self.operators(x.dtype)))
        return result

    def operators(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Matrices of the averages and spectra of the wavelets, by the names of their filters."""
        filters = {name: value.to(dtype) for name, value in self.named_buffers(recurse=False)}
        for level in range(self.J):
            for axis in (0, 1):
                name = f"average_{level}_{axis}"
                filters[name] = _window_matrix(filters[name], 2 ** (self.J - level))
        return filters

    def scatter(self, x: Tensor, filters: Mapping[str, Tensor]) -> Tensor:
        """Transform with given operators; no decision depends on a tensor's shape or type."""
        images = functional.pad(x.reshape(-1, 1, *self.shape), self._pads(), mode="reflect")
        first, second = [self._average(images, 0, filters)], []
        spectrum = torch.fft.fft2(images.squeeze(1))
        for j in range(self.J if self.order else 0):
            moduli = self._modulus(spectrum, 0, j, filters)
            first.append(self._average(moduli, j, filters))
            if self.order == 2 and j + 1 < self.J:
                inner = torch.fft.fft2(moduli)
                parts = [
                    self._average(self._modulus(inner, j, i, filters), i, filters)
                    for i in range(j + 1, self.J)
                ]
                second.append(torch.cat(parts, dim=2).flatten(1, 2))
        return torch.cat([*first, *second], dim=1).reshape(-1, *self.output_shape)

    def _pads(self) -> tuple[int, int, int, int]:
        """Mirrored rows and columns: left, right, top, bottom, as torch wants them."""
        (top, left), (bottom, right) = zip(*map(_pad, self.shape, self.padded), strict=True)
        return left, right, top, bottom

    @staticmethod
    def _average(values: Tensor, level: int, filters: Mapping[str, Tensor]) -> Tensor:
        """Average images of the grid of a level, at every 2^J-th point inside the padding."""
        averaged: Tensor = filters[f"average_{level}_0"] @ values @ filters[f"average_{level}_1"].T
        return averaged

    def _modulus(
        self, spectrum: Tensor, level: int, j: int, filters: Mapping[str, Tensor]
    ) -> Tensor:
        """Moduli of the wavelet coefficients of scale 2^j, on the grid of that scale."""
        factor = 1 << (j - level)
        # The spectra are real: products of real numbers cost half of those of complex ones.
        parts = torch.view_as_real(spectrum).unsqueeze(-4)
        scale = filters[f"wavelet_{level}_{j}"].unsqueeze(-1) / factor**2
        height, width = (size >> j for size in self.padded)
        folded: Tensor | None = None
        for top in range(0, factor * height, height):
            for left in range(0, factor * width, width):
                window = (..., slice(top, top + height), slice(left, left + width), slice(None))
                one, other = parts[window], scale[window]
                folded = one * other if folded is None else torch.addcmul(folded, one, other)
        assert folded is not None
        moduli: Tensor = torch.fft.ifft2(torch.view_as_complex(folded)).abs()
        return moduli

    def features(self, images: Tensor, batch_size: int = 64) -> Tensor:
        """Features of many images, without gradients, in batches that fit a processor's cache.

        Examples
        --------
        >>> import torch
        >>> layer = Scattering2d((8, 8), J=1, L=2)
        >>> layer.features(torch.rand(100, 8, 8)).shape
        torch.Size([100, 3, 4, 4])
        """
        size = checks.integer("batch_size", batch_size, minimum=1)
        result = images.new_empty((len(images), *self.output_shape))
        with torch.no_grad():
            for start in range(0, len(images), size):
                result[start : start + size] = self(images[start : start + size])
        return result

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        colours = "" if self.channels == 1 else f", channels={self.channels}"
        return f"{self.shape}, J={self.J}, L={self.L}, order={self.order}{colours}"


def _image_shape(shape: Sequence[int], J: int) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(
            f"shape must be the height and width of an image, got {tuple(shape)}; give the "
            "number of colours as channels="
        )
    height, width = (checks.integer("shape", size, minimum=1) for size in shape)
    if min(height, width) <= 2**J:
        raise ValueError(
            f"images of {height} by {width} points are too small for windows of 2**J = {2**J}: "
            "use a smaller J"
        )
    return height, width


def _pad(size: int, padded: int) -> tuple[int, int]:
    return (padded - size) // 2, padded - size - (padded - size) // 2


def _window_matrix(line: Tensor, step: int) -> Tensor:
    """Periodic filtering with every `step`-th result kept, the first and the last left out."""
    size = line.shape[0]
    kept = torch.arange(1, size // step - 1, device=line.device)[:, None] * step
    return line[(kept - torch.arange(size, device=line.device)) % size]


@register_plain(Scattering2d)
def _plain(layer: Scattering2d, export: Export) -> nn.Module:
    filters = layer.operators(_TYPES[export.numbers.bits == 64])

    def scatter(x: Tensor, norm: nn.Module, **parts: Tensor) -> Tensor:
        normalised: Tensor = norm(layer.scatter(x, parts))
        return normalised

    plain = traced(scatter, 1, norm=export.module(layer.norm), **filters)
    plain._non_persistent_buffers_set.update(filters)  # constants, as in the layer: not saved
    return plain


@register(Scattering2d)
class ScatteringRule(LayerRule[Scattering2d]):
    """Recursion over the orders, with a Littlewood-Paley sum at each.

    The modulus is 1-Lipschitz, so for images x and y the features of the paths through a
    wavelet differ by at most G |(x - y) * wavelet|, with G the constant of what follows. The
    sum of squares over all wavelets, with weights G^2, and of the average, is at most
    ``bank_energy`` times |x - y|^2. Leaving out the border does not enlarge anything, mirrors
    repeat a pixel at most a known number of times, and zero is mapped to zero.
    """

    def check(self, call: Call[Scattering2d]) -> None:
        """Refuse a normalisation that is not the layer's own."""
        if type(call.module.norm) not in (nn.Identity, LipschitzGroupNorm):
            call.refuse(
                f"had its normalisation replaced by {type(call.module.norm).__name__}.",
                "Use normalise=, and put other layers after this one.",
            )
        rule_for(call.module.norm, f"{call.path}.norm")

    def output_norm(self, call: Call[Scattering2d]) -> float:
        """Slope times norm; with normalisation also the root of the number of features."""
        raw = product(call.norm, self._slope(call))
        inner = self._normalisation(call, raw)
        return raw if inner is None else LipschitzGroupNormRule().output_norm(inner)

    def lipschitz(self, call: Call[Scattering2d]) -> float:
        """Slope of the transform times that of the normalisation."""
        inner = self._normalisation(call, 0.0)
        factor = 1.0 if inner is None else LipschitzGroupNormRule().lipschitz(inner)
        return product(self._slope(call), factor)

    @staticmethod
    def _normalisation(call: Call[Scattering2d], norm: float) -> Call[LipschitzGroupNorm] | None:
        layer = call.module.norm
        if not isinstance(layer, LipschitzGroupNorm):
            return None
        signal = Signal(call.output_shape, norm)
        return Call(layer, call.path, (signal,), call.output_shape, call.norms)

    def _slope(self, call: Call[Scattering2d]) -> float:
        return call.norms.of(("scattering", id(call.module)), lambda: _slope(call.module))


def _slope(layer: Scattering2d) -> float:
    """Lipschitz constant of the transform, padding included, normalisation not."""
    mirrored = 1
    for size, padded in zip(layer.shape, layer.padded, strict=True):
        mirrored *= copies_of_entries(padding_sources(size, *_pad(size, padded), "reflect"), size)
    return product(root(mirrored), root(_energy(layer, 0, layer.order, range(layer.J))))


def _energy(layer: Scattering2d, level: int, order: int, scales: range) -> float:
    """Squared Lipschitz constant of all paths of at most `order` further wavelets."""
    rows, columns = (line_spectrum(layer.get_buffer(f"average_{level}_{axis}")) for axis in (0, 1))
    bands = [Band(torch.outer(rows, columns)[None], 2 ** (layer.J - level), 1.0)]
    for j in scales if order else ():
        after = _energy(layer, j, order - 1, range(j + 1, layer.J))
        bands.append(Band(layer.get_buffer(f"wavelet_{level}_{j}"), 2 ** (j - level), after))
    return bank_energy(bands)
