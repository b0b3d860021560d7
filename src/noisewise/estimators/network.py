"""The network behind the estimators: built and trained in torch, applied in numpy.

A linear layer, or hidden layers with tanh between. What is kept of it are plain arrays, so
that an estimator can be cloned, compared, pickled and stored without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

__all__ = ["apply_network", "build_bounded_network", "build_network", "weights_of"]

Array = npt.NDArray[np.float32]


def build_network(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    seed: int,
    *,
    bias: bool = True,
    alpha: float | None = None,
) -> nn.Sequential:
    """Return a network whose last layer is zero, so that it starts with equal scores.

    The start is random but public: `seed` is no secret. With `alpha` the values of every hidden
    layer are normalised before their tanh, record by record.
    """
    from noisewise.nn import LipschitzGroupNorm

    generator = torch.Generator().manual_seed(seed)
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(sizes)):
        layer = nn.Linear(before, after, bias=bias)
        with torch.no_grad():
            if bias:
                layer.bias.zero_()
            if index == len(sizes) - 2:
                layer.weight.zero_()
            else:
                layer.weight.normal_(0.0, before**-0.5, generator=generator)
        layers.append(layer)
        if index < len(sizes) - 2:
            normal = [] if alpha is None else [LipschitzGroupNorm(1, after, alpha)]
            layers += [*normal, nn.Tanh()]
    return nn.Sequential(*layers)


def build_bounded_network(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    seed: int,
    norm: float,
    *,
    limit: float = 1.0,
    projection: str = "singular-values",
    alpha: float | None = None,
    isometric: bool = False,
) -> nn.Sequential:
    """Return the same network of layers whose norms are kept within a limit.

    With `isometric` hidden layers start as isometries on that limit.
    """
    from noisewise.nn import BoundedInput, SpectralLinear

    plain = build_network(inputs, hidden, outputs, seed, alpha=alpha)
    layers: list[nn.Module] = [BoundedInput((inputs,), norm)]
    for layer in plain:
        if isinstance(layer, nn.Linear):
            bounded = SpectralLinear(
                layer.in_features, layer.out_features, limit=limit, projection=projection
            )
            bounded.load_state_dict(layer.state_dict())
            if isometric and layer.weight.any():
                with torch.no_grad():
                    start = torch.linalg.svd(layer.weight, full_matrices=False)
                    bounded.weight.copy_(limit * start.U @ start.Vh)
            bounded.project_()
            layers.append(bounded)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def weights_of(network: nn.Module) -> list[tuple[Array, Array]]:
    """Return the matrices and biases of the layers."""
    return [
        (_array(layer.weight), np.zeros(layer.out_features, np.float32))
        if layer.bias is None
        else (_array(layer.weight), _array(layer.bias))
        for layer in network.modules()
        if isinstance(layer, nn.Linear)
    ]


def _array(parameter: torch.Tensor) -> Array:
    values: Array = parameter.detach().cpu().numpy().copy()
    return values


def apply_network(
    weights: Sequence[tuple[Array, Array]], x: Any, alpha: float | None = None
) -> Array:
    """Return the scores of the rows of x."""
    values = np.asarray(x, dtype=np.float32)
    for index, (matrix, bias) in enumerate(weights):
        values = values @ matrix.T + bias
        if index < len(weights) - 1:
            if alpha is not None:
                values = values - values.mean(axis=1, keepdims=True)
                variance = np.square(values).mean(axis=1, keepdims=True)
                values = values / np.sqrt(np.maximum(variance, alpha * alpha))
            values = np.tanh(values)
    return values
