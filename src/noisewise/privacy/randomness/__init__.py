"""Random numbers that can keep a secret: a cipher keyed from the operating system."""

from noisewise.privacy.randomness.discrete import (
    Scale,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    discrete_laplace_variance,
    exact_scale,
)
from noisewise.privacy.randomness.exponential import exponentials
from noisewise.privacy.randomness.generator import Randomness, resolve
from noisewise.privacy.randomness.keystream import RandomnessError

__all__ = [
    "Randomness",
    "RandomnessError",
    "Scale",
    "bernoulli_exp",
    "discrete_gaussian",
    "discrete_laplace",
    "discrete_laplace_variance",
    "exact_scale",
    "exponentials",
    "resolve",
]
