"""Certified norms: proven upper bounds on the norms of matrices and convolutions."""

from noisewise.bounds.norms.autocorrelation import autocorrelation_bound
from noisewise.bounds.norms.convolution import conv_norm, riesz_grid as riesz_grid
from noisewise.bounds.norms.geometry import (
    conv_reuse,
    depth_to_space as depth_to_space,
    geometry as geometry,
    space_to_depth as space_to_depth,
)
from noisewise.bounds.norms.induced import induced_norm
from noisewise.bounds.norms.lengths import (
    SQUARES_AT_ONCE as SQUARES_AT_ONCE,
    row_norms as row_norms,
    underflow as underflow,
)
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.precision import (
    check_full_precision as check_full_precision,
    full_float32 as full_float32,
    full_precision as full_precision,
    is_full as is_full,
    require_strict_libraries as require_strict_libraries,
)
from noisewise.bounds.norms.result import NormBound

__all__ = [
    "NormBound",
    "autocorrelation_bound",
    "conv_norm",
    "conv_reuse",
    "induced_norm",
    "spectral_norm",
]
