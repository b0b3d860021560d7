"""noisewise: learn from private data, with an epsilon that is true."""

from noisewise._version import __version__
from noisewise.errors import (
    BudgetExceededError,
    NoisewiseError,
    UnsoundError,
    UnsupportedModelError,
)

__all__ = [
    "BudgetExceededError",
    "NoisewiseError",
    "UnsoundError",
    "UnsupportedModelError",
    "__version__",
]
