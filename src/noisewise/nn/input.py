"""The first layer of a model with proven bounds: every record is brought to a bounded norm.

Each record is projected by itself, on the ball (``clip``) or the sphere (``normalise``), after
an optional change of colour space. A record with a value that is not finite becomes zero, so
that it can neither break a bound nor stop a step (docs/proofs/contract.md#apart,
docs/proofs/contract.md#numbers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import loose, product, quotient
from noisewise.bounds import Call, LayerRule, register
from noisewise.bounds.norms import row_norms, spectral_norm

__all__ = ["BoundedInput"]

_COLOURS = ("rgb", "hsv", "yiq", "yuv", "grayscale")
# Rows of the linear colour spaces, ITU-R BT.601 luma.
_MATRICES = {
    "yiq": (
        (0.299, 0.587, 0.114),
        (0.595716, -0.274453, -0.321263),
        (0.211456, -0.522591, 0.311135),
    ),
    "yuv": (
        (0.299, 0.587, 0.114),
        (-0.14713, -0.28886, 0.436),
        (0.615, -0.51499, -0.10001),
    ),
    "grayscale": ((0.299, 0.587, 0.114),),
}


class BoundedInput(nn.Module):
    """Bring every record to Euclidean norm at most `norm`.

    Parameters
    ----------
    shape : sequence of int
        Shape of one record, without the batch axis; (3, height, width) for colours.
    norm : float
        Largest norm of a record that leaves the layer.
    mode : {"clip", "normalise"}
        `clip` shortens records that are too long (projection on the ball); `normalise`
        gives all of them exactly this norm (projection on the sphere; zero stays zero).
    colour : {None, "rgb", "hsv", "yiq", "yuv", "grayscale"}
        Colour space to convert RGB images in [0, 1] to, before the projection.

    Examples
    --------
    >>> import torch
    >>> layer = BoundedInput((2,), norm=1.0)
    >>> layer(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).norm(dim=1).allclose(torch.tensor([1.0, 0.5]))
    True
    """

    matrix: Tensor | None

    def __init__(
        self,
        shape: Sequence[int] | int,
        norm: float,
        mode: str = "clip",
        colour: str | None = None,
    ) -> None:
        super().__init__()
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.shape = tuple(checks.integer("shape", size, minimum=1) for size in sizes)
        self.norm = checks.positive("norm", norm)
        self.mode = checks.choice("mode", mode, ("clip", "normalise"))
        self.colour = None if colour is None else checks.choice("colour", colour, _COLOURS)
        if colour not in (None, "rgb") and (len(self.shape) != 3 or self.shape[0] != 3):
            raise ValueError(
                f"colour={colour!r} needs records of shape (3, height, width), got {self.shape}"
            )
        rows = _MATRICES.get(colour or "")
        self.register_buffer("matrix", None if rows is None else torch.tensor(rows), False)

    def forward(self, x: Tensor) -> Tensor:
        """Convert, then project each record."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"records must have shape {self.shape}, got a batch of shape {tuple(x.shape)}"
            )
        flat = (-1,) + (1,) * len(self.shape)
        x = self._convert(_without_nonfinite(x))
        length = row_norms(x).to(x.dtype)
        # A little below the norm, so that rounding cannot lift a record above it.
        target = self.norm * (1.0 - 16 * torch.finfo(x.dtype).eps)
        scale = target / length.clamp_min(_floor(x.dtype))
        if self.mode == "clip":
            scale = scale.clamp_max(1.0)
        # Already a copy: a second one of a batch of images would take as long as a layer.
        bounded: Tensor = x * scale.view(flat) if x.requires_grad else x.mul_(scale.view(flat))
        return bounded

    def _convert(self, x: Tensor) -> Tensor:
        if self.matrix is not None:
            converted: Tensor = torch.einsum("oc,bchw->bohw", self.matrix.to(x.dtype), x)
            return converted
        return _hsv(x) if self.colour == "hsv" else x

    def largest_norm(self) -> float:
        """Return the norm that no image with values in [0, 1] exceeds in this colour space.

        With `norm` at least this large, ``clip`` changes no image.
        """
        if self.matrix is None:
            return math.sqrt(math.prod(self.shape))
        corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3) @ self.matrix.T
        return loose(
            math.sqrt(self.shape[1] * self.shape[2]) * float(corners.norm(dim=1).max()) * (1 + 1e-6)
        )

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        colour = "" if self.colour is None else f", colour={self.colour!r}"
        return f"shape={self.shape}, norm={self.norm:g}, mode={self.mode!r}{colour}"


def _without_nonfinite(x: Tensor) -> Tensor:
    """Replace every record with an entry that is not finite by zeros."""
    # A sum is not finite if an entry is not, nor if it overflows; the norm would overflow, too,
    # and the record become zero. One pass, nothing stored.
    finite = torch.isfinite(x.flatten(1).sum(dim=1)).view(-1, *[1] * (x.dim() - 1))
    return torch.where(finite, x, torch.zeros((), dtype=x.dtype, device=x.device))


def _floor(dtype: torch.dtype) -> float:
    """Length below which a record counts as zero."""
    return math.sqrt(torch.finfo(dtype).tiny)


def _hsv(x: Tensor) -> Tensor:
    """Hue, saturation and value, each in [0, 1] for RGB in [0, 1]."""
    red, green, blue = x.unbind(dim=1)
    value, low = x.amax(dim=1), x.amin(dim=1)
    range_ = value - low
    safe = torch.where(range_ > 0, range_, torch.ones_like(range_))
    hue = torch.where(
        value == red,
        ((green - blue) / safe) % 6.0,
        torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0),
    )
    hue = torch.where(range_ > 0, hue / 6.0, torch.zeros_like(hue))
    top = torch.where(value > 0, value, torch.ones_like(value))
    return torch.stack([hue, torch.where(value > 0, range_ / top, torch.zeros_like(top)), value], 1)


@register(BoundedInput)
class BoundedInputRule(LayerRule[BoundedInput]):
    """The norm is enforced, so what is promised of the data does not matter.

    The projection on a ball is 1-Lipschitz; on a sphere of radius r it has slope r/||x||,
    at most r over the length that counts as zero. The hue jumps, so HSV has no constant.
    """

    def output_norm(self, call: Call[BoundedInput]) -> float:
        """Return the norm of the layer."""
        return call.module.norm

    def jump(self, call: Call[BoundedInput]) -> str:
        """Short inputs are blown up without limit on a sphere, and hues jump."""
        if call.module.mode == "normalise":
            return (
                "with mode='normalise' blows up short inputs, so its slope is no constant of the "
                "input; train with mode='clip'"
            )
        return "in the colour space hsv has hues that jump" if call.module.colour == "hsv" else ""

    def lipschitz(self, call: Call[BoundedInput]) -> float:
        """Slope of the colour space times that of the projection."""
        module = call.module
        if module.colour == "hsv":
            return math.inf
        colours = 1.0 if module.matrix is None else spectral_norm(module.matrix).value
        if module.mode == "clip":
            return colours
        return product(colours, quotient(module.norm, _floor(torch.float64)))
