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
from noisewise.bounds.rules.activation import Constants, ElementwiseRule
from noisewise.bounds.rules.convolution import ConvolutionRule
from noisewise.bounds.rules.linear import IdentityRule, LinearRule
from noisewise.bounds.rules.normalisation import Groups, NormalisationRule
from noisewise.bounds.rules.pooling import MeanPoolRule, check_axes, windows_of
from noisewise.bounds.rules.scattering import Band, bank_energy, line_spectrum
from noisewise.bounds.rules.vectors import largest_entry, wide
from noisewise.bounds.rules.windows import (
    copies_of_entries,
    each_axis,
    largest_count,
    padding_sources,
)

__all__ = [
    "Band",
    "Constants",
    "ConvolutionRule",
    "ElementwiseRule",
    "Groups",
    "IdentityRule",
    "LinearRule",
    "MeanPoolRule",
    "NormalisationRule",
    "activation",
    "bank_energy",
    "check_axes",
    "convolution",
    "copies_of_entries",
    "dropout",
    "each_axis",
    "embedding",
    "largest_count",
    "largest_entry",
    "line_spectrum",
    "linear",
    "normalisation",
    "padding_sources",
    "pooling",
    "refusals",
    "shape",
    "wide",
    "windows_of",
]
