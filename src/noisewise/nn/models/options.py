"""What all ready models share: which activation, pooling, norm, weights and input bound.

The defaults keep gradients as long as a Lipschitz constant of one allows: MaxMin has an
orthogonal Jacobian, the Euclidean pooling keeps norms, linear layers start as isometries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import torch
from torch import nn

from noisewise import checks
from noisewise.nn.activations import (
    AbsoluteValue,
    GroupSort,
    HouseholderActivation,
    MaxMin,
    TemperedSigmoid,
)
from noisewise.nn.conv import SpectralConv1d, SpectralConv2d
from noisewise.nn.input import BoundedInput
from noisewise.nn.linear import SpectralLinear
from noisewise.nn.normalisation import LayerCentering, LipschitzGroupNorm
from noisewise.nn.pooling import ScaledAvgPool2d, ScaledL2Pool2d
from noisewise.nn.projections import PROJECTIONS
from noisewise.nn.standardised import StandardisedConv2d

__all__ = ["ModelOptions", "Options"]

_ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "maxmin": lambda width: MaxMin(),
    "groupsort": lambda width: GroupSort(2),
    "householder": HouseholderActivation,
    "absolute": lambda width: AbsoluteValue(),
    "relu": lambda width: nn.ReLU(),
    "tanh": lambda width: nn.Tanh(),
    "tempered-sigmoid": lambda width: TemperedSigmoid(),
}
_PAIRING = ("maxmin", "groupsort", "householder")
_POOLINGS: dict[str, Callable[[int], nn.Module]] = {
    "l2": ScaledL2Pool2d,
    "average": ScaledAvgPool2d,
    "max": nn.MaxPool2d,
}


def start_as_isometry_(layer: SpectralConv1d | SpectralConv2d) -> None:
    """Make a convolution keep norms: an orthogonal matrix between pixels and outputs.

    Delta-orthogonal kernels (Xiao et al., 2018); with stride s, blocks of s pixels a side take
    the place of single pixels. Tap t reads pixel ``i stride - padding + t``, so the block
    starts at the tap of number `padding`. Random kernels of norm one shrink most signals, and
    gradients with them, by half or more in every layer.
    """
    outputs, inputs = layer.weight.shape[:2]
    kernel = layer.weight.shape[2:]
    block = [min(s, k) for s, k in zip(layer.stride, kernel, strict=True)]
    padding = [int(p) for p in layer.padding]
    first = [min(p, k - b) for p, k, b in zip(padding, kernel, block, strict=True)]
    matrix = torch.empty(outputs, inputs * math.prod(block))
    if outputs == matrix.shape[1]:
        nn.init.eye_(matrix)
    else:
        nn.init.orthogonal_(matrix)
    taps = (slice(None), slice(None), *(slice(a, a + b) for a, b in zip(first, block, strict=True)))
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[taps] = layer.limit * matrix.view(outputs, inputs, *block)
    layer.project_()


@dataclass(frozen=True)
class Options:
    """Settings that every ready model takes as keyword arguments.

    Attributes
    ----------
    activation : str or callable
        ``maxmin``, ``groupsort``, ``householder``, ``absolute`` (keep norms), ``relu``,
        ``tanh``, ``tempered-sigmoid``; or a function from the number of channels to a module.
    pooling : {"l2", "average", "max"}
        Euclidean norm of each window (keeps norms), average scaled to slope one, or maximum.
    norm : {None, "group", "centre"}
        What follows each hidden linear layer: nothing, group normalisation by
        max(alpha, deviation) without parameters, or the removal of the record's mean.
    groups, alpha : int, float
        Of the group normalisation. Groups are reduced to a divisor of the channels; the
        slope is 1/alpha for every such layer, so that a depth of d costs alpha^-d.
    weights : {"spectral", "standardised"}
        Whether 2-d convolutions are held to `limit` by projection, or standardised (their
        norm then is about `limit` at the start, and certified as it is at any time).
    limit : float
        Largest operator norm of every constrained layer.
    start : {"isometry", "random"}
        How constrained convolutions begin. `isometry`: an orthogonal matrix (the identity
        where it is square) at the tap, or block of taps, that reads each pixel once, zero
        elsewhere; it keeps norms exactly. `random`: every tap at random.
    projection : str, optional
        How it is kept, see `noisewise.nn.projections`; each layer's own default if None.
    bias : bool, optional
        Whether linear layers have a bias; each model's own default if None.
    input_norm, input_mode, colour
        Of the `BoundedInput` in front.
    """

    activation: str | Callable[[int], nn.Module] = "maxmin"
    pooling: str = "l2"
    norm: str | None = None
    groups: int = 16
    alpha: float = 1.0
    weights: str = "spectral"
    limit: float = 1.0
    start: str = "isometry"
    projection: str | None = None
    bias: bool | None = None
    input_norm: float = 1.0
    input_mode: str = "clip"
    colour: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.activation):
            checks.choice("activation", self.activation, _ACTIVATIONS)
        checks.choice("pooling", self.pooling, _POOLINGS)
        if self.norm is not None:
            checks.choice("norm", self.norm, ("group", "centre"))
        checks.integer("groups", self.groups, minimum=1)
        checks.positive("alpha", self.alpha)
        checks.choice("weights", self.weights, ("spectral", "standardised"))
        checks.positive("limit", self.limit)
        checks.choice("start", self.start, ("isometry", "random"))
        if self.projection is not None:
            checks.choice("projection", self.projection, PROJECTIONS)

    @classmethod
    def of(cls, given: ModelOptions, **defaults: Any) -> Options:
        """Keyword arguments of a model, with the model's own defaults beneath them."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"unknown option {name!r}; the options are {', '.join(known)}")
        return cls(**{**defaults, **given})

    def input(self, shape: Sequence[int]) -> BoundedInput:
        """Layer that bounds every record."""
        return BoundedInput(shape, self.input_norm, self.input_mode, self.colour)

    def channels(self, shape: Sequence[int]) -> int:
        """Channels that leave the input layer."""
        return 1 if self.colour == "grayscale" else shape[0]

    def act(self, width: int) -> nn.Module:
        """Activation after a layer of that many channels."""
        if callable(self.activation):
            return self.activation(width)
        if self.activation in _PAIRING and width % 2:
            raise ValueError(
                f"activation={self.activation!r} works on pairs of channels, so every width must "
                f"be even, got {width}. Choose an even width, or activation='relu'."
            )
        return _ACTIVATIONS[self.activation](width)

    def norms(self, width: int) -> list[nn.Module]:
        """Return the normalisation after a layer of that many channels, if any."""
        if self.norm == "group":
            return [LipschitzGroupNorm(math.gcd(self.groups, width), width, self.alpha)]
        return [LayerCentering()] if self.norm == "centre" else []

    def pool(self, window: int) -> nn.Module:
        """Pooling over windows that do not overlap."""
        return _POOLINGS[self.pooling](window)

    def _constrained(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"bias": True if self.bias is None else self.bias}
        chosen["limit"] = self.limit
        if self.projection is not None:
            chosen["projection"] = self.projection
        return chosen

    def dense(self, inputs: int, outputs: int) -> nn.Module:
        """Linear layer within the limit."""
        return SpectralLinear(inputs, outputs, **self._constrained())

    def positionwise(self, inputs: int, outputs: int) -> nn.Module:
        """Linear layer over the channels of a sequence, the same at each position."""
        return self._started(SpectralConv1d(inputs, outputs, 1, **self._constrained()))

    def conv(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> nn.Module:
        """2-d convolution within the limit, or standardised."""
        if self.weights == "spectral":
            settings = self._constrained()
            return self._started(
                SpectralConv2d(inputs, outputs, kernel, stride, padding, **settings)
            )
        # A random kernel with channels of length one has norm about 1 + sqrt(outputs/inputs).
        # A function of the shape only, so that a saved model is the same after loading.
        gain = self.limit / (1.0 + math.sqrt(outputs / inputs))
        bias = self.bias is not False
        layer = StandardisedConv2d(inputs, outputs, kernel, stride, padding, bias=bias, gain=gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        return layer

    def _started(self, layer: SpectralConv1d | SpectralConv2d) -> nn.Module:
        if self.start == "isometry":
            start_as_isometry_(layer)
        return layer

    def refuse_standardised(self, model: str) -> None:
        """Raise if standardised weights were asked of a model that has no 2-d convolutions."""
        if self.weights == "standardised":
            raise ValueError(
                f"weights='standardised' is for 2-d convolutions, of which {model} has none to "
                "standardise; leave weights='spectral'"
            )


class ModelOptions(TypedDict, total=False):
    """Keyword arguments of every ready model: the fields of :class:`Options`."""

    activation: str | Callable[[int], nn.Module]
    pooling: str
    norm: str | None
    groups: int
    alpha: float
    weights: str
    limit: float
    start: str
    projection: str | None
    bias: bool | None
    input_norm: float
    input_mode: str
    colour: str | None
