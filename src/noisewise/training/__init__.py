"""Private training: a plan, a Poisson loader, a run around your loop, and a loop for those without.

The table of contents.
"""

from noisewise.privacy import TrialNumber
from noisewise.release import deviations
from noisewise.training.account import check_same_promise as check_same_promise
from noisewise.training.averaging import Averaging, Ema, Polyak
from noisewise.training.callbacks import Callback, EarlyStopping, ProgressBar, TensorBoard
from noisewise.training.distributed import Distributed
from noisewise.training.errors import CheckpointError, StepError
from noisewise.training.evaluation import split_batch as split_batch
from noisewise.training.fitting import Fitted, fit
from noisewise.training.loader import PrivateLoader
from noisewise.training.options import LoaderOptions as LoaderOptions, RunOptions as RunOptions
from noisewise.training.plan import ONE_RECORD as ONE_RECORD, Plan
from noisewise.training.private import make_private
from noisewise.training.private_run import LossFunction as LossFunction, PrivateRun
from noisewise.training.records import MapRecords as MapRecords
from noisewise.training.resolved import ResolvedPlan, default_delta, noise_beside as noise_beside
from noisewise.training.selection import Candidate, Selected, select
from noisewise.training.several import SeveralOptimizers
from noisewise.training.shared_records import records_shared as records_shared
from noisewise.training.stepping import (
    EpochLoader as EpochLoader,
    SteppingOptimizer as SteppingOptimizer,
)
from noisewise.training.streamed import Streamed
from noisewise.training.streams import Streams as Streams
from noisewise.training.team import Solo, Team
from noisewise.training.units import UnitTable as UnitTable

__all__ = [
    "Averaging",
    "Callback",
    "Candidate",
    "CheckpointError",
    "Distributed",
    "EarlyStopping",
    "Ema",
    "Fitted",
    "Plan",
    "Polyak",
    "PrivateLoader",
    "PrivateRun",
    "ProgressBar",
    "ResolvedPlan",
    "Selected",
    "SeveralOptimizers",
    "Solo",
    "StepError",
    "Streamed",
    "Team",
    "TensorBoard",
    "TrialNumber",
    "default_delta",
    "deviations",
    "fit",
    "make_private",
    "select",
]
