"""Losses with a known Lipschitz constant, computed record by record.

Each returns one loss per record unless told otherwise; the constants
(docs/proofs/losses.md) bound the gradient of one record's loss with respect to its output.
Targets are first brought into the range for which the constant holds, record by record.
"""

from noisewise.nn.losses.classification import (
    BinaryCrossEntropy,
    CosineSimilarity,
    CrossEntropy,
    MulticlassHinge,
)
from noisewise.nn.losses.regression import Huber, MeanAbsolute, MeanSquared
from noisewise.nn.losses.transport import HingeKantorovichRubinstein, KantorovichRubinstein

__all__ = [
    "BinaryCrossEntropy",
    "CosineSimilarity",
    "CrossEntropy",
    "HingeKantorovichRubinstein",
    "Huber",
    "KantorovichRubinstein",
    "MeanAbsolute",
    "MeanSquared",
    "MulticlassHinge",
]
