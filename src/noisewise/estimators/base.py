"""What the classifier and the regressor share: parameters, encoding, the private training.

One setting serves all tables; it depends on public numbers alone (rows and epsilon).
The weights that are kept are an average over the second half of training, which is free
post-processing and takes away much of the noise.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from noisewise.datasets import Schema
from noisewise.estimators.encoding import Clamped, Declared, Scattered, resolve_schema
from noisewise.estimators.fits import FitAccount, note_fit, open_fit_account
from noisewise.estimators.network import (
    Array,
    apply_network,
    build_bounded_network,
    build_network,
    weights_of,
)
from noisewise.estimators.pictures import PictureFeatures
from noisewise.estimators.refusals import TableError, TableTypeError, readable
from noisewise.gradients import Clipped, Estimator, Factored, InputScaled, Propagated
from noisewise.privacy import Ledger, LedgerHead, _validate
from noisewise.training import Plan, fit
from noisewise.training.averaging import Polyak
from noisewise.training.records import TensorRecords

__all__ = ["GRADIENTS", "PrivateEstimator"]

#: Words for estimators.
GRADIENTS: dict[str, Estimator] = {
    "auto": Clipped(1.0),
    "clipped": Clipped(1.0),
    "layerwise": Clipped(1.0, per="layer"),
    "automatic": Clipped(1.0, rule="automatic"),
    "factored": Factored(1.0),
    "input-scaled": InputScaled(),
    "propagated": Propagated(),
}

#: Rows times epsilon from which a hidden layer is worth the noise of its weights, and its width.
_ENOUGH = 8000.0
_WIDTH = 64


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the private estimators; not to be used by itself."""

    epsilon: float
    delta: float | str
    schema: Any
    gradients: Any
    hidden_layer_sizes: Any
    steps: int
    sample_rate: float
    learning_rate: float | str
    features: str | None
    public_images: Any
    input_bound: float
    random_state: Any
    ledger: Any
    verbose: bool
    #: What the command line adds to the call of ``fit``, given inputs and targets.
    _more_options: Callable[[Any, Any], dict[str, Any]] | None = None
    #: The ledger of the last fit, and where it stood then.
    _charged: tuple[str, LedgerHead] | None = None

    # -- parameters ---------------------------------------------------------------------

    def _validate_parameters(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        if self.delta != "auto":
            _validate.fraction("delta", self.delta)
        _validate.integer("steps", self.steps, minimum=1)
        _validate.probability("sample_rate", self.sample_rate)
        if self.learning_rate != "auto":
            _validate.positive("learning_rate", self.learning_rate)
        _validate.positive("input_bound", self.input_bound)
        resolve_schema(self.schema)
        if self.features not in (None, "scattering"):
            raise ValueError(f"features must be None or 'scattering', got {self.features!r}")
        if isinstance(self.public_images, str) and self.public_images != "drawings":
            raise ValueError(
                "public_images must be 'drawings', None or an array of pictures, got "
                f"{self.public_images!r}"
            )
        if not isinstance(self.ledger, (str, os.PathLike, Ledger, type(None))):
            raise TypeError(
                "ledger must be a path or a noisewise.privacy.Ledger, got "
                f"{type(self.ledger).__name__}"
            )
        if self.features is not None and self.schema is not None:
            raise ValueError("pictures have no schema: give either features or schema")
        if not isinstance(self.gradients, (str, Estimator)) or (
            isinstance(self.gradients, str)
            and self.gradients not in ("auto", "clipped", "factored")
        ):
            raise ValueError(
                "gradients must be 'auto', 'clipped', 'factored' or an estimator such as "
                f"noisewise.Clipped(1.0), got {self.gradients!r}"
            )

    def _hidden(self, rows: int) -> tuple[int, ...]:
        if isinstance(self.hidden_layer_sizes, str):
            _validate.choice("hidden_layer_sizes", self.hidden_layer_sizes, ("auto",))
            if self.features is not None or rows * self.epsilon < _ENOUGH:
                return ()
            return (_WIDTH,)
        sizes: Sequence[int] = (
            [self.hidden_layer_sizes]
            if isinstance(self.hidden_layer_sizes, int)
            else self.hidden_layer_sizes
        )
        return tuple(_validate.integer("hidden_layer_sizes", size, minimum=1) for size in sizes)

    def _rate(self, rows: int) -> float:
        """Return the learning rate; the less noise, the longer the steps that pay."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return self._default_rate(rows)

    def _default_rate(self, rows: int) -> float:
        raise NotImplementedError

    def _gradients(self) -> Estimator:
        if isinstance(self.gradients, str):
            return GRADIENTS[self.gradients]
        chosen: Estimator = self.gradients
        return chosen

    def _network(self, x: Array, outputs: int, seed: int) -> nn.Sequential:
        """Return the network; with bounded layers for estimators that propagate bounds."""
        hidden = self._hidden(len(x))
        if self._gradients().measures in ("norm", "bound"):
            return build_network(x.shape[1], hidden, outputs, seed)
        schema = self._schema
        # Rows obey this bound already, so that it changes none of them.
        bound = schema.norm_bound if schema is not None else self._row_bound(x.shape[1])
        return build_bounded_network(x.shape[1], hidden, outputs, seed, 1.001 * bound)

    def _row_bound(self, width: int) -> float:
        if self.features is not None:
            return self.pictures_.norm_bound
        return math.sqrt(width) * self.input_bound

    def _seed(self) -> int | None:
        """None for secret noise; a fixed number only if the user asked for one."""
        if self.random_state is None:
            return None
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        return _validate.integer("random_state", self.random_state)

    # -- input --------------------------------------------------------------------------

    def _check_table(self, x: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        """Check shapes and types by scikit-learn's rules."""
        if self._schema is not None:
            if not hasattr(x, "columns"):
                raise TableTypeError(
                    "with a schema X must be a pandas DataFrame, because columns are found by name"
                )
            if reset:
                self.n_features_in_ = x.shape[1]
                self.feature_names_in_ = np.asarray(x.columns, dtype=object)
                if y is None:
                    raise TableError("fit requires y to be passed, but the target y is None")
                if len(x) != len(y):
                    raise TableError(f"X has {len(x)} rows, but y has {len(y)}")
            return x, y
        several = self.features is not None
        if not reset:
            return validate_data(self, x, reset=reset, dtype="numeric", allow_nd=several), None
        checked: tuple[Any, Any] = validate_data(
            self, x, y, reset=reset, dtype="numeric", allow_nd=several, y_numeric=self._numeric_y()
        )
        return checked

    def _numeric_y(self) -> bool:
        return False

    def _encode(self, x: Any) -> Array:
        if self._schema is not None:
            matrix, _ = self._schema.encode(x, extra="ignore")
            return matrix
        if self.features is not None:
            return self.pictures_.transform(x)
        return Clamped(self.input_bound).encode(np.asarray(x))

    @property
    def _schema(self) -> Schema | None:
        return resolve_schema(self.schema)

    def _promises(self, notes: tuple[str, ...]) -> Clamped | Declared | Scattered:
        if isinstance(self.hidden_layer_sizes, str) or self.learning_rate == "auto":
            notes += (
                "Hidden layers and learning rate follow from epsilon and the number of records, "
                "which is treated as public.",
            )
        schema = self._schema
        if self.features is not None:
            kind = self.public_images if isinstance(self.public_images, str) else "given"
            return Scattered("none" if self.public_images is None else kind, notes)
        if schema is not None:
            return Declared(schema, notes)
        return Clamped(self.input_bound, notes)

    # -- training -----------------------------------------------------------------------

    def _plan(self) -> Plan:
        return Plan(
            gradients=self._gradients(),
            epsilon=self.epsilon,
            delta=None if self.delta == "auto" else float(self.delta),
            steps=self.steps,
            sample_rate=self.sample_rate,
            sampling="poisson" if self.sample_rate < 1 else "full",
        )

    def _account(self, x: Any) -> FitAccount | None:
        """Open the ledger, and refuse a fit that does not fit; of x only the rows are counted."""
        if self.ledger is None:
            return None
        resolved = self._plan().resolve(
            readable(lambda: x.shape[0] if hasattr(x, "shape") else len(x))
        )
        account = open_fit_account(self.ledger, type(self).__name__, resolved)
        try:
            if self._charged is not None and self._charged[0] == account.place:
                account.require(self._charged[1])
            account.require_room(resolved)
        except BaseException:
            account.close()
            raise
        return account

    def _learn(self, x: Any, y: Any) -> None:
        """Fit, with or without a ledger; exceptions show no value of a record."""
        self._validate_parameters()
        account = self._account(x)
        try:
            self._train(*readable(lambda: self._read(x, y)), account)
        finally:
            if account is not None:
                self._charged = account.place, account.head
                account.close()

    def _read(self, x: Any, y: Any) -> tuple[Array, Any, int, nn.Module, tuple[str, ...]]:
        """Return inputs, targets, number of outputs, loss and notes for the statement."""
        raise NotImplementedError

    def _train(
        self,
        x: Array,
        target: Any,
        outputs: int,
        loss: nn.Module,
        notes: tuple[str, ...],
        account: FitAccount | None,
    ) -> None:
        self._promises(notes).require_sound()
        seed = self._seed()
        start = 0 if seed is None else seed % (2**31)
        network = self._network(x, outputs, start)
        rate = self._rate(len(x))
        inputs = torch.from_numpy(np.ascontiguousarray(x))
        plan = self._plan()
        bound_to = b""
        if seed is not None:
            plan = plan.with_(seed=seed)
            bound_to = _digest(plan, rate, network, inputs, target)
        said = (
            note_fit(TensorRecords((inputs, target)))
            if account is None
            else account.charge(plan.resolve(len(x)))
        )
        promises = self._promises((*notes, said))
        more = {} if self._more_options is None else self._more_options(inputs, target)
        fitted = fit(
            network,
            (inputs, target),
            plan,
            loss=loss,
            optimizer=lambda p: torch.optim.SGD(p, lr=rate, momentum=0.9),
            averaging=Polyak(start=0.5),
            preprocessing=promises,
            progress=bool(self.verbose),
            metrics=False,
            bound_to=bound_to,
            **more,
        )
        self.weights_ = weights_of(fitted.model)
        self._epochs = fitted.epochs
        self.statement_ = fitted.statement()
        self.n_iter_ = fitted.run.steps_taken

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per epoch of the last fit; its epsilons are accounted when this is read."""
        check_is_fitted(self, "weights_")
        return self._epochs.read() if hasattr(self, "_epochs") else []

    def _prepare(self, x: Any) -> None:
        if self.features is not None:
            pictures = PictureFeatures.of(np.asarray(x))
            self.pictures_ = pictures.whitened_by(self.public_images)

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self, "weights_")
        return apply_network(
            self.weights_,
            readable(lambda: self._encode(self._check_table(x, None, reset=False)[0])),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


def _digest(
    plan: Plan, rate: float, network: nn.Module, inputs: torch.Tensor, target: Any
) -> bytes:
    """Return a digest of these records and settings, to which the noise of a seeded fit is bound.

    One random_state serves many fits, as in cross-validation. If two of them that differ drew the
    same noise, their difference would show records without any. So the same fit again draws the
    same noise, and every other one draws its own. The digest itself would let everybody test
    guesses of a record; it goes into the generators and nowhere else.
    """
    total = hashlib.blake2b(f"{plan.to_json()} {rate} {network}".encode(), digest_size=32)
    for tensor in (inputs, target):
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().numpy().data)
    return total.digest()
