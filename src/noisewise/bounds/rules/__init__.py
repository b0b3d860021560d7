"""One rule per layer type, in the file of its kind; importing this package registers them."""

from noisewise.bounds.rules import (
    activation,
    convolution,
    dropout,
    embedding,
    linear,
    normalisation,
    pooling,
    refusals,
    shape,
)

__all__ = [
    "activation",
    "convolution",
    "dropout",
    "embedding",
    "linear",
    "normalisation",
    "pooling",
    "refusals",
    "shape",
]
