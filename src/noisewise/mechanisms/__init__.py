"""Ways to release one result: each returns the noisy value and its statement."""

from noisewise.mechanisms.additive import (
    discrete_gaussian,
    discrete_laplace,
    gaussian,
    gaussian_deviation,
    laplace,
)
from noisewise.mechanisms.output import LogisticProblem, StronglyConvexProblem, output_perturbation
from noisewise.mechanisms.selection import exponential, permute_and_flip
from noisewise.release import Release

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
