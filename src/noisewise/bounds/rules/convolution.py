"""Rules of convolutions and their adjoints.

Output: ||conv|| X + sqrt(positions) ||b||. Weight gradient: the input unfolded into
patches has Frobenius norm sqrt(sum x^2 * reads) <= sqrt(r) X, where r is the largest
number of times a pixel is read. Bias: its gradient sums over all positions
(docs/proofs/layers.md#convolution).
"""

# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from noisewise.arithmetic import product, root, total
from noisewise.bounds.layer import Call, LayerRule, Shape
from noisewise.bounds.registry import register
from noisewise.bounds.rules.vectors import vector_norm
from noisewise.bounds.rules.windows import largest_count, padding_sources, sliding_windows

__all__ = ["ConvTransposeRule", "ConvolutionRule"]


class _ConvolutionBase(LayerRule[_ConvNd]):
    parameters = ("weight", "bias")

    def check(self, call: Call[_ConvNd]) -> None:
        wanted = len(call.module.kernel_size) + 1
        if len(call.shape) != wanted:
            call.refuse(
                f"takes records with {wanted} axes (channels first) but would get {call.shape}, "
                "so the batch axis would be read as channels.",
                "Reshape the records, for example with Unflatten.",
            )

    def kernel(self, call: Call[_ConvNd]) -> Tensor:
        """Return the kernel that the layer applies now."""
        return call.module.weight

    def operator_norm(self, call: Call[_ConvNd]) -> float:
        """Certified norm of the convolution as an operator on the whole record."""
        raise NotImplementedError

    def reads(self, call: Call[_ConvNd]) -> int:
        """How often the most used pixel meets the kernel."""
        raise NotImplementedError

    def lipschitz(self, call: Call[_ConvNd]) -> float:
        return self.operator_norm(call)

    def output_norm(self, call: Call[_ConvNd]) -> float:
        shift = product(root(math.prod(call.output_shape[1:])), vector_norm(call.module.bias))
        return total(product(self.operator_norm(call), call.norm), shift)

    def parameter_factors(self, call: Call[_ConvNd]) -> dict[str, float]:
        factors = {"weight": product(root(self.reads(call)), call.norm)}
        if call.module.bias is not None:
            factors["bias"] = root(math.prod(call.output_shape[1:]))
        return factors


def _sides(module: _ConvNd) -> list[tuple[int, int]]:
    """Return the padding before and after, per dimension; "same" pads the odd one at the end."""
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        extra = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        return [(value // 2, value - value // 2) for value in extra]
    return [(int(value), int(value)) for value in module.padding]


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(_ConvolutionBase):
    """Convolution with any stride, dilation, grouping and padding mode."""

    def operator_norm(self, call: Call[_ConvNd]) -> float:
        module = call.module
        return call.norms.convolution(
            module,
            lambda: self.kernel(call),
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            padding_mode=module.padding_mode,
            input_size=call.shape[1:],
        )

    def reads(self, call: Call[_ConvNd]) -> int:
        module = call.module
        return largest_count(
            (_read(module, axis, size, outputs), size)
            for axis, (size, outputs) in enumerate(
                zip(call.shape[1:], call.output_shape[1:], strict=True)
            )
        )


def _read(module: _ConvNd, axis: int, size: int, outputs: int):  # type: ignore[no-untyped-def]
    """Which input index each tap of each output reads, through the padding."""
    before, after = _sides(module)[axis]
    source = padding_sources(size, before, after, module.padding_mode)
    window = sliding_windows(
        len(source), outputs, module.kernel_size[axis], module.stride[axis], 0,
        module.dilation[axis],
    )  # fmt: skip
    return source[window]


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class ConvTransposeRule(_ConvolutionBase):
    """Adjoint of a convolution: the same operator norm and the same reuse, seen from the output."""

    def operator_norm(self, call: Call[_ConvNd]) -> float:
        module = call.module
        return call.norms.convolution(
            module,
            lambda: self.kernel(call),
            stride=module.stride,
            padding=cast("tuple[int, ...]", module.padding),
            dilation=module.dilation,
            groups=module.groups,
            transposed=True,
            input_size=call.shape[1:],
        )

    def reads(self, call: Call[_ConvNd]) -> int:
        module = call.module

        def windows(axis: int, size: int, outputs: int):  # type: ignore[no-untyped-def]
            # The adjoint reads the output: each input position is one of its windows.
            return sliding_windows(
                size, outputs, module.kernel_size[axis], module.stride[axis],
                int(module.padding[axis]), module.dilation[axis],
            )  # fmt: skip

        sizes: Shape = call.output_shape[1:]
        return largest_count(
            (windows(axis, size, inputs), size)
            for axis, (size, inputs) in enumerate(zip(sizes, call.shape[1:], strict=True))
        )
