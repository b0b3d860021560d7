"""Find bugs in any DP training code, from the checkpoints that it returns.

``check(train, model_fn, loss_fn, example=(x, y))`` runs the tests of *Finding private bugs*
(Anonymous 2023) and eleven sharper ones on synthetic data and says, in a sentence each, what is
wrong.
"""

from noisewise.debugging.checking import TESTS, PrivacyBugError, assert_private, check
from noisewise.debugging.command import (
    CommandTraining as CommandTraining,
    load_object as load_object,
)
from noisewise.debugging.findings import VERDICTS, Finding, Findings, TestResult
from noisewise.debugging.guessing import guess_example as guess_example
from noisewise.debugging.replay import Claim
from noisewise.debugging.trainer import Data as Data, StateDict as StateDict, TrainingFailedError

__all__ = [
    "TESTS",
    "VERDICTS",
    "Claim",
    "Finding",
    "Findings",
    "PrivacyBugError",
    "TestResult",
    "TrainingFailedError",
    "assert_private",
    "check",
]
