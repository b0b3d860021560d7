"""Which implementation grows the trees: AES instructions through numba, or numpy.

Both give the same bits. The compiled one needs numba (the extra ``fast``) and an x86-64 processor
with AES instructions.
"""

from __future__ import annotations

import importlib
import platform
from functools import lru_cache
from typing import Any

from noisewise.errors import MissingExtraError

__all__ = ["available", "load", "use"]


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether numba is installed and this processor has AES instructions."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        binding = importlib.import_module("llvmlite.binding")
        importlib.import_module("numba")
    except ImportError:
        return False
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return False
    return bool(features.get("aes", False))


def use(compiled: bool | None) -> bool:
    """Decide, or raise if what was asked for is not there."""
    if compiled is None:
        return available()
    if compiled and not available():
        raise MissingExtraError(
            "compiled=True needs numba and a processor with AES instructions: install "
            "noisewise[fast], or leave `compiled` away to use numpy"
        )
    return compiled


def load() -> Any:
    """Return the compiled functions; compiled at their first use, which takes seconds."""
    from noisewise.federated.fss import compiled

    return compiled
