"""What was done to the data: the private releases that an accountant adds up.

An event is one kind of release and how often it happened. A *history* is a
tuple of events; it is all that is needed to derive epsilon, so it is what a
ledger stores and what a statement carries.

Two conventions, one per kind, never mixed:

* :class:`PoissonGaussian` is a noisy *sum over records*. Its noise multiplier is
  the noise deviation divided by the largest norm of **one record's contribution**.
  Under replace-one the sum moves by up to twice that, and the event knows it.
  :class:`PoissonRows` is the same for a unit that has several of the rows that are summed.
* :class:`Gaussian` and :class:`Laplace` release *any function*. Their noise
  multiplier is the noise scale divided by the function's **sensitivity under the
  relation of the history**.
"""

from noisewise.privacy.events.base import EVENTS, Event, event_from_dict, register, with_count
from noisewise.privacy.events.gaussian import Gaussian, split_noise
from noisewise.privacy.events.history import (
    History,
    as_history,
    require_relation,
    simplify,
    total_variation,
)
from noisewise.privacy.events.laplace import Laplace
from noisewise.privacy.events.poisson_gaussian import PoissonGaussian
from noisewise.privacy.events.poisson_rows import PoissonRows
from noisewise.privacy.events.profile import Profile as Profile, profile_of as profile_of
from noisewise.privacy.events.pure import Pure
from noisewise.privacy.events.selection import Selection
from noisewise.privacy.events.zero_concentrated import ZeroConcentrated

__all__ = [
    "EVENTS",
    "Event",
    "Gaussian",
    "History",
    "Laplace",
    "PoissonGaussian",
    "PoissonRows",
    "Pure",
    "Selection",
    "ZeroConcentrated",
    "as_history",
    "event_from_dict",
    "register",
    "require_relation",
    "simplify",
    "split_noise",
    "total_variation",
    "with_count",
]
