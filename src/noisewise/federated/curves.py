"""Curves of records that several parties hold: the functions of :mod:`noisewise.ecdf`, federated.

Each takes a list with one entry for each party and an aggregator that says who sees what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import quantile_cuts
from noisewise.ecdf.group_sums import checked_cuts
from noisewise.ecdf.hosmer_lemeshow import HosmerLemeshow, _curve_share, _from_curve, _from_sums
from noisewise.ecdf.hosmer_lemeshow_null import p_values, statistic_of
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.federated.aggregator import Aggregator
from noisewise.federated.calibration_question import GroupSumsQuestion
from noisewise.federated.domain import Domain, Records
from noisewise.federated.questions import EcdfQuestion, HistogramQuestion, RocQuestion
from noisewise.federated.results import (
    FederatedECDF,
    FederatedHistogram,
    FederatedHosmerLemeshow,
    FederatedROC,
)
from noisewise.privacy import _validate
from noisewise.privacy.randomness import Randomness, resolve

__all__ = ["ecdf", "histogram", "hosmer_lemeshow", "quantiles", "roc"]


def ecdf(
    parties: Sequence[Any],
    aggregator: Aggregator,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    delta: float = 0.0,
    bins: int = 2**10,
    thresholds: Any = None,
    rng: Randomness | int | None = None,
    **options: Any,
) -> FederatedECDF:
    """Release the distribution function of all parties' records.

    Parameters
    ----------
    parties : sequence
        One array of values for each party.
    aggregator : Aggregator
        Who adds up and adds noise.
    bounds, epsilon, delta, bins, thresholds
        See :func:`noisewise.ecdf.dp_ecdf`.
    rng : None, int or Randomness
        Where noise and keys come from. None: secure generators.
    **options
        `neighbors`, `mechanism`, `smooth`, `objective`.

    Examples
    --------
    >>> from noisewise.federated import LocalAggregator
    >>> ages = np.random.default_rng(0).normal(40, 10, (3, 2000))
    >>> F = ecdf(list(ages), LocalAggregator(), bounds=(0, 120), epsilon=1.0, rng=1)
    >>> bool(abs(F.quantile(0.5) - 40) < 2)
    True
    """
    domain = Domain(*_pair(bounds), bins, thresholds=_points(thresholds))
    question = EcdfQuestion(domain, epsilon, delta, **options)
    return question.answer(aggregator.ask(question, _records(parties), resolve(rng)))


def quantiles(parties: Sequence[Any], q: Any, aggregator: Aggregator, **options: Any) -> FloatArray:
    """Return quantiles of all parties' records: the inverse of one private :func:`ecdf`."""
    return np.asarray(ecdf(parties, aggregator, **options).quantile(q))


def roc(
    parties: Sequence[Any],
    aggregator: Aggregator,
    *,
    epsilon: float,
    delta: float = 0.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    bins: int = 2**10,
    pos_label: Any = None,
    rng: Randomness | int | None = None,
    **options: Any,
) -> FederatedROC:
    """Release the ROC curve of all parties' records; ``.auc`` is its area.

    Parameters
    ----------
    parties : sequence
        One pair (labels, scores) for each party.
    aggregator : Aggregator
    epsilon, delta, bounds, bins, pos_label, rng, **options
        See :func:`noisewise.ecdf.private_roc`.
    """
    domain = Domain(*_pair(bounds), bins, labelled=True, closed="below")
    question = RocQuestion(domain, epsilon, delta, **options)
    return question.answer(aggregator.ask(question, _records(parties, pos_label), resolve(rng)))


def histogram(
    parties: Sequence[Any],
    aggregator: Aggregator,
    *,
    epsilon: float,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    delta: float = 0.0,
    rng: Randomness | int | None = None,
    **options: Any,
) -> FederatedHistogram:
    """Release a histogram of all parties' records; see :func:`noisewise.ecdf.private_histogram`."""
    if np.ndim(bins) == 0:
        domain = Domain(*_pair(range), bins, closed="below")
    else:
        edges = np.asarray(bins, np.float64).ravel()
        if edges.size < 3:
            raise ValueError(f"bins must be a number or at least three edges, got {bins!r}")
        domain = Domain(
            float(edges[0]),
            float(edges[-1]),
            edges.size - 1,
            closed="below",
            thresholds=tuple(edges[1:].tolist()),
        )
    question = HistogramQuestion(domain, epsilon, delta, **options)
    return question.answer(aggregator.ask(question, _records(parties), resolve(rng)))


def hosmer_lemeshow(
    parties: Sequence[Any],
    aggregator: Aggregator,
    *,
    epsilon: float,
    delta: float = 0.0,
    groups: int = 10,
    method: Literal["residual", "thesis"] = "residual",
    cuts: Any = None,
    bins: int = 2**10,
    fitted: bool = False,
    pos_label: Any = None,
    neighbors: str = "replace",
    rng: Randomness | int | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> FederatedHosmerLemeshow:
    """Test the calibration of predictions that several parties hold.

    Two questions: a private curve of the predictions, for the cut points, then sums over the
    groups. With noise from several contributors the p-values simulate Laplace noise of the
    same variance, whose tails are heavier.

    Parameters
    ----------
    parties : sequence
        One pair (labels, predictions) for each party.
    aggregator : Aggregator
    epsilon, delta, groups, method, cuts, bins, fitted, pos_label, neighbors, rng, draws, seed
        See :func:`noisewise.ecdf.dp_hosmer_lemeshow`; "statistic" is not a sum over records
        and cannot be asked across parties.
    """
    if method not in ("residual", "thesis"):
        raise ValueError(
            f"method must be 'residual' or 'thesis', got {method!r}: the statistic itself is not a "
            "sum over records, so no aggregator can compute it"
        )
    groups = _validate.integer("groups", groups, minimum=1, maximum=1 << 16)
    draws = _validate.integer("draws", draws, minimum=1)
    budget, source = Budget(epsilon, delta), resolve(rng)
    records = _records(parties, pos_label)
    for party in records:
        if np.any((party.values < 0) | (party.values > 1)):
            raise ValueError("predictions must be probabilities in [0, 1]")
    domain = Domain(0.0, 1.0, bins, labelled=True)
    points = None if cuts is None else checked_cuts(cuts)
    share = _curve_share(method, bins)
    curve = None
    rest = budget.epsilon
    if points is None or method == "residual":
        kind = "thesis" if method == "thesis" and delta == 0 else "auto"
        asked = EcdfQuestion(domain, budget.epsilon * share, delta, neighbors, mechanism=kind)
        curve = asked.answer(aggregator.ask(asked, records, source))
        rest = budget.epsilon * (1 - share)
        if points is None:
            points = quantile_cuts(curve, groups)
    question = GroupSumsQuestion(
        domain, rest, neighbors=neighbors, cuts=tuple(points.tolist()), method=method
    )
    asked_sums = aggregator.ask(question, records, source)
    sums = question.answer(asked_sums)
    found = (
        _from_curve(curve, sums) if method == "residual" and curve is not None else _from_sums(sums)
    )
    simulated = p_values(found, fitted=fitted, draws=draws, seed=seed)
    statistic = statistic_of(found)
    said = ["cut points are public or come from the private curve"]
    if question.relation.count_is_public:
        said.append("the number of records is public")
    return FederatedHosmerLemeshow(
        HosmerLemeshow(
            statistic=statistic,
            p_value=simulated.plain,
            noise_aware_p_value=simulated.noise_aware,
            debiased_statistic=statistic - simulated.noise_inflation,
            cuts=points,
            table=found.table(),
            method=method,
            parts=(),
            budget=budget,
        ),
        curve=curve,
        sums=sums,
        said=tuple(said),
        threat=asked_sums.threat,
    )


def _pair(bounds: Any) -> tuple[float, float]:
    """Check bounds as on one machine, where missing ones are explained."""
    from noisewise.ecdf.grid import Grid

    grid = Grid.of(bounds, 2)
    return grid.lower, grid.upper


def _points(thresholds: Any) -> tuple[float, ...] | None:
    return None if thresholds is None else tuple(float(point) for point in thresholds)


def _records(parties: Sequence[Any], pos_label: Any = None) -> list[Records]:
    if len(parties) == 0:
        raise ValueError("there are no parties: give a list with one entry for each")
    return [Records.of(party, pos_label) for party in parties]
