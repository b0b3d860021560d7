"""``PrivateRegressor``: a number per row of a table, learnt with differential privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import nn

from noisewise.datasets import Look, Numeric, look_at_target
from noisewise.estimators.base import PrivateEstimator
from noisewise.estimators.network import Array
from noisewise.estimators.refusals import TableError

__all__ = ["PrivateRegressor"]


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regression whose training on private records costs a stated epsilon.

    Parameters
    ----------
    target_range : pair of float, optional
        Public range of y; targets and predictions outside are clamped to it. Without one that
        of the schema, else (-10, 10).
    epsilon, delta, schema, gradients, hidden_layer_sizes
        As of `PrivateClassifier`.
    steps, sample_rate, learning_rate, features, public_images
        As of `PrivateClassifier`.
    input_bound, random_state, ledger, preflight, verbose
        As of `PrivateClassifier`.

    Attributes
    ----------
    statement_ : Statement
        What the fit promises; `print` says it in words.
    weights_ : list of (matrix, bias)
        The noisy weights, layer by layer; they may be published.

    Examples
    --------
    >>> import numpy as np
    >>> from noisewise.estimators import PrivateRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(3000, 3))
    >>> y = 2 * X[:, 0] - X[:, 1]
    >>> model = PrivateRegressor(2.0, target_range=(-3, 3), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Any = None,
        target_range: Any = None,
        gradients: Any = "auto",
        hidden_layer_sizes: Any = "auto",
        steps: int = 150,
        sample_rate: float = 0.3,
        learning_rate: float | str = "auto",
        features: str | None = None,
        public_images: Any = "drawings",
        input_bound: float = 10.0,
        random_state: Any = None,
        ledger: Any = None,
        preflight: bool = True,
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.target_range = target_range
        self.gradients = gradients
        self.hidden_layer_sizes = hidden_layer_sizes
        self.steps = steps
        self.sample_rate = sample_rate
        self.learning_rate = learning_rate
        self.features = features
        self.public_images = public_images
        self.input_bound = input_bound
        self.random_state = random_state
        self.ledger = ledger
        self.preflight = preflight
        self.verbose = verbose

    def fit(self, X: Any, y: Any, units: Any = None) -> PrivateRegressor:
        """Learn from private records, once, within the budget.

        Parameters
        ----------
        X : array or DataFrame
        y : array of numbers
        units : sequence, optional
            Who each row belongs to, by identifiers of any hashable type: all rows of a unit (a
            patient's visits) are protected together. Default: the schema's `unit`; else each row
            is protected by itself.
        """
        self._learn(X, y, units)
        return self

    def _read(self, x: Any, y: Any) -> tuple[Array, Any, int, nn.Module, tuple[str, ...]]:
        x, y = self._check_table(x, y, reset=True)
        low, high, notes = self._range()
        self.target_range_ = (low, high)
        values = np.clip(np.asarray(y, dtype=np.float64), low, high)
        if values.ndim != 1:
            raise TableError(f"y must have one number per row, got shape {values.shape}")
        scaled = (2 * (values - low) / (high - low) - 1).astype(np.float32)
        self._prepare(x)
        target = torch.from_numpy(scaled).unsqueeze(1)
        return self._encode(x), target, 1, nn.HuberLoss(delta=0.5), notes

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        self._range()

    def _look_at_target(self, y: Any) -> Look:
        low, high = self.target_range_
        found = look_at_target(y, None, Numeric(low, high))
        schema = self._schema
        given = self.target_range is not None or (schema is not None and schema.target_range)
        if not given and (found.warnings or found.stops):
            found.warnings.clear()
            found.stops = [
                "no target_range was given, and many targets lie outside (-10, 10), which is "
                "taken then: say target_range=(lowest, highest) from public knowledge"
            ]
        return found

    def _default_rate(self, rows: int) -> float:
        # The loss is curved around its least value, unlike that of classes, so steps are shorter.
        return 0.1

    def _numeric_y(self) -> bool:
        return True

    def _range(self) -> tuple[float, float, tuple[str, ...]]:
        schema = self._schema
        if self.target_range is not None:
            low, high = (float(bound) for bound in self.target_range)
            note = f"Targets outside [{low:g}, {high:g}] were clamped."
        elif schema is not None and schema.target_range is not None:
            low, high = float(schema.target_range.low), float(schema.target_range.high)
            note = f"Targets outside the schema's range [{low:g}, {high:g}] were clamped."
        else:
            low, high = -10.0, 10.0
            note = "No range of the target was given; targets outside [-10, 10] were clamped."
        if not low < high or not np.isfinite([low, high]).all():
            raise ValueError(f"target_range must be an interval low < high, got ({low}, {high})")
        return low, high, (note,)

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the estimate of each row, within the public range."""
        scores = np.clip(self._scores(X)[:, 0].astype(np.float64), -1.0, 1.0)
        low, high = self.target_range_
        result: npt.NDArray[np.float64] = low + (scores + 1) * (high - low) / 2
        return result

    def __sklearn_tags__(self) -> Any:
        """Say that scores suffer from noise."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
