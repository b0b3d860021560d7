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
from noisewise.gradients.operations.recurrent import is_recurrent, run_recurrent
from noisewise.gradients.operations.registry import HANDLERS, UnsupportedUseError

__all__ = [
    "HANDLERS",
    "UnsupportedUseError",
    "attention",
    "convolution",
    "dense",
    "elementwise",
    "is_recurrent",
    "lookup",
    "normalisation",
    "run_recurrent",
    "summing",
]
