"""noisewise: learn from private data, with an epsilon that is true.

The table of contents. Subpackages are imported when first used, so that
``import noisewise`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise._version import __version__
from noisewise.errors import (
    BudgetExceededError,
    NoisewiseError,
    UnsoundError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from noisewise import (
        analysis,
        auditing,
        bounds,
        datasets,
        debugging,
        ecdf,
        estimators,
        federated,
        gradients,
        nn,
        privacy,
        release,
        training,
    )
    from noisewise.bounds import certified_radius, certify, robust_accuracy
    from noisewise.gradients import (
        BatchMaxScaled,
        Clipped,
        Factored,
        InputScaled,
        PerLayer,
        Propagated,
        Schedule,
        bounded_sum,
        prove_apart,
    )
    from noisewise.separation import Proof
    from noisewise.training import Plan, PrivateRun, fit, make_private

_SUBPACKAGES = (
    "analysis", "auditing", "bounds", "datasets", "debugging", "ecdf", "estimators", "federated",
    "gradients", "nn", "privacy", "release", "training",
)  # fmt: skip
_ESTIMATORS = (
    "BatchMaxScaled", "Clipped", "Factored", "InputScaled", "PerLayer", "Propagated", "Schedule",
)  # fmt: skip
_NAMES = {
    **dict.fromkeys(("certified_radius", "certify", "robust_accuracy"), "noisewise.bounds"),
    "bounded_sum": "noisewise.gradients",
    "prove_apart": "noisewise.gradients",
    "Proof": "noisewise.separation",
    **dict.fromkeys(_ESTIMATORS, "noisewise.gradients"),
    **dict.fromkeys(("Plan", "PrivateRun", "fit", "make_private"), "noisewise.training"),
}

__all__ = [
    "BatchMaxScaled",
    "BudgetExceededError",
    "Clipped",
    "Factored",
    "InputScaled",
    "NoisewiseError",
    "PerLayer",
    "Plan",
    "PrivateRun",
    "Proof",
    "Propagated",
    "Schedule",
    "UnsoundError",
    "UnsupportedModelError",
    "__version__",
    "analysis",
    "auditing",
    "bounded_sum",
    "bounds",
    "certified_radius",
    "certify",
    "datasets",
    "debugging",
    "ecdf",
    "estimators",
    "federated",
    "fit",
    "gradients",
    "make_private",
    "nn",
    "privacy",
    "prove_apart",
    "release",
    "robust_accuracy",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"noisewise.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'noisewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
