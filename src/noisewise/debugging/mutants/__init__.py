"""DP training with known bugs: what the tests of `noisewise.debugging` are judged by."""

from noisewise.debugging.mutants import (
    frozen as frozen,
    frozen_again as frozen_again,
    frozen_eighth as frozen_eighth,
    frozen_eleventh as frozen_eleventh,
    frozen_ninth as frozen_ninth,
    frozen_seventh as frozen_seventh,
    frozen_tenth as frozen_tenth,
    frozen_thrice as frozen_thrice,
    frozen_twelfth as frozen_twelfth,
    habits as habits,
    known as known,
    odd_eleventh as odd_eleventh,
    odd_tenth as odd_tenth,
    odd_twelfth as odd_twelfth,
    private_ninth as private_ninth,
    reported as reported,
    whole_eleventh as whole_eleventh,
    whole_twelfth as whole_twelfth,
)
from noisewise.debugging.mutants.cases import Case, cases
from noisewise.debugging.mutants.catalogue import ROUNDS, Mutant, mutants
from noisewise.debugging.mutants.programs import PROGRAMS, Program
from noisewise.debugging.mutants.subjects import (
    AnyTraining as AnyTraining,
    Subject,
    with_bug,
    with_variant,
)
from noisewise.debugging.mutants.training import Training
from noisewise.debugging.mutants.variants import CORRECT, Variant

__all__ = [
    "CORRECT",
    "PROGRAMS",
    "ROUNDS",
    "Case",
    "Mutant",
    "Program",
    "Subject",
    "Training",
    "Variant",
    "cases",
    "mutants",
    "with_bug",
    "with_variant",
]
