"""Certified norms: proven upper bounds on the norms of matrices and convolutions."""

from noisewise.bounds.norms.autocorrelation import autocorrelation_bound
from noisewise.bounds.norms.convolution import conv_norm
from noisewise.bounds.norms.geometry import conv_reuse
from noisewise.bounds.norms.induced import induced_norm
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.result import NormBound

__all__ = [
    "NormBound",
    "autocorrelation_bound",
    "conv_norm",
    "conv_reuse",
    "induced_norm",
    "spectral_norm",
]
