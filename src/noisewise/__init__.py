"""noisewise: learn from private data, with an epsilon that is true.

The table of contents. Subpackages are imported when first used, so that
``import noisewise`` is quick.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from noisewise._version import __version__
from noisewise.errors import (
    BudgetExceededError,
    NoisewiseError,
    UnsoundError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from noisewise import datasets, privacy

_SUBPACKAGES = ("datasets", "privacy")

__all__ = [
    "BudgetExceededError",
    "NoisewiseError",
    "UnsoundError",
    "UnsupportedModelError",
    "__version__",
    "datasets",
    "privacy",
]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"noisewise.{name}")
    raise AttributeError(f"module 'noisewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
