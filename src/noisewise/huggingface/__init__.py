"""Private training in Hugging Face's own trainer. Needs the extra ``huggingface``.

The table of contents. The packages are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise.errors import MissingExtraError

if TYPE_CHECKING:
    from noisewise.huggingface.trainer import PrivateTrainer

__all__ = ["PrivateTrainer"]


def __getattr__(name: str) -> Any:
    if name != "PrivateTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("transformers", "accelerate"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"PrivateTrainer needs the package {package}, which is not installed: "
                "pip install 'noisewise[huggingface]'"
            ) from error
    return importlib.import_module("noisewise.huggingface.trainer").PrivateTrainer


def __dir__() -> list[str]:
    return __all__
