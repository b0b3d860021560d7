"""Choosing settings of an estimator privately: ``tune=``.

The budget of the fit is that of the whole choice. See :func:`noisewise.training.select`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from noisewise.estimators.fits import digest_of_fit, note_fit
from noisewise.estimators.network import Array, weights_of
from noisewise.training import Candidate, Plan, Polyak, Selected, TrialNumber, UnitTable, select

if TYPE_CHECKING:
    from noisewise.estimators.base import PrivateEstimator

__all__ = ["TUNABLE", "Tuning", "fit_tuned", "tuning_of"]

#: What a setting may change; everything else decides what a record is.
TUNABLE = ("learning_rate", "hidden_layer_sizes", "gradients", "steps", "sample_rate")

#: These change what a step costs, so all their values are paid for beforehand.
_COSTS = ("steps", "sample_rate")


@dataclass(frozen=True)
class Tuning:
    """Which settings are tried, and how.

    Parameters
    ----------
    settings : list of dict, dict of lists, dict of Optuna's distributions, or callable
        Values of `learning_rate`, `hidden_layer_sizes`, `gradients`, `steps`, `sample_rate`. A dict
        of lists means all their combinations. `steps` and `sample_rate` need lists, because what
        they cost is paid before.
    trials : float or TrialNumber
        Expected number of trials.
    held_back : float
        Share of the records that decides and is not trained on.
    """

    settings: Any
    trials: float | TrialNumber = 8.0
    held_back: float = 0.1


def tuning_of(given: Any) -> Tuning:
    """Return what `tune=` means; combinations written out, names checked."""
    tuning = given if isinstance(given, Tuning) else Tuning(given)
    settings = tuning.settings
    if isinstance(settings, Mapping) and all(
        isinstance(values, (list, tuple)) for values in settings.values()
    ):
        names = list(settings)
        settings = [
            dict(zip(names, values, strict=True))
            for values in itertools.product(*settings.values())
        ]
    if isinstance(settings, (list, tuple)):
        named = {name for setting in settings for name in _names(setting)}
    else:
        named = set(settings) if isinstance(settings, Mapping) else set()
        if costly := sorted(named & set(_COSTS)):
            raise ValueError(
                f"tune={given!r} draws {', '.join(costly)} from a distribution, but what every "
                "trial may cost is paid before the first: give a list of settings"
            )
    if unknown := sorted(named - set(TUNABLE)):
        raise ValueError(f"tune can change {', '.join(TUNABLE)}, got {', '.join(unknown)}")
    return Tuning(settings, tuning.trials, tuning.held_back)


def _names(setting: Any) -> list[str]:
    if not isinstance(setting, Mapping):
        raise TypeError(
            "tune must be a list of dicts such as [{'learning_rate': 0.5}, {'learning_rate': 2.0}],"
            " a dict of lists, a search space of Optuna or a Tuning, got a list of "
            f"{type(setting).__name__}"
        )
    return list(setting)


def fit_tuned(
    estimator: PrivateEstimator,
    x: Array,
    target: torch.Tensor,
    outputs: int,
    loss: nn.Module,
    notes: tuple[str, ...],
    table: UnitTable | None = None,
) -> None:
    """Fit with settings that are chosen privately."""
    if estimator._released_later:
        raise ValueError(
            "tune= spends the whole epsilon on the choice, and this fit is to leave a part for "
            "later releases: choose settings in a fit of its own"
        )
    seed = estimator._seed()
    inputs = torch.from_numpy(np.ascontiguousarray(x))
    said = note_fit()
    bound_to = b""
    if seed is not None:
        plan = estimator._plan(len(x) if table is None else len(table))
        tensors = (inputs, target) if table is None else (inputs, target, table.codes)
        bound_to = digest_of_fit(plan, estimator.tune, estimator, *tensors)
    promises = estimator._promises((*notes, said))
    chosen = _choose(
        estimator, x, target, outputs, loss, promises, table, seed=seed, bound_to=bound_to
    )
    _keep(estimator, chosen)
    estimator._finish(x, target, seed, bound_to)


def _choose(
    estimator: PrivateEstimator,
    x: Array,
    target: torch.Tensor,
    outputs: int,
    loss: nn.Module,
    preprocessing: Any,
    table: UnitTable | None,
    *,
    seed: int | None,
    bound_to: bytes,
) -> Selected:
    """Train on settings and keep the best; only the shape of x is told to what builds models."""
    count = len(x) if table is None else len(table)
    unit = estimator._unit(None if table is None else table.name)
    tuning = tuning_of(estimator.tune)
    listed = tuning.settings if isinstance(tuning.settings, list) else [{}]
    plans = {_key(estimator, each): _plan(estimator, each, seed, count, unit) for each in listed}
    shape = np.broadcast_to(np.float32(0.0), x.shape)
    start = 0 if seed is None else seed % (2**31)

    def build(setting: Mapping[str, Any]) -> Candidate:
        if unknown := sorted(set(setting) - set(TUNABLE)):
            raise ValueError(f"tune can change {', '.join(TUNABLE)}, got {', '.join(unknown)}")
        changed = _changed(estimator, setting)
        rate = changed._rate(count)
        return Candidate(
            changed._network(shape, outputs, start, count),
            lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
            gradients=changed._gradients(),
            plan=_key(estimator, setting),
            options={"averaging": Polyak(start=0.5)},
        )

    return select(
        build,
        (torch.from_numpy(np.ascontiguousarray(x)), target),
        plans,
        settings=tuning.settings,
        loss=loss,
        trials=tuning.trials,
        held_back=tuning.held_back,
        ledger=estimator.ledger,
        preprocessing=preprocessing,
        bound_to=bound_to,
        units=table,
    )


def _keep(estimator: PrivateEstimator, chosen: Selected) -> None:
    """Write what was chosen into the estimator."""
    estimator.weights_ = weights_of(chosen.model)
    estimator.statement_ = chosen.statement()
    estimator.best_params_ = dict(chosen.setting)
    estimator.best_score_ = chosen.score
    estimator.n_iter_ = _changed(estimator, chosen.setting).steps


def _changed(estimator: PrivateEstimator, setting: Mapping[str, Any]) -> PrivateEstimator:
    changed: PrivateEstimator = clone(estimator).set_params(**setting)
    changed._validate_parameters()
    if hasattr(estimator, "pictures_"):
        changed.pictures_ = estimator.pictures_
    return changed


def _key(estimator: PrivateEstimator, setting: Mapping[str, Any]) -> str:
    return " ".join(str(setting.get(name, getattr(estimator, name))) for name in _COSTS)


def _plan(
    estimator: PrivateEstimator, setting: Mapping[str, Any], seed: int | None, rows: int, unit: str
) -> Plan:
    costs = {name: setting[name] for name in _COSTS if name in setting}
    return _changed(estimator, costs)._plan(rows, unit).with_(seed=seed)
