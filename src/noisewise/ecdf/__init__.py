"""Private evaluation curves: empirical distribution functions and what follows from them."""

from noisewise.ecdf.budget import Budget, gaussian_delta
from noisewise.ecdf.calibration import (
    CalibrationCurve,
    PrivateCalibration,
    calibration_event,
    dp_calibration_curve,
    dp_expected_calibration_error,
    private_calibration,
    quantile_cuts,
)
from noisewise.ecdf.counting import PUBLIC_GRID, account_of
from noisewise.ecdf.curve import Band, PrivateECDF, Steps
from noisewise.ecdf.estimate import (
    SMOOTHINGS,
    check_smoothing,
    curve_mechanism,
    dp_ecdf,
    smooth_counts,
)
from noisewise.ecdf.evaluation import CURVE_SHARE, Evaluation, private_evaluation
from noisewise.ecdf.grid import Grid, as_records
from noisewise.ecdf.group_sums import (
    PUBLIC_CUTS,
    SUM_UNIT,
    GroupSums,
    bounded,
    checked_cuts,
    group_mechanism,
    group_of,
    to_units,
)
from noisewise.ecdf.histogram_release import (
    Histogram,
    PrivateHistogram,
    dp_histogram,
    private_histogram,
)
from noisewise.ecdf.hosmer_lemeshow import (
    HOSMER_LEMESHOW,
    HosmerLemeshow,
    curve_share_of,
    dp_hosmer_lemeshow,
    groups_from_curve,
    groups_from_sums,
    judged,
)
from noisewise.ecdf.labelled import as_labelled
from noisewise.ecdf.mechanisms import Mechanism, Setting, plan
from noisewise.ecdf.options import CountOptions, CurveOptions
from noisewise.ecdf.precision_recall import (
    DETCurve,
    PrecisionRecallCurve,
    average_precision,
    dp_average_precision_score,
    dp_det_curve,
    dp_precision_recall_curve,
    precision_recall,
)
from noisewise.ecdf.prediction_errors import (
    PrivateConfusion,
    PrivateRegressionErrors,
    confusion_event,
    private_confusion,
    private_regression_errors,
    regression_event,
)
from noisewise.ecdf.quantile_results import PrivateQuantile, PrivateQuantiles
from noisewise.ecdf.quantiles import dp_median, dp_quantile
from noisewise.ecdf.roc import (
    PrivateROC,
    ROCCurve,
    dp_roc_auc_score,
    dp_roc_curve,
    private_roc,
    values_of_steps,
)
from noisewise.ecdf.search import MOST_QUANTILES, QuantileSearch
from noisewise.ecdf.smoothing import shrink_families, smooth_isotonic, smooth_tree
from noisewise.ecdf.sources import open_table
from noisewise.ecdf.streaming import StreamingCounter
from noisewise.ecdf.two_class import TwoClassCounts, TwoCurves, smooth_both, two_curve_mechanism
from noisewise.release import Aggregator, StatedAggregator, Units

__all__ = [
    "CURVE_SHARE",
    "HOSMER_LEMESHOW",
    "MOST_QUANTILES",
    "PUBLIC_CUTS",
    "PUBLIC_GRID",
    "SMOOTHINGS",
    "SUM_UNIT",
    "Aggregator",
    "Band",
    "Budget",
    "CalibrationCurve",
    "CountOptions",
    "CurveOptions",
    "DETCurve",
    "Evaluation",
    "Grid",
    "GroupSums",
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
    "QuantileSearch",
    "ROCCurve",
    "Setting",
    "StatedAggregator",
    "Steps",
    "StreamingCounter",
    "TwoClassCounts",
    "TwoCurves",
    "Units",
    "account_of",
    "as_labelled",
    "as_records",
    "average_precision",
    "bounded",
    "calibration_event",
    "check_smoothing",
    "checked_cuts",
    "confusion_event",
    "curve_mechanism",
    "curve_share_of",
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
    "gaussian_delta",
    "group_mechanism",
    "group_of",
    "groups_from_curve",
    "groups_from_sums",
    "judged",
    "open_table",
    "plan",
    "precision_recall",
    "private_calibration",
    "private_confusion",
    "private_evaluation",
    "private_histogram",
    "private_regression_errors",
    "private_roc",
    "quantile_cuts",
    "regression_event",
    "shrink_families",
    "smooth_both",
    "smooth_counts",
    "smooth_isotonic",
    "smooth_tree",
    "to_units",
    "two_curve_mechanism",
    "values_of_steps",
]
