"""Does a model know what it knows? Calibration, its diagrams, its repair, and private versions."""

from noisewise.analysis.calibration.diagrams import confidence_histogram, reliability_diagram
from noisewise.analysis.calibration.metrics import (
    Bins,
    Calibration,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    measure,
    negative_log_likelihood,
)
from noisewise.analysis.calibration.private import PrivateReliability, private_reliability
from noisewise.analysis.calibration.temperature import Temperature, fit_temperature

__all__ = [
    "Bins",
    "Calibration",
    "PrivateReliability",
    "Temperature",
    "brier_score",
    "classwise_calibration_error",
    "confidence_histogram",
    "expected_calibration_error",
    "fit_temperature",
    "maximum_calibration_error",
    "measure",
    "negative_log_likelihood",
    "private_reliability",
    "reliability_diagram",
]
