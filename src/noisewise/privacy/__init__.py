"""What is promised: relations, accounting, mechanisms, randomness, statements, ledgers.

The table of contents. Names are grouped by what they are for.
"""

from noisewise.privacy.accounting import (
    delta,
    delta_of,
    epsilon,
    epsilon_of,
    max_steps,
    noise_multiplier,
)
from noisewise.privacy.composition import (
    Guarantee,
    advanced_composition,
    amplification_by_sampling,
    classic_gaussian_deviation,
    group_privacy,
    renyi_to_approximate,
    simple_composition,
    zero_concentrated_to_approximate,
)
from noisewise.privacy.events import (
    Event,
    Gaussian,
    History,
    Laplace,
    PoissonGaussian,
    Pure,
    ZeroConcentrated,
    split_noise,
)
from noisewise.privacy.ledger import Charge, Ledger, LedgerHead
from noisewise.privacy.mechanisms import (
    LogisticProblem,
    Release,
    StronglyConvexProblem,
    discrete_gaussian,
    discrete_laplace,
    exponential,
    gaussian,
    gaussian_deviation,
    laplace,
    output_perturbation,
    permute_and_flip,
)
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import ADD_REMOVE, REPLACE_ONE, Relation, Sensitivity
from noisewise.privacy.statement import Statement, statement_schema
from noisewise.privacy.verification import Verification, verify

__all__ = [
    "ADD_REMOVE",
    "REPLACE_ONE",
    "Charge",
    "Event",
    "Gaussian",
    "Guarantee",
    "History",
    "Laplace",
    "Ledger",
    "LedgerHead",
    "LogisticProblem",
    "PoissonGaussian",
    "Pure",
    "Randomness",
    "Relation",
    "Release",
    "Sensitivity",
    "Statement",
    "StronglyConvexProblem",
    "Verification",
    "ZeroConcentrated",
    "advanced_composition",
    "amplification_by_sampling",
    "classic_gaussian_deviation",
    "delta",
    "delta_of",
    "discrete_gaussian",
    "discrete_laplace",
    "epsilon",
    "epsilon_of",
    "exponential",
    "gaussian",
    "gaussian_deviation",
    "group_privacy",
    "laplace",
    "max_steps",
    "noise_multiplier",
    "output_perturbation",
    "permute_and_flip",
    "renyi_to_approximate",
    "simple_composition",
    "split_noise",
    "statement_schema",
    "verify",
    "zero_concentrated_to_approximate",
]
