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
from noisewise.bounds.rules.activation import (
    Constants as Constants,
    ElementwiseRule as ElementwiseRule,
)
from noisewise.bounds.rules.convolution import ConvolutionRule as ConvolutionRule
from noisewise.bounds.rules.linear import IdentityRule as IdentityRule, LinearRule as LinearRule
from noisewise.bounds.rules.normalisation import (
    Groups as Groups,
    NormalisationRule as NormalisationRule,
)
from noisewise.bounds.rules.pooling import (
    MeanPoolRule as MeanPoolRule,
    check_axes as check_axes,
    windows_of as windows_of,
)
from noisewise.bounds.rules.scattering import (
    Band as Band,
    bank_energy as bank_energy,
    line_spectrum as line_spectrum,
)
from noisewise.bounds.rules.vectors import largest_entry as largest_entry, wide as wide
from noisewise.bounds.rules.windows import (
    copies_of_entries as copies_of_entries,
    each_axis as each_axis,
    largest_count as largest_count,
    padding_sources as padding_sources,
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
