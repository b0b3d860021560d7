"""Private evaluation curves: empirical distribution functions and what follows from them."""

from noisewise.ecdf.budget import Budget, gaussian_delta as gaussian_delta
from noisewise.ecdf.calibration import (
    CalibrationCurve,
    PrivateCalibration,
    calibration_event as calibration_event,
    dp_calibration_curve,
    dp_expected_calibration_error,
    private_calibration,
    quantile_cuts as quantile_cuts,
)
from noisewise.ecdf.counting import PUBLIC_GRID as PUBLIC_GRID, account_of as account_of
from noisewise.ecdf.curve import Band, PrivateECDF, Steps
from noisewise.ecdf.estimate import (
    SMOOTHINGS as SMOOTHINGS,
    check_smoothing as check_smoothing,
    curve_mechanism as curve_mechanism,
    dp_ecdf,
    smooth_counts as smooth_counts,
)
from noisewise.ecdf.evaluation import CURVE_SHARE as CURVE_SHARE, Evaluation, private_evaluation
from noisewise.ecdf.grid import Grid, as_records as as_records
from noisewise.ecdf.group_sums import (
    PUBLIC_CUTS as PUBLIC_CUTS,
    SUM_UNIT as SUM_UNIT,
    GroupSums as GroupSums,
    bounded as bounded,
    checked_cuts as checked_cuts,
    group_mechanism as group_mechanism,
    group_of as group_of,
    to_units as to_units,
)
from noisewise.ecdf.histogram_release import (
    Histogram,
    PrivateHistogram,
    dp_histogram,
    private_histogram,
)
from noisewise.ecdf.hosmer_lemeshow import (
    HOSMER_LEMESHOW as HOSMER_LEMESHOW,
    HosmerLemeshow,
    curve_share_of as curve_share_of,
    dp_hosmer_lemeshow,
    groups_from_curve as groups_from_curve,
    groups_from_sums as groups_from_sums,
    judged as judged,
)
from noisewise.ecdf.labelled import as_labelled as as_labelled
from noisewise.ecdf.mechanisms import Mechanism, Setting, plan
from noisewise.ecdf.options import CountOptions as CountOptions, CurveOptions as CurveOptions
from noisewise.ecdf.precision_recall import (
    DETCurve,
    PrecisionRecallCurve,
    average_precision as average_precision,
    dp_average_precision_score,
    dp_det_curve,
    dp_precision_recall_curve,
    precision_recall as precision_recall,
)
from noisewise.ecdf.prediction_errors import (
    PrivateConfusion,
    PrivateRegressionErrors,
    confusion_event as confusion_event,
    private_confusion,
    private_regression_errors,
    regression_event as regression_event,
)
from noisewise.ecdf.quantile_results import (
    PrivateQuantile,
    PrivateQuantiles,
    asked_for as asked_for,
    read_from as read_from,
    searched as searched,
)
from noisewise.ecdf.quantiles import dp_median, dp_quantile
from noisewise.ecdf.roc import (
    PrivateROC,
    ROCCurve,
    dp_roc_auc_score,
    dp_roc_curve,
    private_roc,
    values_of_steps as values_of_steps,
)
from noisewise.ecdf.search import MOST_QUANTILES as MOST_QUANTILES, QuantileSearch as QuantileSearch
from noisewise.ecdf.smoothing import shrink_families, smooth_isotonic, smooth_tree
from noisewise.ecdf.sources import open_table
from noisewise.ecdf.streaming import StreamingCounter
from noisewise.ecdf.two_class import (
    TwoClassCounts as TwoClassCounts,
    TwoCurves as TwoCurves,
    smooth_both as smooth_both,
    two_curve_mechanism as two_curve_mechanism,
)
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
