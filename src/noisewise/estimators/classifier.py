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

from noisewise.estimators.base import PrivateEstimator
from noisewise.estimators.network import Array
from noisewise.estimators.refusals import TableError

__all__ = ["PrivateClassifier"]

#: Rows times epsilon at which the learning rate is one.
_UNIT_RATE = 7000.0


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
    gradients : {"auto", "clipped", "factored"} or estimator
        How one record's influence is bounded.
    hidden_layer_sizes : "auto", int or sequence of int
        "auto": 64 hidden units where rows times epsilon is at least 8000, none below.
    steps : int
        Steps of training.
    sample_rate : float
        Probability with which each record takes part in a step.
    learning_rate : float or "auto"
        Of gradient descent with momentum 0.9 on gradients of length at most one. "auto":
        (rows times epsilon / 7000) ** (2/3), between 0.25 and 4; 2 for pictures.
    features : {None, "scattering"}
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
    ledger : path, Ledger or None
        Where every fit is charged before it begins, so that the fits of a cross-validation or a
        grid search add up; one that does not fit the budget raises BudgetExceededError before a
        record is read. A path at which there is no file becomes a ledger without a budget. Without
        a ledger the statement says how many further fits of this process it does not cover.
    verbose : bool
        Show progress.

    Attributes
    ----------
    classes_ : array
    statement_ : Statement
        What was promised: print it, or ``statement_.to_json()``.
    weights_ : list of (matrix, bias)

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
        random_state: Any = None,
        ledger: Any = None,
        verbose: bool = False,
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
        self.random_state = random_state
        self.ledger = ledger
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Learn from private records, once, within the budget.

        Parameters
        ----------
        X : array or DataFrame
        y : array of class labels
        """
        self._learn(X, y)
        return self

    def _read(self, x: Any, y: Any) -> tuple[Array, Any, int, nn.Module, tuple[str, ...]]:
        x, y = self._check_table(x, y, reset=True)
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
        return self._encode(x), target, len(self.classes_), nn.CrossEntropyLoss(), notes

    def _default_rate(self, rows: int) -> float:
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
            return ()
        self.classes_ = np.unique(labels)
        return (
            "The set of classes was read from the labels and is treated as public; give classes=.",
        )

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return scores: one column per class, or one number per row for two classes."""
        scores = self._scores(X).astype(np.float64)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return probabilities, one column per class."""
        scores = self._scores(X).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        result: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return result

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row."""
        scores = self._scores(X)
        labels: npt.NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return labels

    def __sklearn_tags__(self) -> Any:
        """Say that scores suffer from noise."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
