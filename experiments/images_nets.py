"""The networks of the image experiment, and the public map of every image before them.

``paper`` has the layers of `noisewise.nn.models.convnet_mnist` and ``deep`` those of
`convnet_fashion`, which have the sizes of those of Barczewski and Ramon (2024) for MNIST and
Fashion-MNIST;
``thesis`` has those of `convnet_thesis`, that of Barczewski (2025) for both (the papers print
numbers of layers and parameters only). The clipping estimators train ordinary
layers, the Lipschitz ones layers whose bounds are certified at every step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.nn import (
    BoundedInput,
    LipschitzGroupNorm,
    MaxMin,
    ScaledL2Pool2d,
    SpectralConv2d,
    SpectralLinear,
)
from noisewise.nn.models import Stage
from noisewise.nn.models.options import start_as_isometry_
from noisewise.nn.projections import project

__all__ = ["LAYOUTS", "Layout", "cosines", "prepare", "shifts", "start_with_cosines_"]

SHAPE = (1, 28, 28)
CLASSES = 10
INPUT_NORM = 64.0


@dataclass(frozen=True)
class Layout:
    """Stages of convolutions, then hidden dense layers, then the logits.

    `isometric`: Lipschitz convolutions start as isometries. Random ones of norm one halve most
    signals, which a single one can afford and four in a row cannot.
    """

    stages: tuple[Stage, ...]
    dense: tuple[int, ...] = ()
    isometric: bool = False

    def plain(self, groups: int = 4) -> nn.Sequential:
        """Unconstrained: convolution, maximum pooling, group normalisation, tanh."""
        layers: list[nn.Module] = []
        width, side = SHAPE[0], SHAPE[1]
        for stage in self.stages:
            layers.append(nn.Conv2d(width, stage.width, stage.kernel, stage.stride, stage.border))
            width = stage.width
            side = (side + 2 * stage.border - stage.kernel) // stage.stride + 1
            if stage.pool > 1:
                layers.append(nn.MaxPool2d(stage.pool))
                side //= stage.pool
            layers += [nn.GroupNorm(groups, width, affine=False), nn.Tanh()]
        layers.append(nn.Flatten())
        width *= side * side
        for following in self.dense:
            layers += [nn.Linear(width, following), nn.Tanh()]
            width = following
        model = nn.Sequential(*layers, nn.Linear(width, CLASSES))
        start_with_cosines_(model)
        return model

    def lipschitz(self, groups: int = 4) -> nn.Sequential:
        """Weights of norm at most one, no biases; convolution, Euclidean pooling, normalisation.

        Images of norm 64 leave group deviations around one, so that dividing by max(1, deviation)
        normalises most of them, with slope one.
        """
        layers: list[nn.Module] = [BoundedInput(SHAPE, INPUT_NORM, mode="normalise")]
        width, side = SHAPE[0], SHAPE[1]
        for stage in self.stages:
            sizes = (stage.kernel, stage.stride, stage.border)
            convolution = SpectralConv2d(width, stage.width, *sizes, bias=False)
            if self.isometric:
                start_as_isometry_(convolution)
            layers.append(convolution)
            width = stage.width
            side = (side + 2 * stage.border - stage.kernel) // stage.stride + 1
            layers.append(ScaledL2Pool2d(stage.pool) if stage.pool > 1 else MaxMin())
            side //= stage.pool
            layers.append(LipschitzGroupNorm(groups, width))
        layers.append(nn.Flatten())
        width *= side * side
        for following in self.dense:
            layers += [SpectralLinear(width, following, bias=False), MaxMin()]
            width = following
        model = nn.Sequential(*layers, SpectralLinear(width, CLASSES, bias=False))
        start_with_cosines_(model)
        project(model)
        return model


LAYOUTS = {
    "paper": Layout((Stage(20, 5, padding=0, pool=3),), (64,)),
    "shallow": Layout((Stage(16, 7, stride=2, padding=3, pool=2),)),
    "deep": Layout(tuple(Stage(width, pool=2) for width in (16, 32, 64, 128)), (256,), True),
    "thesis": Layout((Stage(32), Stage(64, pool=2)), (128,)),
    "finer": Layout((Stage(16, 5, stride=2, padding=2), Stage(32, 3, pool=2)), (32,)),
}


def cosines(count: int, side: int) -> Tensor:
    """Return the `count` smoothest filters of the discrete cosine transform, of length one.

    There are no more than ``side ** 2`` of them, and fewer are returned if more are asked for.
    """
    pairs = sorted(itertools.product(range(side), repeat=2), key=lambda pair: (sum(pair), pair))
    position = (torch.arange(side) + 0.5) * math.pi / side
    waves = (position * torch.arange(side)[:, None]).cos()
    filters = torch.stack([torch.outer(waves[u], waves[v]) for u, v in pairs[:count]])
    return filters / filters.flatten(1).norm(dim=1)[:, None, None]


def start_with_cosines_(model: nn.Sequential) -> None:
    """Begin the first convolution with smooth public filters, as long as the drawn ones were.

    Of a small kernel there are fewer such filters than channels; the others stay as drawn.
    """
    first = next(layer for layer in model if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        length = first.weight.flatten(1).norm(dim=1).mean()
        smooth = cosines(first.out_channels, first.kernel_size[0])
        first.weight[: len(smooth)] = smooth[:, None] * length


def shifts(most: int) -> Callable[[Tensor], Tensor]:
    """Return a function that moves every image by itself, up to `most` pixels each way."""

    def moved(x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        spread = nn.functional.pad(x, (most,) * 4, mode="replicate")
        down, right = torch.randint(2 * most + 1, (2, len(x), 1), device=x.device)
        rows = (down + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (right + torch.arange(width, device=x.device))[:, None, None, :]
        images = torch.arange(len(x), device=x.device)[:, None, None, None]
        channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
        return spread[images, channels, rows, columns]

    return moved


def prepare(images: np.ndarray) -> Tensor:
    """Bring every image, by itself, to mean zero and mean square one."""
    x = torch.from_numpy(images).float().flatten(1)
    x = x - x.mean(1, keepdim=True)
    deviation = x.square().mean(1, keepdim=True).sqrt()
    return (x / deviation.clamp_min(1.0)).view(-1, *SHAPE)
