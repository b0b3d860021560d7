"""scikit-learn estimators that learn from private tables: ``fit(X, y)`` at a stated epsilon."""

from noisewise.estimators.classifier import PrivateClassifier
from noisewise.estimators.fits import open_fit_account as open_fit_account
from noisewise.estimators.network import (
    apply_network as apply_network,
    build_network as build_network,
    weights_of as weights_of,
)
from noisewise.estimators.persistence import load_estimator, save_estimator
from noisewise.estimators.regressor import PrivateRegressor
from noisewise.estimators.tuning import Tuning

__all__ = ["PrivateClassifier", "PrivateRegressor", "Tuning", "load_estimator", "save_estimator"]
