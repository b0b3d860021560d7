"""DP training with known bugs: what the tests of `noisewise.debugging` are judged by."""

from noisewise.debugging.mutants import frozen as frozen
from noisewise.debugging.mutants import frozen_again as frozen_again
from noisewise.debugging.mutants import frozen_eighth as frozen_eighth
from noisewise.debugging.mutants import frozen_ninth as frozen_ninth
from noisewise.debugging.mutants import frozen_seventh as frozen_seventh
from noisewise.debugging.mutants import frozen_tenth as frozen_tenth
from noisewise.debugging.mutants import frozen_thrice as frozen_thrice
from noisewise.debugging.mutants import habits as habits
from noisewise.debugging.mutants import known as known
from noisewise.debugging.mutants import odd_tenth as odd_tenth
from noisewise.debugging.mutants import private_ninth as private_ninth
from noisewise.debugging.mutants import reported as reported
from noisewise.debugging.mutants.cases import Case, cases
from noisewise.debugging.mutants.catalogue import ROUNDS, Mutant, mutants
from noisewise.debugging.mutants.programs import PROGRAMS, Program
from noisewise.debugging.mutants.subjects import Subject, with_bug, with_variant
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
