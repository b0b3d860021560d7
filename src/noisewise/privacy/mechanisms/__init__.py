"""Ways to release one result: each returns the noisy value and its statement."""

from noisewise.privacy.mechanisms.noise import (
    discrete_gaussian,
    discrete_laplace,
    gaussian,
    gaussian_deviation,
    laplace,
)
from noisewise.privacy.mechanisms.output import (
    LogisticProblem,
    StronglyConvexProblem,
    output_perturbation,
)
from noisewise.privacy.mechanisms.release import Release
from noisewise.privacy.mechanisms.selection import exponential, permute_and_flip

__all__ = [
    "LogisticProblem",
    "Release",
    "StronglyConvexProblem",
    "discrete_gaussian",
    "discrete_laplace",
    "exponential",
    "gaussian",
    "gaussian_deviation",
    "laplace",
    "output_perturbation",
    "permute_and_flip",
]
