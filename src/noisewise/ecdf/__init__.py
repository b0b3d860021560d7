"""Private evaluation curves: empirical distribution functions and what follows from them."""

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import (
    CalibrationCurve,
    PrivateCalibration,
    dp_calibration_curve,
    dp_expected_calibration_error,
    private_calibration,
)
from noisewise.ecdf.curve import Band, PrivateECDF, Steps
from noisewise.ecdf.estimate import dp_ecdf
from noisewise.ecdf.evaluation import Evaluation, private_evaluation
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.histogram_release import (
    Histogram,
    PrivateHistogram,
    dp_histogram,
    private_histogram,
)
from noisewise.ecdf.hosmer_lemeshow import HosmerLemeshow, dp_hosmer_lemeshow
from noisewise.ecdf.mechanisms import Mechanism, Setting, plan
from noisewise.ecdf.precision_recall import (
    DETCurve,
    PrecisionRecallCurve,
    dp_average_precision_score,
    dp_det_curve,
    dp_precision_recall_curve,
)
from noisewise.ecdf.prediction_errors import (
    PrivateConfusion,
    PrivateRegressionErrors,
    private_confusion,
    private_regression_errors,
)
from noisewise.ecdf.quantile_results import PrivateQuantile, PrivateQuantiles
from noisewise.ecdf.quantiles import dp_median, dp_quantile
from noisewise.ecdf.roc import PrivateROC, ROCCurve, dp_roc_auc_score, dp_roc_curve, private_roc
from noisewise.ecdf.smoothing import shrink_families, smooth_isotonic, smooth_tree
from noisewise.ecdf.sources import open_table
from noisewise.ecdf.streaming import StreamingCounter
from noisewise.release import Aggregator, StatedAggregator, Units

__all__ = [
    "Aggregator",
    "Band",
    "Budget",
    "CalibrationCurve",
    "DETCurve",
    "Evaluation",
    "Grid",
    "Histogram",
    "HosmerLemeshow",
    "Mechanism",
    "PrecisionRecallCurve",
    "PrivateCalibration",
    "PrivateConfusion",
    "PrivateECDF",
    "PrivateHistogram",
    "PrivateQuantile",
    "PrivateQuantiles",
    "PrivateROC",
    "PrivateRegressionErrors",
    "ROCCurve",
    "Setting",
    "StatedAggregator",
    "Steps",
    "StreamingCounter",
    "Units",
    "dp_average_precision_score",
    "dp_calibration_curve",
    "dp_det_curve",
    "dp_ecdf",
    "dp_expected_calibration_error",
    "dp_histogram",
    "dp_hosmer_lemeshow",
    "dp_median",
    "dp_precision_recall_curve",
    "dp_quantile",
    "dp_roc_auc_score",
    "dp_roc_curve",
    "open_table",
    "plan",
    "private_calibration",
    "private_confusion",
    "private_evaluation",
    "private_histogram",
    "private_regression_errors",
    "private_roc",
    "shrink_families",
    "smooth_isotonic",
    "smooth_tree",
]
