"""What may be asked of a curve of labels and scores, for functions that hand it on."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation
from noisewise.release import Aggregator, LedgerOrPath

__all__ = ["CalibrationOptions", "HistogramOptions", "ScoreOptions"]


class _Common(TypedDict, total=False):
    delta: float
    relation: Relation | str
    ledger: LedgerOrPath
    seed: Randomness | int | None
    data: Any


class _OfUnits(TypedDict, total=False):
    units: Any
    max_per_unit: int


class ScoreOptions(_Common, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_roc`."""

    bounds: tuple[float, float]
    bins: int
    pos_label: Any
    mechanism: str
    smooth: str | None
    aggregator: Aggregator | None
    objective: Literal["mean", "max"]


class CalibrationOptions(_Common, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_calibration`."""

    strategy: Literal["uniform", "quantile"]
    cuts: Any
    bins: int
    pos_label: Any


class HistogramOptions(_Common, _OfUnits, total=False):
    """Of :func:`noisewise.ecdf.private_histogram`."""

    noise: Literal["cumulative", "independent"]
    consistent: bool
    mechanism: str
