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
    from noisewise import auditing, bounds, datasets, debugging, ecdf, nn, privacy
    from noisewise.bounds import certify

_SUBPACKAGES = ("auditing", "bounds", "datasets", "debugging", "ecdf", "nn", "privacy")
_NAMES = {"certify": "noisewise.bounds"}

__all__ = [
    "BudgetExceededError",
    "NoisewiseError",
    "UnsoundError",
    "UnsupportedModelError",
    "__version__",
    "auditing",
    "bounds",
    "certify",
    "datasets",
    "debugging",
    "ecdf",
    "nn",
    "privacy",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"noisewise.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'noisewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
