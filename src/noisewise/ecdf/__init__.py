"""Private evaluation curves: empirical distribution functions and what follows from them."""

from noisewise.ecdf.aggregation import Aggregator, LocalSum
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.curve import Band, PrivateECDF, Steps
from noisewise.ecdf.estimate import dp_ecdf
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms import Mechanism, Setting, plan
from noisewise.ecdf.smoothing import smooth_isotonic, smooth_tree

__all__ = [
    "Aggregator",
    "Band",
    "Budget",
    "Grid",
    "LocalSum",
    "Mechanism",
    "PrivateECDF",
    "Setting",
    "Steps",
    "dp_ecdf",
    "plan",
    "smooth_isotonic",
    "smooth_tree",
]
