"""Residual networks whose blocks are convex mixes, hence 1-Lipschitz at any depth.

Pre-activation blocks (norm, activation, convolution, twice), after He et al. (2016) and
Zagoruyko and Komodakis (2016), with the techniques of Barczewski (2025): group normalisation by
max(alpha, deviation) without parameters, optional weight standardisation. A residual *sum*,
as there, is available at the price of L_a + L_b for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from noisewise import checks
from noisewise.nn.models.base import LipschitzModel, image_shape, named, size_after
from noisewise.nn.models.options import ModelOptions, Options
from noisewise.nn.residual import LipschitzResidual

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ResNet", "resnet", "wide_resnet"]


class ResNet(LipschitzModel):
    """Stem, stages of residual blocks, pooling over the image, one dense layer.

    Parameters
    ----------
    input_shape : (channels, height, width)
    classes : int
        Logits.
    blocks, widths : sequence of int
        Blocks and channels of each stage; every stage but the first halves the image.
    stem : int
        Channels of the first convolution.
    residual : {"convex", "sum"}
        How a block is joined to its shortcut.
    coefficient, learn
        Share of the block in the convex mix, and whether it is learnt.
    **options
        See `Options`; group normalisation is on by default.

    Examples
    --------
    >>> model = ResNet((3, 8, 8), 10, blocks=(1, 1), widths=(4, 8), stem=4)
    >>> model.lipschitz() <= 1.0 + 1e-5
    True
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        blocks: Sequence[int] = (3, 3, 3),
        widths: Sequence[int] = (16, 32, 64),
        stem: int = 16,
        residual: str = "convex",
        coefficient: float = 0.5,
        learn: bool = False,
        **options: Unpack[ModelOptions],
    ) -> None:
        chosen, shape = Options.of(options, norm="group"), image_shape(input_shape)
        classes = checks.integer("classes", classes, minimum=1)
        if len(blocks) != len(widths):
            raise ValueError(f"give as many blocks as widths, got {blocks!r} and {widths!r}")
        if shape[1] != shape[2]:
            raise ValueError(f"images must be square, got {shape}")
        join = {"mix": residual, "coefficient": coefficient, "learn": learn}
        width, side = checks.integer("stem", stem, minimum=1), shape[1]
        groups: list[tuple[str, list[nn.Module]]] = [("input", [chosen.input(shape)])]
        groups.append(("stem", [chosen.conv(chosen.channels(shape), width, 3, padding=1)]))
        for number, (count, wanted) in enumerate(zip(blocks, widths, strict=True), start=1):
            following = checks.integer("widths", wanted, minimum=1)
            stride = 1 if number == 1 else 2
            side = size_after(side, 3, stride, 1, f"stage {number}")
            stage = []
            for _ in range(checks.integer("blocks", count, minimum=1)):
                stage.append(_block(chosen, width, following, stride, join))
                width, stride = following, 1
            groups.append((f"stage{number}", stage))
        groups.append(("norm", chosen.norms(width)))
        groups.append(("act", [chosen.act(width)]))
        groups.append(("pool", [chosen.pool(side)] if side > 1 else []))
        groups.append(("flatten", [nn.Flatten()]))
        groups.append(("head", [chosen.dense(width, classes)]))
        super().__init__(shape, named(groups), chosen)


def _block(
    options: Options, width: int, following: int, stride: int, join: dict[str, Any]
) -> nn.Module:
    before = [*options.norms(width), options.act(width)]
    convolutions = [
        options.conv(width, following, 3, stride, 1),
        *options.norms(following),
        options.act(following),
        options.conv(following, following, 3, 1, 1),
    ]
    if width == following and stride == 1:
        return LipschitzResidual(nn.Sequential(*before, *convolutions), **join)
    # Where the shape changes, the shortcut too starts behind the first activation.
    shortcut = options.conv(width, following, 1, stride)
    block = LipschitzResidual(nn.Sequential(*convolutions), shortcut, **join)
    return nn.Sequential(*before, block)


def resnet(
    depth: int = 20,
    classes: int = 10,
    input_shape: Sequence[int] = (3, 32, 32),
    **options: Unpack[ModelOptions],
) -> ResNet:
    """ResNet of 6n + 2 layers for small images, 16 to 64 channels wide."""
    count = _count(depth, 2)
    return ResNet(input_shape, classes, (count,) * 3, (16, 32, 64), 16, **options)


def wide_resnet(
    depth: int = 16,
    widening: int = 4,
    classes: int = 10,
    input_shape: Sequence[int] = (3, 32, 32),
    **options: Unpack[ModelOptions],
) -> ResNet:
    """Wide ResNet of 6n + 4 layers; 16-4 and 40-4 are those of Barczewski (2025) for CIFAR-10.

    With biases, 16-4 has 2,747,530 parameters and 40-4 has 8,944,266, the number that the
    paper prints for 16-4.
    """
    count = _count(depth, 4)
    factor = checks.integer("widening", widening, minimum=1)
    widths = tuple(factor * width for width in (16, 32, 64))
    return ResNet(input_shape, classes, (count,) * 3, widths, 16, **options)


def _count(depth: int, rest: int) -> int:
    depth = checks.integer("depth", depth, minimum=6 + rest)
    if (depth - rest) % 6:
        raise ValueError(f"depth must be 6n + {rest} ({6 + rest}, {12 + rest}, ...), got {depth}")
    return (depth - rest) // 6
