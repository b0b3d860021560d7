"""Made-up pictures: "dead leaves", overlapping textured shapes, from a formula and a seed.

No photograph had a part in them. Shapes with radii of density 1/r^2, colour fields of amplitude
1/f^a and opponent colours of unequal spread give patches whose statistics are near enough to
those of photographs to learn filters and whitening from (Tang et al. 2023 prepare private training
by random processes).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["dead_leaves"]

_OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
#: Brightness varies most, opponent colours less.
_SPREAD = (1.0, 0.35, 0.18)
_CHUNK = 500


def dead_leaves(
    count: int, channels: int, height: int, width: int, seed: int = 0, most: int = 24
) -> Tensor:
    """Draw 2 to `most` superellipses on a texture, with values in [0, 1].

    Parameters
    ----------
    count : int
    channels : {1, 3}
    height, width : int
    seed : int
        Public: the same pictures come again.
    most : int
        Shapes in a picture.

    Returns
    -------
    Tensor of shape (count, channels, height, width)

    Examples
    --------
    >>> tuple(dead_leaves(2, 3, 16, 12).shape)
    (2, 3, 16, 12)
    """
    if channels not in (1, 3):
        raise ValueError(f"drawings are grey or coloured, so channels is 1 or 3, got {channels}")
    draw = _Drawer(height, width, torch.Generator().manual_seed(seed))
    parts = [draw(min(_CHUNK, count - start), most) for start in range(0, count, _CHUNK)]
    images = torch.cat(parts)
    return images if channels == 3 else images.mean(1, keepdim=True)


class _Drawer:
    def __init__(self, height: int, width: int, generator: torch.Generator) -> None:
        self.size = (2 * height, 2 * width)  # drawn at twice the size, then averaged
        self.generator = generator
        scale = torch.tensor([3.0, 2.0, 6.0]).sqrt()[:, None]
        self.opponent = torch.tensor(_OPPONENT) / scale
        self.spread = torch.tensor(_SPREAD)
        longest = max(self.size)
        rows, columns = (torch.linspace(-s / longest, s / longest, s) for s in self.size)
        self.y, self.x = torch.meshgrid(rows, columns, indexing="ij")

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def colours(self, count: int) -> Tensor:
        return (self.randn(count, 3) * self.spread @ self.opponent)[:, :, None, None]

    def textures(self, count: int) -> Tensor:
        """Gaussian colour fields with amplitude 1/f^a, a in [0.8, 1.8], stretched at random."""
        down, across = (torch.fft.fftfreq(size) for size in self.size)
        power = 0.8 + self.rand(count, 1, 1)
        angle = math.pi * self.rand(count, 1, 1)
        stretch = torch.exp(0.6 * self.randn(count, 1, 1))
        u = (across * angle.cos() + down[:, None] * angle.sin()) * stretch
        v = (down[:, None] * angle.cos() - across * angle.sin()) / stretch
        amplitude = (u * u + v * v + (0.5 / max(self.size)) ** 2).sqrt() ** -power
        amplitude[:, 0, 0] = 0
        noise = torch.fft.fft2(self.randn(count, 3, *self.size))
        field = torch.fft.ifft2(noise * amplitude[:, None]).real
        field = field / field.std((2, 3), keepdim=True)
        return torch.einsum("nkhw,k,kc->nchw", field, self.spread, self.opponent)

    def __call__(self, count: int, most: int) -> Tensor:
        image = self.textures(count) * (0.25 * self.rand(count, 1, 1, 1))
        image = image + 0.25 * self.colours(count)
        texture = self.textures(count)
        leaves = torch.randint(2, most + 1, (count,), generator=self.generator)
        for index in range(most):
            on = (index < leaves).nonzero()[:, 0]
            if len(on):
                inside, fill = self.leaf(texture[on])
                image[on] = torch.where(inside, fill, image[on])
        return (functional.avg_pool2d(image, 2) + 0.48).clamp(0, 1)

    def leaf(self, texture: Tensor) -> tuple[Tensor, Tensor]:
        """One shape for each picture: where it is, and what it is filled with."""
        count = len(texture)
        radius = (0.06 / (1 - self.rand(count) * 0.94))[:, None, None].clamp(max=1.0)
        centre = 2.2 * self.rand(count, 2, 1, 1) - 1.1
        angle = math.pi * self.rand(count, 1, 1)
        aspect = torch.exp(0.5 * self.randn(count, 1, 1))
        kinds = torch.randint(0, 5, (count, 1, 1), generator=self.generator)
        power = torch.tensor([1.0, 2.0, 2.0, 4.0, 20.0])[kinds]
        dx, dy = self.x - centre[:, 0], self.y - centre[:, 1]
        u = ((dx * angle.cos() + dy * angle.sin()) / (radius * aspect)).abs().clamp(max=3)
        v = ((dy * angle.cos() - dx * angle.sin()) / (radius / aspect)).abs().clamp(max=3)
        shift = int(torch.randint(0, self.size[1], (1,), generator=self.generator))
        fill = 0.28 * self.colours(count)
        fill = fill + texture.roll(shift, 3) * (0.2 * self.rand(count, 1, 1, 1) ** 2)
        slope = 0.1 * self.randn(count, 2, 1, 1)
        fill = fill + (slope[:, 0] * dx + slope[:, 1] * dy)[:, None]
        return (u.pow(power) + v.pow(power) < 1)[:, None], fill
