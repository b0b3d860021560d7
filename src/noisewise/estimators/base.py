"""What the classifier and the regressor share: parameters, encoding, the private training.

One setting serves all tables; it depends on public numbers alone (rows and epsilon).
The weights that are kept are an average over the second half of training, which is free
post-processing and takes away much of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from noisewise import checks
from noisewise.datasets import (
    LOOKED,
    Look,
    Schema,
    look_at_budget,
    look_at_columns,
    look_at_names,
    look_at_numbers,
    look_at_rows,
)
from noisewise.estimators import tuning
from noisewise.estimators.checking import check_settings
from noisewise.estimators.encoding import Clamped, Declared, Scattered, resolve_schema
from noisewise.estimators.fits import (
    FitAccount,
    digest_of_fit,
    note_fit,
    one_fit_at_a_time,
    open_fit_account,
)
from noisewise.estimators.network import (
    Array,
    apply_network,
    build_bounded_network,
    build_network,
    weights_of,
)
from noisewise.estimators.pictures import PictureFeatures
from noisewise.estimators.refusals import TableError, TableTypeError, readable, require_table
from noisewise.estimators.unit_rows import one_row_each, read_units, rows_of
from noisewise.gradients import Clipped, Estimator, InputScaled, rule_named
from noisewise.privacy import Event, LedgerHead, Statement
from noisewise.release import UNIT_NAME, Account, SealedAccount, compose, digest_of, name_of_unit
from noisewise.training import ONE_RECORD, Plan, Polyak, UnitTable, fit, noise_beside
from noisewise.working import working

__all__ = ["PrivateEstimator"]

#: Rows times epsilon from which a hidden layer is worth the noise of its weights, and its width.
_ENOUGH = 8000.0
_WIDTH = 64
#: Of the gradient of a linear model on features of length one, of at most the root of two.
PICTURE_CLIP = 0.3
#: Of the loss's gradient with Lipschitz networks: without it noise is made for the root of two.
LOSS_CLIP = 0.3


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
    preflight: bool
    verbose: bool
    tune: Any = None
    weight_limit: float = 1.0
    projection: str = "singular-values"
    normalise: float | None = None
    #: Whether "input-scaled" stands for all that makes Lipschitz networks learn.
    _takes_recipe: bool = False
    pictures_: PictureFeatures
    weights_: list[tuple[Array, Array]]
    statement_: Statement
    best_params_: dict[str, Any]
    best_score_: float
    n_iter_: int
    #: What the command line adds to the call of ``fit``, given inputs and targets.
    _more_options: Callable[[Any, Any], dict[str, Any]] | None = None
    #: What the command line releases beside a fit, from the same budget; the account of a run that
    #: charges step by step, and its name there.
    _released_later: tuple[Event, ...] = ()
    _release_account: Account | None = None
    _run_name: str = ""
    _unit_name: str = ""
    #: The ledger of the last fit, and where it stood then.
    _charged: tuple[str, LedgerHead] | None = None

    # -- parameters ---------------------------------------------------------------------

    def _validate_parameters(self) -> None:
        check_settings(self)

    def _hidden(self, rows: int) -> tuple[int, ...]:
        if isinstance(self.hidden_layer_sizes, str):
            checks.choice("hidden_layer_sizes", self.hidden_layer_sizes, ("auto",))
            if self.features is not None or rows * self.epsilon < _ENOUGH:
                return ()
            return (_WIDTH,)
        sizes: Sequence[int] = (
            [self.hidden_layer_sizes]
            if isinstance(self.hidden_layer_sizes, int)
            else self.hidden_layer_sizes
        )
        return tuple(checks.integer("hidden_layer_sizes", size, minimum=1) for size in sizes)

    def _rate(self, rows: int) -> float:
        """Return the learning rate; the less noise, the longer the steps that pay."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return self._default_rate(rows)

    def _default_rate(self, rows: int) -> float:
        raise NotImplementedError

    def _gradients(self) -> Estimator:
        if self.gradients == "auto" and self.features == "auto":
            return Clipped(PICTURE_CLIP)
        named = isinstance(self.gradients, str)
        word = "clipped" if self.gradients == "auto" else self.gradients
        chosen: Estimator = rule_named(word) if named else self.gradients
        return InputScaled(loss_clip=LOSS_CLIP) if self._lipschitz_recipe else chosen

    @property
    def _lipschitz_recipe(self) -> bool:
        """Whether the word stands for all that makes it learn; a rule is taken as it is."""
        word = self.gradients if isinstance(self.gradients, str) else None
        return self._takes_recipe and word == "input-scaled"

    def _network(
        self, x: Array, outputs: int, seed: int, count: int | None = None
    ) -> nn.Sequential:
        """Return the network; with bounded layers for estimators that propagate bounds."""
        hidden = self._hidden(len(x) if count is None else count)
        if self._gradients().measures in ("norm", "bound"):
            # Features of length one leave no room for a bias beside them.
            bias = self.features != "auto"
            return build_network(x.shape[1], hidden, outputs, seed, bias=bias, alpha=self.normalise)
        schema = self._schema
        # Rows obey this bound already, so that it changes none of them.
        bound = schema.norm_bound if schema is not None else self._row_bound(x.shape[1])
        return build_bounded_network(
            x.shape[1],
            hidden,
            outputs,
            seed,
            1.001 * bound,
            limit=self.weight_limit,
            projection=self.projection,
            alpha=self.normalise,
            isometric=self._lipschitz_recipe,
        )

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
        return checks.integer("random_state", self.random_state)

    # -- input --------------------------------------------------------------------------

    def _check_table(self, x: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        """Check shapes and types by scikit-learn's rules."""
        require_table(x, y, numbers=self._schema is None)
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
        if self.preflight:
            notes += (LOOKED,)
        schema = self._schema
        if self.features is not None:
            given = "none" if self.public_images is None else "given"
            kind = self.public_images if isinstance(self.public_images, str) else given
            return Scattered(kind, notes, self.features)
        if schema is not None:
            return Declared(schema, notes)
        return Clamped(self.input_bound, notes)

    # -- training -----------------------------------------------------------------------

    def _plan(self, rows: int, unit: str = ONE_RECORD) -> Plan:
        plan = Plan(
            unit=unit,
            gradients=self._gradients(),
            epsilon=self.epsilon,
            delta=None if self.delta == "auto" else float(self.delta),
            steps=self.steps,
            sample_rate=self.sample_rate,
            sampling="poisson" if self.sample_rate < 1 else "full",
        )
        if not (beside := self._beside()):
            return plan
        fixed = plan.with_(epsilon=None, noise_multiplier=1.0).resolve(rows)
        steps, rate = fixed.steps, fixed.sample_rate
        noise = noise_beside(
            beside, self.epsilon, fixed.delta, steps, rate, plan.accountant, plan.relation
        )
        return plan.with_(epsilon=None, noise_multiplier=noise)

    def _unit(self, called: str | None) -> str:
        """What is protected: a record, or a unit as it is called, there or in the ledger."""
        if called is None:
            return ONE_RECORD
        said = "" if called == UNIT_NAME else called
        return self._unit_name or said or name_of_unit(self.ledger)

    def _beside(self) -> tuple[Event, ...]:
        """What is released of the records beside the steps of training, from the same budget."""
        return self._released_later

    def _account(self, x: Any, table: UnitTable | None) -> FitAccount | None:
        """Open the ledger, and refuse a fit that does not fit; of x only the rows are counted."""
        if self.ledger is None:
            return None
        rows = len(table) if table is not None else readable(lambda: rows_of(x))
        several = table is not None
        resolved = self._plan(rows, self._unit(_name_of(table))).resolve(rows, of_units=several)
        account = open_fit_account(self.ledger, type(self).__name__, resolved, self._beside())
        try:
            if self._charged is not None and self._charged[0] == account.place:
                account.require(self._charged[1])
            account.require_room(resolved)
        except BaseException:
            account.close()
            raise
        return account

    def _learn(self, x: Any, y: Any, units: Any = None) -> None:
        """Fit, with or without a ledger; exceptions show no value of a record."""
        self._validate_parameters()
        with one_fit_at_a_time():
            self._learn_alone(x, y, units)

    def _learn_alone(self, x: Any, y: Any, units: Any) -> None:
        table = read_units(self._schema, x, units)
        if self.tune is not None:
            tuning.fit_tuned(self, *self._looked_at(x, y, table), table)
            return
        account = self._account(x, table)
        try:
            self._train(*self._looked_at(x, y, table), table, account)
        finally:
            if account is not None:
                self._charged = account.place, account.head
                account.close()

    def _looked_at(
        self, x: Any, y: Any, table: UnitTable | None = None
    ) -> tuple[Array, Any, int, nn.Module, tuple[str, ...]]:
        with working("encoding the records", quiet=not self.verbose):
            read = readable(lambda: self._read(x, y))
        if self.preflight:
            readable(lambda: self._preflight(x, y, table))
        return read

    def _preflight(self, x: Any, y: Any, table: UnitTable | None = None) -> None:
        """Look at the records before they cost anything; what is seen stays here."""
        schema = self._schema
        found = Look([f"{len(y):,} rows"])
        if schema is not None:
            found += look_at_rows(x, schema, table is not None) + look_at_columns(x, schema)
        elif self.features is None:
            found += look_at_numbers(np.asarray(x), self.input_bound)
            found += Look() if table is not None else look_at_names(x)
        few = (len(y), "rows") if table is None else (len(table), "units")
        delta = 0.0 if self.delta == "auto" else float(self.delta)
        if schema is None and np.ndim(y) == 2:  # a column, as it was read
            y = np.ravel(y)
        found += self._look_at_target(y) + look_at_budget(few[0], self.epsilon, delta, few[1])
        found.tell(self.verbose)

    def _look_at_target(self, y: Any) -> Look:
        raise NotImplementedError

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
        table: UnitTable | None,
        account: FitAccount | None,
    ) -> None:
        self._promises(notes).require_sound()
        seed = self._seed()
        start = 0 if seed is None else seed % (2**31)
        count = len(x) if table is None else len(table)
        network = self._network(x, outputs, start, count)
        rate = self._rate(count)
        inputs = torch.from_numpy(np.ascontiguousarray(x))
        plan = self._plan(count, self._unit(_name_of(table)))
        bound_to = b""
        if seed is not None:
            plan = plan.with_(seed=seed)
            tensors = (inputs, target) if table is None else (inputs, target, table.codes)
            # The recipe's loss and start are not seen in plan and network.
            settings = (network, "recipe", loss) if self._lipschitz_recipe else network
            bound_to = digest_of_fit(plan, rate, settings, *tensors)
        if account is None:
            said = note_fit(self._run_name)
        else:
            said = account.charge(plan.resolve(count, of_units=table is not None))
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
            units=table,
            **more,
        )
        self.weights_ = weights_of(fitted.model)
        self._epochs = fitted.epochs
        if isinstance(self._release_account, SealedAccount):
            layers = (array for layer in self.weights_ for array in layer)
            self._release_account.begin(digest_of(dict(enumerate(layers))))
        x, target = one_row_each(table, seed, bound_to, x, target)
        unit = fitted.run.plan.unit
        more_said = self._finish(x, target, seed, bound_to, unit)
        self.statement_ = compose([fitted.statement(), *more_said], fitted.run.resolved.delta)
        self.n_iter_ = fitted.run.steps_taken

    def _finish(
        self, x: Array, target: Any, seed: int | None, bound_to: bytes, unit: str = "one record"
    ) -> tuple[Statement, ...]:
        """Release what was paid for beside training; return its statements."""
        return ()

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per epoch of the last fit; its epsilons are accounted when this is read."""
        check_is_fitted(self, "weights_")
        return self._epochs.read() if hasattr(self, "_epochs") else []

    def _prepare(self, x: Any) -> None:
        if self.features == "auto":
            self.pictures_ = PictureFeatures.patches(np.asarray(x))
        elif self.features is not None:
            self.pictures_ = PictureFeatures.of(np.asarray(x)).whitened_by(self.public_images)

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self, "weights_")
        rows = readable(lambda: self._encode(self._check_table(x, None, reset=False)[0]))
        return self._scores_of(rows)

    def _scores_of(self, rows: Array) -> Array:
        scores: Array = apply_network(self.weights_, rows, self.normalise)
        scores *= np.float32(self._temperature)
        return scores

    @property
    def _temperature(self) -> float:
        return 1.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


def _name_of(table: UnitTable | None) -> str | None:
    return None if table is None else table.name
