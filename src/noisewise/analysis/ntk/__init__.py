"""The neural tangent kernel under clipping: symmetry, positivity, predicted loss change."""

from noisewise.analysis.ntk.dynamics import (
    ClippedKernel,
    LossChange,
    analyse,
    clipping_factors,
    table_of_kernels,
)
from noisewise.analysis.ntk.kernel import Kernels, kernels
from noisewise.analysis.ntk.positivity import Positivity, positivity

__all__ = [
    "ClippedKernel",
    "Kernels",
    "LossChange",
    "Positivity",
    "analyse",
    "clipping_factors",
    "kernels",
    "positivity",
    "table_of_kernels",
]
