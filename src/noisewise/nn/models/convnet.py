"""Convolutional networks of the papers, in Lipschitz form.

The papers print only numbers of parameters (Barczewski and Ramon 2024, Table 4; Barczewski
2025, Table 5.3). The architectures here have exactly those numbers and the stated numbers of
layers where a natural one exists; they are reconstructions, not quotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from noisewise import checks
from noisewise.nn.models.base import LipschitzModel, image_shape, size_after
from noisewise.nn.models.options import ModelOptions, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "ConvNet",
    "Stage",
    "benchmark_cnn",
    "convnet_fashion",
    "convnet_mnist",
    "convnet_thesis",
    "shallow_vgg",
    "tempered_cnn",
]


@dataclass(frozen=True)
class Stage:
    """One convolution, its activation, and a pooling over windows of `pool` pixels a side.

    ``padding=None`` keeps the size for odd kernels.
    """

    width: int
    kernel: int = 3
    stride: int = 1
    padding: int | None = None
    pool: int = 1

    def __post_init__(self) -> None:
        for name in ("width", "kernel", "stride", "pool"):
            checks.integer(name, getattr(self, name), minimum=1)
        if self.padding is not None:
            checks.integer("padding", self.padding)

    @property
    def border(self) -> int:
        """Padding in pixels."""
        return (self.kernel - 1) // 2 if self.padding is None else self.padding


class ConvNet(LipschitzModel):
    """Stages of convolutions, then dense layers.

    Parameters
    ----------
    input_shape : (channels, height, width)
    classes : int
        Logits.
    stages : sequence of Stage
    dense : sequence of int
        Widths of the hidden dense layers.
    global_pool : bool
        Whether to pool over the whole image before the dense layers.
    **options
        See `Options`.

    Examples
    --------
    >>> model = ConvNet((1, 8, 8), 3, [Stage(4, pool=2)], dense=(6,), activation="relu")
    >>> [name for name, _ in model.named_children()]
    ['input', 'conv1', 'act1', 'pool1', 'flatten', 'dense1', 'act2', 'head']
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        stages: Sequence[Stage],
        dense: Sequence[int] = (),
        global_pool: bool = False,
        **options: Unpack[ModelOptions],
    ) -> None:
        chosen, shape = Options.of(options), image_shape(input_shape)
        classes = checks.integer("classes", classes, minimum=1)
        layers: dict[str, nn.Module] = {"input": chosen.input(shape)}
        width, sides = chosen.channels(shape), shape[1:]
        for number, stage in enumerate(stages, start=1):
            sides = _sides(sides, stage.kernel, stage.stride, stage.border, f"stage {number}")
            layers[f"conv{number}"] = chosen.conv(
                width, stage.width, stage.kernel, stage.stride, stage.border
            )
            width = stage.width
            layers.update((f"norm{number}", norm) for norm in chosen.norms(width))
            layers[f"act{number}"] = chosen.act(width)
            if stage.pool > 1:
                sides = _sides(sides, stage.pool, stage.pool, 0, f"the pooling of stage {number}")
                layers[f"pool{number}"] = chosen.pool(stage.pool)
        if global_pool and sides != (1, 1):
            if sides[0] != sides[1]:
                raise ValueError(f"global_pool needs square images, got {sides} before it")
            layers["pool"], sides = chosen.pool(sides[0]), (1, 1)
        layers["flatten"] = nn.Flatten()
        width *= sides[0] * sides[1]
        for number, wanted in enumerate(dense, start=1):
            following = checks.integer("dense", wanted, minimum=1)
            layers[f"dense{number}"] = chosen.dense(width, following)
            layers[f"act{len(stages) + number}"] = chosen.act(following)
            width = following
        layers["head"] = chosen.dense(width, classes)
        super().__init__(shape, layers, chosen)


def _sides(
    sides: tuple[int, int], window: int, stride: int, padding: int, where: str
) -> tuple[int, int]:
    height, width = (size_after(side, window, stride, padding, where) for side in sides)
    return height, width


def convnet_mnist(**options: Unpack[ModelOptions]) -> ConvNet:
    """Return 83,154 parameters in 3 layers, as Barczewski and Ramon (2024) have for MNIST."""
    return ConvNet((1, 28, 28), 10, [Stage(20, 5, padding=0, pool=3)], dense=(64,), **options)


def convnet_fashion(**options: Unpack[ModelOptions]) -> ConvNet:
    """Return 132,746 parameters in 6 layers, as Barczewski and Ramon (2024) for Fashion-MNIST."""
    stages = [Stage(width, pool=2) for width in (16, 32, 64, 128)]
    return ConvNet((1, 28, 28), 10, stages, dense=(256,), **options)


def convnet_thesis(**options: Unpack[ModelOptions]) -> ConvNet:
    """Return 1,625,866 parameters, as Barczewski (2025) has for MNIST and Fashion-MNIST."""
    return ConvNet((1, 28, 28), 10, [Stage(32), Stage(64, pool=2)], dense=(128,), **options)


def tempered_cnn(**options: Unpack[ModelOptions]) -> ConvNet:
    """Return 18,842 parameters with tempered sigmoids, after Papernot et al. (2021).

    With average instead of maximum pooling of stride one, as in our measurements.
    """
    settings: ModelOptions = {"activation": "tempered-sigmoid", "pooling": "average", **options}
    stages = [Stage(16, 8, stride=2, padding=3, pool=2), Stage(32, 4, padding=1, pool=2)]
    return ConvNet((1, 28, 28), 10, stages, dense=(32,), **settings)


def benchmark_cnn(width: int = 32, **options: Unpack[ModelOptions]) -> ConvNet:
    """Return 356,810 parameters (at width 32): the network of our step benchmarks, CIFAR-10."""
    width = checks.integer("width", width, minimum=1)
    stages = [Stage(width * factor, pool=2) for factor in (1, 2, 4)]
    return ConvNet((3, 32, 32), 10, stages, dense=(128,), **options)


def shallow_vgg(**options: Unpack[ModelOptions]) -> ConvNet:
    """Return 131,466 parameters: the shallow VGG of Barczewski and Ramon (2024) for CIFAR-10."""
    stages = [*(Stage(width, pool=2) for width in (32, 64, 64)), Stage(128)]
    return ConvNet((3, 32, 32), 10, stages, global_pool=True, **options)
