"""Lower bounds on epsilon from scores of canaries in and out of the data."""

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.bounds.direct import clopper_pearson, epsilon_from_rates
from noisewise.auditing.bounds.gaussian import gaussian
from noisewise.auditing.bounds.joint_beta import joint_beta
from noisewise.auditing.bounds.normal import looks_normal, normal_estimate
from noisewise.auditing.bounds.one_run import one_run, one_run_tradeoff

__all__ = [
    "Bound",
    "clopper_pearson",
    "epsilon_from_rates",
    "gaussian",
    "joint_beta",
    "looks_normal",
    "normal_estimate",
    "one_run",
    "one_run_tradeoff",
]
