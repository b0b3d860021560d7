"""What may be asked of a curve, for functions that hand it on."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from noisewise.privacy import Randomness, Relation
from noisewise.release import Aggregator, LedgerOrPath

__all__ = [
    "CalibrationOptions",
    "CountOptions",
    "CurveOptions",
    "HistogramOptions",
    "QuantileOptions",
    "ScoreOptions",
]


class _Common(TypedDict, total=False):
    delta: float
    relation: Relation | str
    ledger: LedgerOrPath
    seed: Randomness | int | None


class _OfTables(TypedDict, total=False):
    data: Any


class _OfUnits(TypedDict, total=False):
    units: Any
    max_per_unit: int


class ScoreOptions(_Common, _OfTables, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_roc`."""

    bounds: tuple[float, float]
    bins: int
    pos_label: Any
    mechanism: str
    smooth: str | None
    aggregator: Aggregator | None
    objective: Literal["mean", "max"]


class CalibrationOptions(_Common, _OfTables, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_calibration`."""

    strategy: Literal["uniform", "quantile"]
    cuts: Any
    bins: int
    pos_label: Any


class QuantileOptions(_Common, _OfTables, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.dp_quantile`."""

    epsilon: float | None
    mechanism: Literal["auto", "exponential", "search", "curve"]
    interval: float | None
    bins: int
    aggregator: Aggregator | None
    rho: float | None


class CurveOptions(TypedDict, total=False):
    """How a distribution function or a ROC curve is counted and made monotone."""

    mechanism: str
    smooth: str | None
    objective: Literal["mean", "max"]


class CountOptions(TypedDict, total=False):
    """How a histogram is counted."""

    noise: Literal["cumulative", "independent"]
    consistent: bool
    mechanism: str


class HistogramOptions(_Common, CountOptions, _OfTables, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_histogram`."""
