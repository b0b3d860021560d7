"""What stride, dilation, padding and image size mean for the norm of a convolution.

In one dimension, output t of a convolution with kernel size k, stride s and dilation d reads
the padded positions ``s t + d j``, j < k. Let g = gcd(s, d), s = g s', d = g d'. Write
``t = d' u + r``; then ``s t + d j = d (s' u + j) + s r``. For each of the d' classes r the
outputs read the inputs of one class modulo d only, different r different classes, as a
convolution with stride s' and *no* dilation. So the operator is a direct sum of copies of
the (s', 1) convolution: **dilation never changes the norm except through s' = s / gcd(s, d)**.
Stride s' is removed by space-to-depth: position ``s' a + b`` becomes position a of channel b,
the kernel gets ``K = ceil(k / s')`` taps, stride one, and no entry is lost or doubled.
Several dimensions: one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from noisewise import checks
from noisewise.errors import UnsupportedModelError

__all__ = ["Geometry", "Ints", "conv_reuse", "depth_to_space", "geometry", "space_to_depth"]

Ints = int | Sequence[int]
PADDING_MODES = ("zeros", "circular", "reflect", "replicate")


@dataclass(frozen=True)
class Geometry:
    """One spatial dimension of a convolution.

    Attributes
    ----------
    kernel, stride, dilation : int
        As given.
    before, after : int
        Padding on either side.
    size : int or None
        Image size on the convolution's input side, if known.
    outputs : int or None
        Image size on the convolution's output side, if known.
    """

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    size: int | None = None
    outputs: int | None = None

    @property
    def step(self) -> int:
        """Stride that is left after dilation is removed."""
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def taps(self) -> int:
        """Kernel size after space-to-depth."""
        return -(-self.kernel // self.step)

    @property
    def embedding(self) -> int | None:
        """Return a period on which the zero-padded convolution does not wrap around.

        A convolution of an input (or, seen from the adjoint, an output) of n positions with
        K taps is the circular one of period n + K - 1, restricted.
        """
        sides = []
        if self.size is not None:
            held = -(-self.size // self.dilation)
            sides.append((held + self.step - 2) // self.step + 1)
        if self.outputs is not None:
            sides.append(-(-self.outputs // (self.dilation * self.step // self.stride)))
        return None if not sides else max(1, min(sides)) + self.taps - 1

    def multiplicity(self, mode: str) -> int:
        """Return how often padding may copy one input position (the square of its norm)."""
        sides = (self.before > 0) + (self.after > 0)
        if mode == "zeros" or sides == 0:
            return 1
        if self.size is not None:
            index = torch.arange(self.size, dtype=torch.float64)[None, None]
            try:
                padded = functional.pad(index, (self.before, self.after), mode=mode)
            except RuntimeError as error:
                raise ValueError(
                    f"{mode} padding of {self.before} and {self.after} does not fit an image "
                    f"of size {self.size}"
                ) from error
            return int(torch.bincount(padded.flatten().long()).max())
        if mode == "replicate":
            return self.before + self.after + 1
        return 1 + sides

    @property
    def windows_distinct(self) -> bool:
        """Whether circular padding lets no two outputs start at the same input position."""
        return self.before + self.after <= self.dilation * (self.kernel - 1)


def _per_dimension(name: str, value: Ints, count: int, minimum: int) -> tuple[int, ...]:
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        raise ValueError(f"{name} must have {count} entries, one a dimension, got {value!r}")
    return tuple(checks.integer(name, entry, minimum=minimum) for entry in values)


def geometry(
    kernel_size: Sequence[int],
    stride: Ints,
    padding: Ints | str,
    dilation: Ints,
    padding_mode: str,
    input_size: Ints | None,
    transposed: bool,
) -> list[Geometry]:
    """Read the options of a torch convolution, one `Geometry` a dimension."""
    count = len(kernel_size)
    if padding_mode not in PADDING_MODES:
        words = ", ".join(PADDING_MODES)
        raise UnsupportedModelError(
            f"padding_mode {padding_mode!r} of a convolution is not covered: its own norm is "
            f"unknown here. Use one of {words}."
        )
    if transposed and padding_mode != "zeros":
        raise UnsupportedModelError("a transposed convolution has zero padding only")
    strides = _per_dimension("stride", stride, count, 1)
    dilations = _per_dimension("dilation", dilation, count, 1)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel_size, dilations, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    elif padding == "valid":
        pads = [(0, 0)] * count
    elif isinstance(padding, str):
        raise ValueError(f"padding must be a number, 'same' or 'valid', got {padding!r}")
    else:
        pads = [(p, p) for p in _per_dimension("padding", padding, count, 0)]
    sizes: Sequence[int | None] = [None] * count
    if input_size is not None:
        sizes = _per_dimension("input_size", input_size, count, 1)
    dims = []
    for k, s, d, (before, after), size in zip(
        kernel_size, strides, dilations, pads, sizes, strict=True
    ):
        if transposed:
            dims.append(Geometry(k, s, d, before, after, None, size))
            continue
        outputs = None
        if size is not None:
            outputs = (size + before + after - d * (k - 1) - 1) // s + 1
            if outputs < 1:
                raise ValueError(
                    f"an image of size {size} with padding {before}+{after} is smaller than the "
                    f"kernel (size {k}, dilation {d})"
                )
        dims.append(Geometry(k, s, d, before, after, size, outputs))
    return dims


def space_to_depth(weight: Tensor, steps: Sequence[int]) -> Tensor:
    """Turn stride into channels: ``(out, in, *k)`` to ``(out, in * prod(steps), *ceil(k/steps))``.

    Exact: entries are moved, none is changed.
    """
    if max(steps, default=1) == 1:
        return weight
    count = len(steps)
    pads: list[int] = []
    for k, s in zip(reversed(weight.shape[2:]), reversed(steps), strict=True):
        pads += [0, -k % s]
    weight = functional.pad(weight, pads)
    split: list[int] = []
    for k, s in zip(weight.shape[2:], steps, strict=True):
        split += [k // s, s]
    taps = [2 + 2 * i for i in range(count)]
    phases = [3 + 2 * i for i in range(count)]
    out, channels = weight.shape[:2]
    moved = weight.reshape(out, channels, *split).permute(0, 1, *phases, *taps)
    return moved.reshape(out, channels * math.prod(steps), *split[0::2])


def conv_reuse(
    kernel_size: Ints, stride: Ints = 1, dilation: Ints = 1, output_size: Ints | None = None
) -> int:
    """Return how many outputs of a convolution can read one and the same input position.

    ``prod_i min(ceil(k_i gcd(s_i, d_i) / s_i), out_i)``. The norm of the map from a kernel to
    the outputs it gives is at most the square root of this, times the norm of the input.

    Examples
    --------
    >>> conv_reuse((7, 7), stride=2)
    16
    """
    given = (kernel_size, stride, dilation) + (() if output_size is None else (output_size,))
    count = max(1 if isinstance(value, int) else len(value) for value in given)
    kernels = _per_dimension("kernel_size", kernel_size, count, 1)
    strides = _per_dimension("stride", stride, count, 1)
    dilations = _per_dimension("dilation", dilation, count, 1)
    reuse = [
        Geometry(k, s, d, 0, 0).taps for k, s, d in zip(kernels, strides, dilations, strict=True)
    ]
    if output_size is not None:
        outputs = _per_dimension("output_size", output_size, count, 0)
        reuse = [min(r, out) for r, out in zip(reuse, outputs, strict=True)]
    return math.prod(reuse)


def depth_to_space(weight: Tensor, steps: Sequence[int], kernel_size: Sequence[int]) -> Tensor:
    """Undo `space_to_depth`, dropping the taps that it had filled with zeros."""
    if max(steps, default=1) == 1:
        return weight
    count = len(steps)
    out, channels = weight.shape[:2]
    taps = weight.shape[2:]
    split = weight.reshape(out, channels // math.prod(steps), *steps, *taps)
    order = [axis for i in range(count) for axis in (2 + count + i, 2 + i)]
    sizes = [k * s for k, s in zip(taps, steps, strict=True)]
    whole = split.permute(0, 1, *order).reshape(out, channels // math.prod(steps), *sizes)
    window = [slice(None), slice(None), *(slice(0, k) for k in kernel_size)]
    return whole[tuple(window)]
