"""Private evaluation curves: empirical distribution functions and what follows from them."""

from noisewise.ecdf.aggregation import Aggregator, Agreement, LocalSum, StatedAggregator
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import (
    PrivateCalibration,
    dp_calibration_curve,
    dp_expected_calibration_error,
    private_calibration,
)
from noisewise.ecdf.curve import Band, PrivateECDF, Steps
from noisewise.ecdf.estimate import dp_ecdf
from noisewise.ecdf.evaluation import Evaluation, private_evaluation
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.histogram_release import PrivateHistogram, dp_histogram, private_histogram
from noisewise.ecdf.hosmer_lemeshow import HosmerLemeshow, dp_hosmer_lemeshow
from noisewise.ecdf.mechanisms import Mechanism, Setting, plan
from noisewise.ecdf.precision_recall import (
    dp_average_precision_score,
    dp_det_curve,
    dp_precision_recall_curve,
)
from noisewise.ecdf.roc import PrivateROC, dp_roc_auc_score, dp_roc_curve, private_roc
from noisewise.ecdf.smoothing import shrink_families, smooth_isotonic, smooth_tree
from noisewise.ecdf.streaming import StreamingCounter

__all__ = [
    "Aggregator",
    "Agreement",
    "Band",
    "Budget",
    "Evaluation",
    "Grid",
    "HosmerLemeshow",
    "LocalSum",
    "Mechanism",
    "PrivateCalibration",
    "PrivateECDF",
    "PrivateHistogram",
    "PrivateROC",
    "Setting",
    "StatedAggregator",
    "Steps",
    "StreamingCounter",
    "dp_average_precision_score",
    "dp_calibration_curve",
    "dp_det_curve",
    "dp_ecdf",
    "dp_expected_calibration_error",
    "dp_histogram",
    "dp_hosmer_lemeshow",
    "dp_precision_recall_curve",
    "dp_roc_auc_score",
    "dp_roc_curve",
    "plan",
    "private_calibration",
    "private_evaluation",
    "private_histogram",
    "private_roc",
    "shrink_families",
    "smooth_isotonic",
    "smooth_tree",
]
