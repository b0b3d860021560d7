"""The rules, one file a family. Importing this package fills the registry."""

from noisewise.separation.rules import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    losses,
    moving,
    normalisation,
    pooling,
    products,
    reduction,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "losses",
    "moving",
    "normalisation",
    "pooling",
    "products",
    "reduction",
]
