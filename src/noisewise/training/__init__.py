"""Private training: a plan, a Poisson loader, a run around your loop, and a loop for those without.

The table of contents.
"""

from noisewise.privacy import TrialNumber
from noisewise.release import deviations
from noisewise.training.account import check_same_promise
from noisewise.training.averaging import Averaging, Ema, Polyak
from noisewise.training.callbacks import Callback, EarlyStopping, ProgressBar, TensorBoard
from noisewise.training.distributed import Distributed
from noisewise.training.errors import CheckpointError, StepError
from noisewise.training.evaluation import split_batch
from noisewise.training.fitting import Fitted, fit
from noisewise.training.loader import PrivateLoader
from noisewise.training.options import LoaderOptions, RunOptions
from noisewise.training.plan import ONE_RECORD, Plan
from noisewise.training.private import make_private
from noisewise.training.private_run import LossFunction, PrivateRun
from noisewise.training.records import MapRecords
from noisewise.training.resolved import ResolvedPlan, default_delta, noise_beside
from noisewise.training.selection import Candidate, Selected, select
from noisewise.training.several import SeveralOptimizers
from noisewise.training.shared_records import records_shared
from noisewise.training.stepping import EpochLoader, SteppingOptimizer
from noisewise.training.streamed import Streamed
from noisewise.training.streams import Streams
from noisewise.training.team import Solo, Team
from noisewise.training.units import UnitTable

__all__ = [
    "ONE_RECORD",
    "Averaging",
    "Callback",
    "Candidate",
    "CheckpointError",
    "Distributed",
    "EarlyStopping",
    "Ema",
    "EpochLoader",
    "Fitted",
    "LoaderOptions",
    "LossFunction",
    "MapRecords",
    "Plan",
    "Polyak",
    "PrivateLoader",
    "PrivateRun",
    "ProgressBar",
    "ResolvedPlan",
    "RunOptions",
    "Selected",
    "SeveralOptimizers",
    "Solo",
    "StepError",
    "SteppingOptimizer",
    "Streamed",
    "Streams",
    "Team",
    "TensorBoard",
    "TrialNumber",
    "UnitTable",
    "check_same_promise",
    "default_delta",
    "deviations",
    "fit",
    "make_private",
    "noise_beside",
    "records_shared",
    "select",
    "split_batch",
]
