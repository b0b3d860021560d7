"""scikit-learn estimators that learn from private tables: ``fit(X, y)`` at a stated epsilon."""

from noisewise.estimators.classifier import PrivateClassifier
from noisewise.estimators.persistence import load_estimator, save_estimator
from noisewise.estimators.regressor import PrivateRegressor
from noisewise.estimators.tuning import Tuning

__all__ = ["PrivateClassifier", "PrivateRegressor", "Tuning", "load_estimator", "save_estimator"]
