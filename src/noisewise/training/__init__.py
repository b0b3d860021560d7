"""Private training: a plan, a Poisson loader, a run around your loop, and a loop for those without.

The table of contents.
"""

from noisewise.privacy.trials import TrialNumber
from noisewise.release.allocation import deviations
from noisewise.training.averaging import Averaging, Ema, Polyak
from noisewise.training.callbacks import Callback, EarlyStopping, ProgressBar, TensorBoard
from noisewise.training.distributed import Distributed
from noisewise.training.errors import CheckpointError, StepError
from noisewise.training.fitting import Fitted, fit
from noisewise.training.loader import PrivateLoader
from noisewise.training.plan import Plan
from noisewise.training.private import make_private
from noisewise.training.private_run import PrivateRun
from noisewise.training.resolved import ResolvedPlan, default_delta
from noisewise.training.selection import Candidate, Selected, select
from noisewise.training.several import SeveralOptimizers
from noisewise.training.streamed import Streamed
from noisewise.training.team import Solo, Team

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
