"""DP training with known bugs: what the tests of `noisewise.debugging` are judged by."""

from noisewise.debugging.mutants.catalogue import (
    BUGS,
    CORRECT,
    FRESH,
    LATEST,
    UNSEEN,
    Mutant,
    Variant,
)
from noisewise.debugging.mutants.training import Training

__all__ = ["BUGS", "CORRECT", "FRESH", "LATEST", "UNSEEN", "Mutant", "Training", "Variant"]
