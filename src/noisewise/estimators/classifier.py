"""``PrivateClassifier``: classes of a table, learnt with differential privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from noisewise import checks
from noisewise.datasets import Look, look_at_target
from noisewise.estimators.base import LOSS_CLIP, PICTURE_CLIP, PrivateEstimator
from noisewise.estimators.calibration import (
    CLIPPED_SLOPE,
    Calibration,
    calibrate_scores,
    calibration_event,
    noisy_counts,
)
from noisewise.estimators.network import Array
from noisewise.estimators.refusals import TableError
from noisewise.nn.losses import CrossEntropy
from noisewise.privacy import Event, Statement
from noisewise.training import Streams

__all__ = ["PrivateClassifier"]

#: Rows times epsilon at which the learning rate is one.
_UNIT_RATE = 7000.0
#: Rows times epsilon from which the rate for pictures grows no more.
_PICTURE_ROOM = 120_000.0
#: What scores of weights within a limit are stretched by, for tables and for pictures.
_TEMPERATURE, _PICTURE_TEMPERATURE = 8.0, 64.0


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A classifier whose training on private records costs a stated epsilon.

    Parameters
    ----------
    epsilon : float
        The budget of one call of `fit`.
    delta : float or "auto"
        "auto" is 1/(10 n) rounded down to a power of ten.
    schema : Schema, dict, str, optional
        Public ranges and categories of the columns: a ``noisewise.datasets.Schema``, its
        columns as a dict, its JSON, or the name of a registered dataset. X then is a
        DataFrame. Without one, X holds numbers that were scaled by public constants.
    classes : sequence, optional
        The public classes. Without them those of the schema; without either those that occur
        in y are treated as public, and the statement says so.
    gradients : str or estimator
        How one record's influence is bounded: "auto" (flat clipping), one of the words for
        gradient rules such as "clipped", "factored" or "input-scaled", or a rule itself.
        "input-scaled" brings what it learns best with: a loss gradient of at most 0.3, scores
        stretched by a temperature, hidden layers that start as isometries, a rate that fits.
    hidden_layer_sizes : "auto", int or sequence of int
        "auto": 64 hidden units where rows times epsilon is at least 8000, none below.
    steps : int
        Steps of training.
    sample_rate : float
        Probability with which each record takes part in a step.
    learning_rate : float or "auto"
        Of gradient descent with momentum 0.9 on gradients of length at most one. "auto":
        (rows times epsilon / 7000) ** (2/3), between 0.25 and 4; 2 for pictures.
    features : {None, "auto", "scattering"}
        "auto": X holds pictures of any size, grey or coloured, with values 0 to 1 or whole numbers
        0 to 255; a linear model is learnt on their responses to patches of random drawings
        (:class:`noisewise.nn.PatchFeatures`), which are learnt once for each size.
        "scattering": X holds pictures; a linear model is learnt on their wavelet scattering.
    public_images : "drawings", array or None
        With "scattering": what the features are whitened by. "drawings" are random ellipses and
        boxes, made by a formula; an array holds pictures of the size of X that are public and
        are no private records; None leaves the features as they are.
    input_bound : float
        Without a schema: numbers beyond it are clamped.
    random_state : int, RandomState or None
        None draws secret noise. A number makes noise that anybody can draw again, so the
        guarantee holds only while it stays unknown; the statement says so. Fits that differ in
        records or settings draw different noise.
    calibration_share : float
        Part of epsilon for the noisy counts by which probabilities are calibrated; it is no
        addition to epsilon. 0 leaves probabilities as training makes them, which is too sure.
    ledger : path, Ledger or None
        Where every fit is charged before it begins, so that the fits of a cross-validation or a
        grid search add up; one that does not fit the budget raises BudgetExceededError before a
        record is read. A path at which there is no file becomes a ledger without a budget. Without
        a ledger the statement says how many further fits of this process it does not cover.
    preflight : bool
        Look at the records before anything is spent, warn of what may disappoint and refuse what
        can only waste the budget (one class, all cells clamped). The look is local and not
        private; nothing that was seen goes into the model or the statement.
    verbose : bool
        Show progress.
    tune : list of dict, dict, callable or Tuning, optional
        Settings of which the best is chosen privately, within the same epsilon: see
        :class:`~noisewise.estimators.Tuning`. Probabilities are not calibrated then.
    weight_limit : float
        With "input-scaled" and "propagated", whose bounds need it: the largest norm of every
        layer's weight, C in Barczewski and Ramon (2024).
    projection : {"singular-values", "clip", "fix", "bjorck"}
        How weights are brought back to it after every step. "fix" keeps all of them at the limit.
    normalise : float, optional
        Normalise the hidden values of every row by their own mean and deviation, but divide by no
        less than this number.

    Attributes
    ----------
    classes_ : array
    calibration_ : Calibration
        The curve by which scores became probabilities.
    statement_ : Statement
        What was promised: print it, or ``statement_.to_json()``.
    weights_ : list of (matrix, bias)
    best_params_, best_score_ : dict, float
        With `tune`: what was chosen, and its private score on records that were held back.

    Notes
    -----
    What privacy forbids: scaling or imputing by the data's own statistics before `fit` (do it
    by public constants), choosing settings by looking at private records, and publishing the
    score on private records without noise (see ``noisewise.ecdf``). `sample_weight` is not
    offered, because weights would change what one record may contribute.

    Examples
    --------
    >>> import numpy as np
    >>> from noisewise.estimators import PrivateClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(2000, 3))
    >>> y = X[:, 0] > 0
    >>> model = PrivateClassifier(epsilon=1.0, classes=[False, True], random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.statement_.epsilon <= 1.0
    True
    """

    _takes_recipe = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Any = None,
        classes: Any = None,
        gradients: Any = "auto",
        hidden_layer_sizes: Any = "auto",
        steps: int = 150,
        sample_rate: float = 0.3,
        learning_rate: float | str = "auto",
        features: str | None = None,
        public_images: Any = "drawings",
        input_bound: float = 10.0,
        calibration_share: float = 0.05,
        random_state: Any = None,
        ledger: Any = None,
        preflight: bool = True,
        verbose: bool = False,
        tune: Any = None,
        weight_limit: float = 1.0,
        projection: str = "singular-values",
        normalise: float | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.classes = classes
        self.gradients = gradients
        self.hidden_layer_sizes = hidden_layer_sizes
        self.steps = steps
        self.sample_rate = sample_rate
        self.learning_rate = learning_rate
        self.features = features
        self.public_images = public_images
        self.input_bound = input_bound
        self.calibration_share = calibration_share
        self.random_state = random_state
        self.ledger = ledger
        self.preflight = preflight
        self.verbose = verbose
        self.tune = tune
        self.weight_limit = weight_limit
        self.projection = projection
        self.normalise = normalise

    def fit(self, X: Any, y: Any, units: Any = None) -> PrivateClassifier:
        """Learn from private records, once, within the budget.

        Parameters
        ----------
        X : array or DataFrame
        y : array of class labels
        units : sequence, optional
            Who each row belongs to, by identifiers of any hashable type: all rows of a unit (a
            patient's visits) are protected together. Default: the schema's `unit`; else each row
            is protected by itself.
        """
        self._learn(X, y, units)
        return self

    def _read(self, x: Any, y: Any) -> tuple[Array, Any, int, nn.Module, tuple[str, ...]]:
        x, y = self._check_table(x, y, reset=True)
        schema = self._schema
        if schema is not None:
            y = schema.labels(y)
        check_classification_targets(y)
        labels = np.asarray(y)
        notes = self._find_classes(labels)
        codes = np.searchsorted(self.classes_, labels)
        known = np.clip(codes, 0, len(self.classes_) - 1)
        if len(labels) and not np.array_equal(self.classes_[known], labels):
            raise TableError(
                f"a label is not among the public classes {self.classes_.tolist()}. Declare its "
                "class, or leave such records out by a rule that looks at one record at a time."
            )
        if len(self.classes_) < 2:
            raise TableError("a classifier needs at least two classes, but there is one class")
        self._prepare(x)
        target = torch.from_numpy(known.astype(np.int64))
        return self._encode(x), target, len(self.classes_), self._loss(), notes

    def _loss(self) -> nn.Module:
        return CrossEntropy(self._temperature) if self._lipschitz_recipe else nn.CrossEntropyLoss()

    @property
    def _temperature(self) -> float:
        """By which scores of weights within a limit are stretched, at no cost in sensitivity."""
        if not self._lipschitz_recipe:
            return 1.0
        return _TEMPERATURE if self.features is None else _PICTURE_TEMPERATURE

    def _look_at_target(self, y: Any) -> Look:
        schema = self._schema
        labels = np.asarray(y) if schema is None else schema.labels(y)
        return look_at_target(labels, self.classes_.tolist())

    def _default_rate(self, rows: int) -> float:
        rate = self._plain_rate(rows)
        if not self._lipschitz_recipe:
            return rate
        # A score that is stretched moves faster by as much. The rates of clipped gradients are for
        # those of length one; the one for patches is for shorter ones already.
        return rate / self._temperature / (1.0 if self.features == "auto" else LOSS_CLIP)

    def _plain_rate(self, rows: int) -> float:
        if self.features == "auto":
            # Clipped gradients are divided by the clip; the less noise, the longer the steps.
            room = math.pow(rows * self.epsilon / _PICTURE_ROOM, 2 / 3)
            return 25.0 / PICTURE_CLIP * min(1.0, max(0.05, room))
        if self.features is not None:
            return 2.0
        # A clipped gradient has length at most one, so a rate serves data of any scale.
        wanted = math.pow(rows * self.epsilon / _UNIT_RATE, 2 / 3)
        return min(4.0, max(0.25, wanted))

    def _find_classes(self, labels: npt.NDArray[Any]) -> tuple[str, ...]:
        schema = self._schema
        declared = self.classes
        if declared is None and schema is not None and schema.classes is not None:
            declared = schema.classes
        if declared is not None:
            self.classes_ = np.unique(np.asarray(list(declared)))
            if len(self.classes_) < 2:
                raise TableError(
                    f"classes must be two or more public classes, got {list(declared)!r}"
                )
            return ()
        self.classes_ = np.unique(labels)
        return (
            "The set of classes was read from the labels and is treated as public; give classes=.",
        )

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        share = checks.finite("calibration_share", self.calibration_share)
        if not 0 <= share < 1:
            raise ValueError(f"calibration_share must be at least 0 and below 1, got {share!r}")

    @property
    def _calibration_epsilon(self) -> float:
        return self.epsilon * self.calibration_share

    @property
    def _calibrates(self) -> bool:
        return bool(self.calibration_share) and self.tune is None

    def _beside(self) -> tuple[Event, ...]:
        later = super()._beside()
        if not self._calibrates:
            return later
        return (calibration_event(self._calibration_epsilon), *later)

    def _finish(
        self, x: Array, target: Any, seed: int | None, bound_to: bytes, unit: str = "one record"
    ) -> tuple[Statement, ...]:
        if not self._calibrates:
            self.calibration_ = Calibration()
            return ()
        # The whole fit was charged before it began, this release with it.
        source = Streams(seed, "calibration", bound_to=bound_to).noise(0)
        scores = self._scores_of(x)
        counts = noisy_counts(
            scores,
            target.numpy(),
            self._calibration_epsilon,
            rng=source,
            account=self._release_account,
            run=self._run_name,
            unit=unit,
        )
        clips = self._gradients().measures in ("norm", "bound")
        self.calibration_ = calibrate_scores(
            counts.value,
            self._calibration_epsilon,
            len(self.classes_),
            Calibration(CLIPPED_SLOPE if clips else 1.0),
        )
        return (counts.statement,)

    def _calibrated(self, X: Any) -> npt.NDArray[np.float64]:
        scores = self._scores(X)
        return self.calibration_.calibrated(scores)

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return calibrated scores: a column per class, or a number per row for two classes."""
        scores = self._calibrated(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return calibrated probabilities, one column per class."""
        scores = self._calibrated(X)
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        result: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return result

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row."""
        scores = self._calibrated(X)
        labels: npt.NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; labels may be in any of the schema's words."""
        schema = self._schema
        labels = y if schema is None else schema.labels(y)
        found: float = super().score(X, labels, sample_weight)
        return found

    def __sklearn_tags__(self) -> Any:
        """Say that scores suffer from noise."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
