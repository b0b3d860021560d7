"""What is promised: relations, accounting, mechanisms, randomness, statements, ledgers.

The table of contents. The mechanisms stand on the kernel of releases, which stands on this
package; so they are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise.privacy.accounting import (
    ACCOUNTANTS as ACCOUNTANTS,
    calibrate as calibrate,
    delta,
    delta_of,
    epsilon,
    epsilon_of,
    max_count as max_count,
    max_steps,
    noise_multiplier,
    tightest as tightest,
    training_step as training_step,
)
from noisewise.privacy.composition import (
    Guarantee,
    advanced_composition,
    amplification_by_sampling,
    classic_gaussian_deviation,
    group_privacy,
    group_privacy_of,
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
    PoissonRows,
    Pure,
    Selection,
    ZeroConcentrated,
    split_noise,
)
from noisewise.privacy.ledger import Charge, Ledger, LedgerHead
from noisewise.privacy.ledger_witness import Seen as Seen, Witness as Witness
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import ADD_REMOVE, REPLACE_ONE, Norm as Norm, Relation, Sensitivity
from noisewise.privacy.signatures import Signer as Signer, verify_signature as verify_signature
from noisewise.privacy.statement import (
    Preprocessing as Preprocessing,
    Statement,
    round_up as round_up,
    single_up as single_up,
    statement_schema,
)
from noisewise.privacy.statement_premises import (
    POISSON_SAMPLING as POISSON_SAMPLING,
    WHOLE_UNITS as WHOLE_UNITS,
    rows_of_units as rows_of_units,
)
from noisewise.privacy.statement_texts import NOT_SOUND as NOT_SOUND
from noisewise.privacy.trials import TrialNumber as TrialNumber
from noisewise.privacy.units import (
    MISSING_IDENTIFIERS as MISSING_IDENTIFIERS,
    MISSING_TEXT as MISSING_TEXT,
    SPACES as SPACES,
    identifiers_of as identifiers_of,
    require_same_order as require_same_order,
    unit_codes as unit_codes,
)
from noisewise.privacy.verification import (
    Verification,
    other_accountant as other_accountant,
    read_statement as read_statement,
    verify,
)

if TYPE_CHECKING:
    from noisewise.mechanisms import (
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

_MECHANISMS = {
    "LogisticProblem", "Release", "StronglyConvexProblem", "discrete_gaussian", "discrete_laplace",
    "exponential", "gaussian", "gaussian_deviation", "laplace", "output_perturbation",
    "permute_and_flip",
}  # fmt: skip

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
    "PoissonRows",
    "Pure",
    "Randomness",
    "Relation",
    "Release",
    "Selection",
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
    "group_privacy_of",
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


def __getattr__(name: str) -> Any:
    if name in _MECHANISMS:
        return getattr(importlib.import_module("noisewise.mechanisms"), name)
    raise AttributeError(f"module 'noisewise.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
