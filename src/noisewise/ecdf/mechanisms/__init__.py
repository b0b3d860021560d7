"""Counting mechanisms: noisy prefix counts of a histogram, each with a proven guarantee."""

from noisewise.ecdf.mechanisms.calibrating import calibrate, for_units
from noisewise.ecdf.mechanisms.circulant import PinnedCirculant, circulant_mechanism
from noisewise.ecdf.mechanisms.kary import histogram_mechanism, kary_mechanism
from noisewise.ecdf.mechanisms.protocol import (
    Block,
    FloatArray,
    IntArray,
    Mechanism,
    Setting,
    Strategy,
)
from noisewise.ecdf.mechanisms.selection import MECHANISMS, plan
from noisewise.ecdf.mechanisms.thesis import thesis_mechanism
from noisewise.ecdf.mechanisms.toeplitz import ScaledToeplitz, sqrt_mechanism

__all__ = [
    "MECHANISMS",
    "Block",
    "FloatArray",
    "IntArray",
    "Mechanism",
    "PinnedCirculant",
    "ScaledToeplitz",
    "Setting",
    "Strategy",
    "calibrate",
    "circulant_mechanism",
    "for_units",
    "histogram_mechanism",
    "kary_mechanism",
    "plan",
    "sqrt_mechanism",
    "thesis_mechanism",
]
