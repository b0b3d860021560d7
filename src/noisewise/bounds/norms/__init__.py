"""Certified norms: proven upper bounds on the norms of matrices and convolutions."""

from noisewise.bounds.norms.autocorrelation import autocorrelation_bound
from noisewise.bounds.norms.convolution import conv_norm, riesz_grid
from noisewise.bounds.norms.geometry import conv_reuse, depth_to_space, geometry, space_to_depth
from noisewise.bounds.norms.induced import induced_norm
from noisewise.bounds.norms.lengths import SQUARES_AT_ONCE, row_norms, underflow
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.precision import check_full_precision, full_float32, full_precision
from noisewise.bounds.norms.result import NormBound

__all__ = [
    "SQUARES_AT_ONCE",
    "NormBound",
    "autocorrelation_bound",
    "check_full_precision",
    "conv_norm",
    "conv_reuse",
    "depth_to_space",
    "full_float32",
    "full_precision",
    "geometry",
    "induced_norm",
    "riesz_grid",
    "row_norms",
    "space_to_depth",
    "spectral_norm",
    "underflow",
]
