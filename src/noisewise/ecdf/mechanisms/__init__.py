"""Counting mechanisms: noisy prefix counts of a histogram, each with a proven guarantee."""

from noisewise.ecdf.mechanisms.calibrating import calibrate, for_units as for_units
from noisewise.ecdf.mechanisms.circulant import (
    PinnedCirculant as PinnedCirculant,
    circulant_mechanism,
)
from noisewise.ecdf.mechanisms.kary import histogram_mechanism, kary_mechanism
from noisewise.ecdf.mechanisms.protocol import (
    Block,
    FloatArray as FloatArray,
    IntArray as IntArray,
    Mechanism,
    Setting,
    Strategy,
)
from noisewise.ecdf.mechanisms.selection import MECHANISMS, plan
from noisewise.ecdf.mechanisms.thesis import thesis_mechanism
from noisewise.ecdf.mechanisms.toeplitz import ScaledToeplitz as ScaledToeplitz, sqrt_mechanism

__all__ = [
    "MECHANISMS",
    "Block",
    "Mechanism",
    "Setting",
    "Strategy",
    "calibrate",
    "circulant_mechanism",
    "histogram_mechanism",
    "kary_mechanism",
    "plan",
    "sqrt_mechanism",
    "thesis_mechanism",
]
