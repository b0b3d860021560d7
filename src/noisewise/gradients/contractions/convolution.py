"""Convolutions of any dimension as pairs of matrices: cotangents and unfolded inputs.

The windows of a padded input are a strided view of it; copying that view gives the unfolded
matrix, for one, two or three dimensions, stride, dilation and groups alike. A transposed
convolution has the same gradient with the roles of input and cotangent exchanged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.gradients.contractions.base import (
    Contraction,
    Target,
    chunks,
    even,
    masked,
    scaled,
    working,
)
from noisewise.gradients.contractions.given import GivenContraction
from noisewise.gradients.contractions.pair import PairContraction, over_positions, whole
from noisewise.gradients.contractions.rounding import (
    PIECES,
    POSITIONS,
    RECORDS,
    SQUARES_AT_ONCE,
    row_norms,
)

__all__ = ["Convolution", "ConvolutionContraction", "TransposedContraction", "is_narrow"]

_BACKWARD = torch.ops.aten.convolution_backward.default

# Where torch's kernel for groups beats the product with windows: from so many pixels and channels
# on, or where a record's gradient alone fills a cache. It is fast for a few records that fit one,
# and many times slower beyond. Measured, and only steers a choice.
_PIXELS = 64
_CHANNELS = 8
_BESIDE = 16
_BESIDE_BYTES = 5 << 19
_LARGE_BYTES = 1 << 21
#: A window of so many numbers takes longer to copy than to convolve a few images at a time.
_WINDOW = 16


def is_narrow(weight: Sequence[int]) -> bool:
    """Whether a convolution's own gradients of single records would need windows to be copied.

    Given is the shape of its weight.
    """
    return len(weight) > 2 and weight[1] < _CHANNELS and math.prod(weight[1:]) >= _WINDOW


@dataclass(frozen=True)
class Convolution:
    """Settings of a convolution, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def backward(
        self, cotangent: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Torch's own kernel: gradients of input and weight, as asked."""
        into, of_weight, _ = _BACKWARD(cotangent, x, weight, None, *self._fixed, [*mask, False])
        return into, of_weight

    def turned(self, leaving: Sequence[int], entering: Sequence[int]) -> Convolution:
        """The way back, from outputs of one size to inputs of another, with the same kernel."""
        if self.transposed:
            return replace(self, transposed=False, output_padding=())
        missing = tuple(
            size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)
            for size, n, s, p, d, k in zip(
                entering, leaving, self.stride, self.padding, self.dilation, self.kernel,
                strict=True,
            )
        )  # fmt: skip
        return replace(self, transposed=True, output_padding=missing)

    @functools.cached_property
    def _fixed(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        """All that the kernel is told besides, written down once: kernels are asked often."""
        extra = list(self.output_padding or (0,) * len(self.kernel))
        stride, padding, dilation = (list(s) for s in (self.stride, self.padding, self.dilation))
        return stride, padding, dilation, self.transposed, extra, self.groups

    def windows(self, image: Tensor, positions: tuple[int, ...], views: int) -> Tensor:
        """Unfold (rows, channels, ...) to (records, groups, channels * kernel, views * T)."""
        pad = [amount for size in reversed(self.padding) for amount in (size, size)]
        # The last windows of a strided convolution may end before the image does, and those
        # of a transposed one beyond it.
        reach = [
            (p - 1) * s + d * (k - 1) + 1
            for p, s, d, k in zip(positions, self.stride, self.dilation, self.kernel, strict=True)
        ]
        for axis, need in enumerate(reach):
            missing = need - image.shape[2 + axis] - 2 * self.padding[axis]
            if missing > 0:
                pad[2 * (len(reach) - 1 - axis) + 1] += missing
        # Windows are copied out of rows of pixels: channels last (as models that permute leave
        # them) would make every pixel a jump.
        image = image.contiguous()
        if any(pad):
            image = functional.pad(image, pad)
        rows, channels = image.shape[:2]
        records, per_group = rows // views, channels // self.groups
        row, channel, *space = image.stride()
        steps = [s * stride for s, stride in zip(space, self.stride, strict=True)]
        taps = [s * dilation for s, dilation in zip(space, self.dilation, strict=True)]
        view = image.as_strided(
            (records, self.groups, per_group, *self.kernel, views, *positions),
            (row * views, channel * per_group, channel, *taps, row, *steps),
            image.storage_offset(),
        )
        inner = per_group * math.prod(self.kernel)
        return view.reshape(records, self.groups, inner, views * math.prod(positions))


@dataclass
class _Convolved(PairContraction):
    x: Tensor
    cotangent: Tensor
    settings: Convolution
    views: int
    weight: Target | None
    bias: Target | None

    def __post_init__(self) -> None:
        self.records = self.x.shape[0] // self.views
        self.groups = self.settings.groups

    def only(self, names: frozenset[str]) -> Any:
        """Drop the weight or the bias."""
        return replace(
            self,
            weight=self.weight if self.weight and self.weight.name in names else None,
            bias=self.bias if self.bias and self.bias.name in names else None,
        )

    def grouped(self, each: int) -> Any:
        """Rows of a unit are more views."""
        return replace(self, views=self.views * each)

    @property
    def factor_entries(self) -> int:
        """Input and cotangent of all views."""
        return self.views * (math.prod(self.x.shape[1:]) + math.prod(self.cotangent.shape[1:]))

    @property
    def held(self) -> int:
        """The gradient, or the windows of the input where these are larger."""
        m, n, positions = self.sizes
        return self.groups * n * max(m, positions)

    def _rows(self, tensor: Tensor, start: int, stop: int) -> Tensor:
        return working(tensor[start * self.views : stop * self.views])

    def _flat(self, tensor: Tensor, start: int, stop: int) -> Tensor:
        """(rows, channels, ...) as (records, groups, channels per group, views * T)."""
        rows = self._rows(tensor, start, stop).contiguous()
        channels = rows.shape[1] // self.groups
        positions = math.prod(rows.shape[2:])
        shaped = rows.reshape(stop - start, self.views, self.groups, channels, positions)
        return shaped.permute(0, 2, 3, 1, 4).flatten(3)

    def bias_gradients(self) -> Tensor:
        """Sum of the cotangents over positions and views."""
        rows = over_positions(working(self.cotangent).flatten(2), 2)
        return rows.reshape(self.records, self.views, -1).sum(1)

    def factors(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Slices of all views, scaled."""
        x, cotangent = self._rows(self.x, start, stop), self._rows(self.cotangent, start, stop)
        if self.views > 1:
            keep = None if keep is None else keep.repeat_interleave(self.views)
            scale = None if scale is None else scale.repeat_interleave(self.views)
        x, cotangent = masked(x, keep), masked(cotangent, keep)
        if x.numel() <= cotangent.numel():
            return scaled(x, scale), cotangent
        return x, scaled(cotangent, scale)

    def contract(self, x: Tensor, cotangent: Tensor, total: Tensor | None) -> Tensor:
        """Torch's kernel."""
        _, gradient = self.settings.backward(cotangent, x, self._template, (False, True))
        assert gradient is not None
        return gradient

    @functools.cached_property
    def _template(self) -> Tensor:
        """Has the shape of the weight, and takes no memory."""
        assert self.weight is not None
        return working(self.x[:0]).new_empty(()).expand(self.weight.shape)

    def _channel_squares(self, tensor: Tensor) -> Tensor:
        """Squares summed over the channels of a group, in float64: (rows, groups, ...)."""
        wide = working(tensor)
        shaped = wide.reshape(wide.shape[0], self.groups, -1, *wide.shape[2:])
        channels = shaped.shape[2]
        runs = [shaped[:, :, a:b] for a, b in chunks(channels, SQUARES_AT_ONCE)]
        squares = torch.stack([part.square().sum(2).double() for part in runs]).sum(0)
        # What may have underflowed is made up for: docs/proofs/rounding.md#norms.
        return squares + channels * torch.finfo(wide.dtype).tiny

    def _window_squares(self, image: Tensor, positions: tuple[int, ...]) -> Tensor:
        """Squared norm of every window: (rows, groups, T)."""
        squares = self._channel_squares(image)
        windows = self.settings.windows(squares, positions, 1)
        return windows.sum(2)

    def _over_positions(self, image: Tensor, other: Tensor) -> Tensor:
        rows = self._window_squares(image, tuple(other.shape[2:]))
        flat = self._channel_squares(other).flatten(2)
        by_group = (rows * flat).sqrt().sum(2)
        by_group = by_group.reshape(self.records, self.views, self.groups).sum(1)
        norms: Tensor = torch.linalg.vector_norm(by_group, dim=1)
        return norms

    def merged(self, others: Sequence[Contraction]) -> Contraction | None:
        """Several uses of one layer on images of one size are views of the same record."""
        uses = [self]
        for other in others:
            if (
                not isinstance(other, type(self))
                or other.targets != self.targets
                or other.settings != self.settings
                or other.x.shape[1:] != self.x.shape[1:]
            ):
                return None
            uses.append(other)
        return replace(
            self,
            x=_interleaved([use.x for use in uses], self.records),
            cotangent=_interleaved([use.cotangent for use in uses], self.records),
            views=sum(use.views for use in uses),
        )


def _interleaved(parts: Sequence[Tensor], records: int) -> Tensor:
    shape = (records, -1, *parts[0].shape[1:])
    return torch.cat([part.reshape(shape) for part in parts], 1).flatten(0, 1)


@dataclass
class ConvolutionContraction(_Convolved):
    """Cotangents (rows, M, ...) against windows of the input (rows, N / kernel, ...)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Per group: output channels, input channels times kernel; positions."""
        positions = math.prod(self.cotangent.shape[2:]) * self.views
        inner = self.x.shape[1] // self.groups * math.prod(self.settings.kernel)
        return self.cotangent.shape[1] // self.groups, inner, positions

    def left(self, start: int, stop: int) -> Tensor:
        """Cotangents."""
        return self._flat(self.cotangent, start, stop)

    def right(self, start: int, stop: int) -> Tensor:
        """Windows of the input."""
        rows = self._rows(self.x, start, stop)
        return self.settings.windows(rows, tuple(self.cotangent.shape[2:]), self.views)

    def gradients_once(
        self, start: int, stop: int, room: Tensor | None = None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """By torch's kernels where they are faster: no windows are copied."""
        if self._by_channels():
            for a, b in chunks(stop - start, RECORDS):
                yield a, b, self._channel_gradients(start + a, start + b)
            return
        if not self._by_groups():
            yield from super().gradients_once(start, stop, room)
            return
        for a, b in chunks(stop - start, self._beside):
            x, cotangent = (
                self._side_by_side(t, start + a, start + b) for t in (self.x, self.cotangent)
            )
            yield a, b, self._by_group(x, cotangent, self.settings, b - a)

    def close_gradients(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """By torch's kernel for groups, so many lines of the image at a time that it adds few."""
        lines, line = self.cotangent.shape[2], math.prod(self.cotangent.shape[3:]) * self.views
        if not self._by_groups() or line > POSITIONS:
            yield from super().close_gradients(start, stop)
            return
        strips = list(chunks(lines, POSITIONS // line))
        for first, last, a, b in even(start, stop, whole(self._beside), self.records):
            x, cotangent = (self._side_by_side(t, first, last) for t in (self.x, self.cotangent))
            if len(strips) == 1:
                total = self._by_group(x, cotangent, self.settings, last - first)
            else:
                total = self._by_strips(x, cotangent, strips, last - first)
            yield a - start, b - start, total[a - first : b - first]

    def _by_strips(
        self, x: Tensor, cotangent: Tensor, strips: Sequence[tuple[int, int]], records: int
    ) -> Tensor:
        """Gradients from some lines of the image after the other (rounding.md#positions)."""
        settings = self.settings
        kernel, stride, dilation = settings.kernel[0], settings.stride[0], settings.dilation[0]
        edge = settings.padding[0]
        x = functional.pad(x, [0, 0] * (x.dim() - 3) + [edge, edge])
        inner = replace(settings, padding=(0, *settings.padding[1:]))
        total = x.new_zeros(())
        for number, (a, b) in enumerate(strips):
            seen = x[:, :, a * stride : (b - 1) * stride + dilation * (kernel - 1) + 1]
            part = self._by_group(seen, cotangent[:, :, a:b], inner, records)
            total = total + part if number < PIECES else total.double().add_(part)
        return total.to(x.dtype)

    def _by_group(
        self, x: Tensor, cotangent: Tensor, settings: Convolution, records: int
    ) -> Tensor:
        """Gradients of records side by side, each of which is a group to the kernel."""
        groups = records * self.groups
        template = x.new_empty(()).expand(
            cotangent.shape[1], x.shape[1] // groups, *settings.kernel
        )
        _, found = replace(settings, groups=groups).backward(cotangent, x, template, (False, True))
        assert found is not None
        return found.reshape(records, -1)

    @property
    def _beside(self) -> int:
        """How many records are groups of one kernel."""
        return max(1, min(_BESIDE, _BESIDE_BYTES // self._bytes))

    @property
    def _bytes(self) -> int:
        m, n, _ = self.sizes
        return 4 * self.groups * m * n

    @property
    def _plain(self) -> bool:
        """Kernels were compared on processors only."""
        return self.x.device.type == "cpu" and working(self.x[:0]).dtype == torch.float32

    def _by_groups(self) -> bool:
        """Where windows would be many times larger than gradients."""
        if not self._plain or math.prod(self.settings.kernel) == 1:
            return False
        pixels = math.prod(self.cotangent.shape[2:])
        large = pixels >= _PIXELS or self._bytes >= _LARGE_BYTES
        return large and self.x.shape[1] >= _CHANNELS

    def _by_channels(self) -> bool:
        """Where every channel of the input has kernels of its own."""
        few = self.views == 1 and len(self.settings.kernel) < 3
        return self._plain and few and self.groups == self.x.shape[1] > 1

    def _channel_gradients(self, start: int, stop: int) -> Tensor:
        """An image moved along its cotangents: a convolution of channels, with these as kernels."""
        settings = self.settings
        image, kernels = (self._rows(t, start, stop) for t in (self.x, self.cotangent))
        pad = [amount for size in reversed(settings.padding) for amount in (size, size)]
        image = functional.pad(image, pad) if any(pad) else image.contiguous()
        convolved = (functional.conv1d, functional.conv2d)[len(settings.kernel) - 1](
            image.reshape(1, -1, *image.shape[2:]),
            kernels.reshape(-1, 1, *kernels.shape[2:]),
            stride=settings.dilation,
            dilation=settings.stride,
            groups=image.shape[0] * image.shape[1],
        )
        for axis, size in enumerate(settings.kernel):
            # The last rows of the image may be out of reach of a strided convolution.
            convolved = convolved.narrow(2 + axis, 0, size)
        return convolved.reshape(stop - start, -1)

    def _side_by_side(self, tensor: Tensor, start: int, stop: int) -> Tensor:
        """Views as rows, and the channels of all records after each other."""
        rows = self._rows(tensor, start, stop).contiguous()
        shaped = rows.reshape(stop - start, self.views, *rows.shape[1:]).transpose(0, 1)
        return shaped.reshape(self.views, -1, *rows.shape[2:])

    def condensed(self, room: int = 0) -> Contraction:
        """As any pair; kernels of single channels are always small."""
        if self.weight is None or not self.records or not self._by_channels():
            return super().condensed(room)
        given = {
            self.weight: torch.cat([part for *_, part in self.gradients_once(0, self.records)])
        }
        if self.bias is not None:
            given[self.bias] = self.biases
        return GivenContraction(given)

    def positions_bound(self) -> Tensor:
        """Sum over positions of |cotangent| |window|, groups joined as a root of squares."""
        return self._over_positions(self.x, self.cotangent)

    def input_squares(self) -> Tensor:
        """Squared norm of the unfolded input, and one per position for the bias."""
        positions = math.prod(self.cotangent.shape[2:]) * self.views
        result = torch.zeros(self.records, dtype=torch.float64, device=self.x.device)
        if self.weight is not None:
            windows = self._window_squares(self.x, tuple(self.cotangent.shape[2:]))
            result = result + windows.flatten(1).sum(1).reshape(self.records, -1).sum(1)
        return result + (positions if self.bias is not None else 0)


@dataclass
class TransposedContraction(_Convolved):
    """Inputs (rows, M, ...) against windows of the cotangent: weight (M, N / kernel, kernel)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Per group: input channels, output channels times kernel; input positions."""
        positions = math.prod(self.x.shape[2:]) * self.views
        inner = self.cotangent.shape[1] // self.groups * math.prod(self.settings.kernel)
        return self.x.shape[1] // self.groups, inner, positions

    def left(self, start: int, stop: int) -> Tensor:
        """Inputs."""
        return self._flat(self.x, start, stop)

    def right(self, start: int, stop: int) -> Tensor:
        """Windows of the cotangent."""
        rows = self._rows(self.cotangent, start, stop)
        return self.settings.windows(rows, tuple(self.x.shape[2:]), self.views)

    def positions_bound(self) -> Tensor:
        """Sum over input positions of |input| |window of the cotangent|."""
        return self._over_positions(self.cotangent, self.x)

    def input_squares(self) -> Tensor:
        """An output entry meets each input at most once per tap, so the kernel bounds reuse."""
        positions = math.prod(self.cotangent.shape[2:]) * self.views
        result = torch.zeros(self.records, dtype=torch.float64, device=self.x.device)
        if self.weight is not None:
            reuse = math.prod(self.settings.kernel)
            squares = row_norms(working(self.x)).square().reshape(self.records, -1).sum(1)
            result = result + reuse * squares
        return result + (positions if self.bias is not None else 0)
