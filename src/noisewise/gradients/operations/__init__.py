"""Operations that use parameters: each runs as usual and hands its factors to the tape."""

from noisewise.gradients.operations import (
    attention,
    convolution,
    dense,
    elementwise,
    lookup,
    normalisation,
    summing,
)
from noisewise.gradients.operations.recurrent import RECURRENT, run_recurrent
from noisewise.gradients.operations.registry import HANDLERS, UnsupportedUseError

__all__ = [
    "HANDLERS",
    "RECURRENT",
    "UnsupportedUseError",
    "attention",
    "convolution",
    "dense",
    "elementwise",
    "lookup",
    "normalisation",
    "run_recurrent",
    "summing",
]
