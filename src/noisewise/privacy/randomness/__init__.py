"""Random numbers that can keep a secret: a cipher keyed from the operating system."""

from noisewise.privacy.randomness.discrete import (
    Scale as Scale,
    bernoulli_exp as bernoulli_exp,
    discrete_gaussian as discrete_gaussian,
    discrete_laplace as discrete_laplace,
    discrete_laplace_variance as discrete_laplace_variance,
    exact_scale as exact_scale,
)
from noisewise.privacy.randomness.exponential import exponentials as exponentials
from noisewise.privacy.randomness.generator import Randomness, resolve
from noisewise.privacy.randomness.keystream import RandomnessError

__all__ = ["Randomness", "RandomnessError", "resolve"]
