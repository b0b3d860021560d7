"""What private training does to a model: calibration, clipping bias, kernels, membership.

These are diagnostics of people who may see the data. Nothing here is private unless its name
says so: do not publish what it shows about private records.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisewise.analysis import calibration, clipping_bias, membership, ntk
    from noisewise.analysis.figures import (
        prediction_histogram as prediction_histogram,
        training_figures as training_figures,
    )

_FIGURES = ("prediction_histogram", "training_figures")

__all__ = ["calibration", "clipping_bias", "membership", "ntk"]


def __getattr__(name: str) -> Any:
    if name in _FIGURES:
        return getattr(importlib.import_module("noisewise.analysis.figures"), name)
    if name in __all__:
        return importlib.import_module(f"noisewise.analysis.{name}")
    raise AttributeError(f"module 'noisewise.analysis' has no attribute {name!r}")
