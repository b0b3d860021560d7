"""How a record's gradient of one use of a parameter is made of two factors, per operation."""

from noisewise.gradients.contractions.base import Contraction, Target
from noisewise.gradients.contractions.convolution import (
    ConvolutionContraction,
    TransposedContraction,
)
from noisewise.gradients.contractions.given import CombinedContraction, GivenContraction
from noisewise.gradients.contractions.linear import LinearContraction, TurnedContraction
from noisewise.gradients.contractions.pair import PairContraction
from noisewise.gradients.contractions.rows import RowsContraction

__all__ = [
    "CombinedContraction",
    "Contraction",
    "ConvolutionContraction",
    "GivenContraction",
    "LinearContraction",
    "PairContraction",
    "RowsContraction",
    "Target",
    "TransposedContraction",
    "TurnedContraction",
]
