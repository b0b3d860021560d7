"""Curves of records that several parties hold: the functions of :mod:`noisewise.ecdf`, federated.

Each takes a list with one entry for each party and an aggregator that says who sees what.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf import (
    MOST_QUANTILES,
    Budget,
    CountOptions,
    CurveOptions,
    HosmerLemeshow,
    PrivateECDF,
    PrivateHistogram,
    PrivateQuantile,
    PrivateQuantiles,
    PrivateROC,
    QuantileSearch,
    account_of,
    asked_for,
    checked_cuts,
    curve_share_of,
    groups_from_curve,
    groups_from_sums,
    judged,
    quantile_cuts,
    read_from,
    searched,
)
from noisewise.ecdf.mechanisms import FloatArray
from noisewise.federated.aggregator import Aggregator
from noisewise.federated.asking import answered, event_across
from noisewise.federated.calibration_question import GroupSumsQuestion
from noisewise.federated.domain import Domain, Records
from noisewise.federated.protected import EACH_RECORD, Protected
from noisewise.federated.questions import EcdfQuestion, HistogramQuestion, Question, RocQuestion
from noisewise.privacy import Pure, Randomness, Relation
from noisewise.privacy.randomness import resolve
from noisewise.release import Decimals, Envelope, LedgerOrPath, one_vocabulary, together

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ecdf", "histogram", "hosmer_lemeshow", "quantiles", "roc"]


class WholeCurveOptions(CurveOptions, total=False):
    """Of :func:`ecdf`, for what is read from it."""

    delta: float
    relation: Relation | str
    bins: int
    thresholds: Any
    units: Any
    max_per_unit: int
    ledger: LedgerOrPath
    seed: Randomness | int | None


@one_vocabulary
def ecdf(
    parties: Sequence[Any] | None,
    aggregator: Aggregator,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = "add-remove",
    bins: int = 2**10,
    thresholds: Any = None,
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    **options: Unpack[CurveOptions],
) -> PrivateECDF:
    """Release the distribution function of all parties' records.

    Parameters
    ----------
    parties : sequence or None
        One array of values for each party; None if the aggregator asks for them elsewhere.
    aggregator : Aggregator
        Who adds up and adds noise.
    bounds, epsilon, delta, relation, bins, thresholds
        See :func:`noisewise.ecdf.dp_ecdf`.
    units : sequence, Units, "party" or "device", optional
        What is protected. A list with the identifiers of each party's rows: all rows of a patient.
        By default a patient may be known to every party, and its rows count at each;
        ``Units(..., parties=1)`` promises that nobody is known to two, and ``Units(...,
        common=True)`` says that identifiers are common to all. "party", "device": all that one
        party or device holds. By default one record; of servers elsewhere, what the study says.
    max_per_unit : int
        Rows of a unit that count at a party, at most; a public number.
    ledger : Ledger or path, optional
        Of the analyst, charged before anybody is asked.
    seed : None, int or Randomness
        Where noise and keys come from. None: secure generators.
    **options
        `mechanism`, `smooth`, `objective`.

    Examples
    --------
    >>> from noisewise.federated import LocalAggregator
    >>> ages = np.random.default_rng(0).normal(40, 10, (3, 2000))
    >>> F = ecdf(list(ages), LocalAggregator(), bounds=(0, 120), epsilon=1.0, seed=1)
    >>> bool(abs(F.quantile(0.5) - 40) < 2)
    True
    """
    domain = Domain(*_pair(bounds), bins, thresholds=_points(thresholds))
    source = resolve(seed)
    records, protects = _records(parties, aggregator, units, max_per_unit, source)
    question = EcdfQuestion(
        domain, epsilon, delta, Relation.of(relation), protects=protects, **options
    )
    found: PrivateECDF = _release(question, aggregator, records, ledger, source)
    return found


@one_vocabulary
def quantiles(
    parties: Sequence[Any] | None,
    q: Any,
    aggregator: Aggregator,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    **options: Unpack[WholeCurveOptions],
) -> PrivateQuantile | PrivateQuantiles:
    """Release quantiles of all parties' records, with a statement and intervals at no cost.

    They are searched for by few counts, as :func:`noisewise.ecdf.dp_quantile` does, so that bounds
    may be far too wide; or, if `bins`, `thresholds` or `delta` are given or the aggregator asks
    elsewhere, where the study says what is counted, they are the inverse of one private
    :func:`ecdf`.

    Examples
    --------
    >>> from noisewise.federated import LocalAggregator
    >>> ages = np.random.default_rng(0).normal(40, 10, (3, 2000))
    >>> hospitals, trusted = list(ages), LocalAggregator()
    >>> median = quantiles(hospitals, 0.5, trusted, bounds=(-1e9, 1e9), epsilon=1.0, seed=1)
    >>> bool(abs(median - 40) < 1), median.statement().epsilon
    (True, 1.0)
    >>> low, high = median.confidence_interval(0.95)
    >>> bool(low < np.median(ages) < high)
    True
    """
    wanted = asked_for(q)
    different = tuple(sorted({Fraction(one) for one in wanted.ravel().tolist()}))
    fixed = {"bins", "thresholds", "delta"} & options.keys()
    if fixed or len(different) > MOST_QUANTILES or getattr(aggregator, "elsewhere", False):
        curve = ecdf(parties, aggregator, bounds=bounds, epsilon=epsilon, **options)
        return read_from(curve, wanted, np.asarray(curve.quantile(wanted)))
    rest: dict[str, Any] = dict(options)
    relation, budget = Relation.of(rest.pop("relation", "add-remove")), Budget(epsilon)
    ledger, source = rest.pop("ledger", None), resolve(rest.pop("seed", None))
    units, limit = rest.get("units"), rest.get("max_per_unit", 1)
    most = _records(parties, aggregator, units, limit, source)[1].contribution
    whole = most.told(Pure(epsilon))
    with account_of(ledger, relation, budget, most) as account:
        envelope = Envelope(account, whole, source)

        def look(thresholds: FloatArray, part: Budget) -> PrivateECDF:
            return ecdf(
                parties, aggregator, bounds=bounds, epsilon=part.epsilon, relation=relation,
                thresholds=thresholds, ledger=envelope, seed=envelope.rng, **rest,
            )  # fmt: skip

        found = QuantileSearch(Decimals(*_pair(bounds)), different).run(look, budget)
    return searched(found, different, wanted, whole, 0.0)


@one_vocabulary
def roc(
    parties: Sequence[Any] | None,
    aggregator: Aggregator,
    *,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = "add-remove",
    bounds: tuple[float, float] = (0.0, 1.0),
    bins: int = 2**10,
    pos_label: Any = None,
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    **options: Unpack[CurveOptions],
) -> PrivateROC:
    """Release the ROC curve of all parties' records; ``.auc`` is its area.

    Parameters
    ----------
    parties : sequence
        One pair (labels, scores) for each party.
    aggregator : Aggregator
    epsilon, delta, relation, bounds, bins, pos_label, ledger, seed, **options
        See :func:`noisewise.ecdf.private_roc`.
    units, max_per_unit
        See :func:`ecdf`.
    """
    domain = Domain(*_pair(bounds), bins, labelled=True, closed="below")
    source = resolve(seed)
    records, protects = _records(parties, aggregator, units, max_per_unit, source, pos_label)
    question = RocQuestion(
        domain, epsilon, delta, Relation.of(relation), protects=protects, **options
    )
    found: PrivateROC = _release(question, aggregator, records, ledger, source)
    return found


@one_vocabulary
def histogram(
    parties: Sequence[Any] | None,
    aggregator: Aggregator,
    *,
    epsilon: float,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    delta: float = 0.0,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    **options: Unpack[CountOptions],
) -> PrivateHistogram:
    """Release a histogram of all parties' records; see :func:`noisewise.ecdf.private_histogram`.

    `units` and `max_per_unit` are those of :func:`ecdf`.
    """
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
    source = resolve(seed)
    records, protects = _records(parties, aggregator, units, max_per_unit, source)
    question = HistogramQuestion(
        domain, epsilon, delta, Relation.of(relation), protects=protects, **options
    )
    found: PrivateHistogram = _release(question, aggregator, records, ledger, source)
    return found


@one_vocabulary
def hosmer_lemeshow(
    parties: Sequence[Any] | None,
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
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    draws: int = 10_000,
    simulation_seed: int = 0,
) -> HosmerLemeshow:
    """Test the calibration of predictions that several parties hold.

    Two questions: a private curve of the predictions, for the cut points, then sums over the
    groups. With noise from several contributors the p-values simulate Laplace noise of the
    same variance, whose tails are heavier.

    Parameters
    ----------
    parties : sequence
        One pair (labels, predictions) for each party.
    aggregator : Aggregator
    epsilon, delta, groups, method, cuts, bins, fitted, pos_label, relation, ledger, seed, \
    draws, simulation_seed
        See :func:`noisewise.ecdf.dp_hosmer_lemeshow`; "statistic" is not a sum over records
        and cannot be asked across parties.
    units, max_per_unit
        See :func:`ecdf`.
    """
    if method not in ("residual", "thesis"):
        raise ValueError(
            f"method must be 'residual' or 'thesis', got {method!r}: the statistic itself is not a "
            "sum over records, so no aggregator can compute it"
        )
    groups = checks.integer("groups", groups, minimum=1, maximum=1 << 16)
    draws = checks.integer("draws", draws, minimum=1)
    relation, budget, source = Relation.of(relation), Budget(epsilon, delta), resolve(seed)
    records, protects = _records(parties, aggregator, units, max_per_unit, source, pos_label)
    for party in records:
        if np.any((party.values < 0) | (party.values > 1)):
            raise ValueError("predictions must be probabilities in [0, 1]")
    domain = Domain(0.0, 1.0, bins, labelled=True)
    points = None if cuts is None else checked_cuts(cuts)
    share = curve_share_of(method, bins)
    curve = None
    rest = budget.epsilon
    kind = "thesis" if method == "thesis" and delta == 0 else "auto"

    def sums_over(cuts: FloatArray) -> GroupSumsQuestion:
        return GroupSumsQuestion(
            domain,
            rest,
            relation=relation,
            cuts=tuple(cuts.tolist()),
            method=method,
            protects=protects,
        )

    with account_of(ledger, relation, budget, protects.contribution) as account:
        if points is None or method == "residual":
            part = budget.epsilon * share
            asked = EcdfQuestion(domain, part, delta, relation, mechanism=kind, protects=protects)
            rest = budget.epsilon * (1 - share)
            if not aggregator.noiseless:
                # What the sums cost does not depend on the groups.
                both = (asked, sums_over(np.array([0.5])))
                events = [event_across(one, aggregator, len(records)) for one in both]
                account = together(account, events, source)
            curve = answered(asked, aggregator, records, account, source)
            if points is None:
                points = quantile_cuts(curve, groups)
        sums = answered(sums_over(points), aggregator, records, account, source)
    found = (
        groups_from_curve(curve, sums)
        if method == "residual" and curve is not None
        else groups_from_sums(sums)
    )
    return judged(
        found,
        curve,
        sums,
        budget,
        method=method,
        fitted=fitted,
        draws=draws,
        seed=simulation_seed,
    )


def _release(
    question: Question,
    aggregator: Aggregator,
    records: Sequence[Records],
    ledger: LedgerOrPath,
    source: Randomness,
) -> Any:
    most = question.protects.contribution
    with account_of(ledger, question.relation, question.budget, most) as account:
        return answered(question, aggregator, records, account, source)


def _pair(bounds: Any) -> tuple[float, float]:
    """Check bounds as on one machine, where missing ones are explained."""
    from noisewise.ecdf import Grid

    grid = Grid.of(bounds, 2)
    return grid.lower, grid.upper


def _points(thresholds: Any) -> tuple[float, ...] | None:
    return None if thresholds is None else tuple(float(point) for point in thresholds)


def _records(
    parties: Sequence[Any] | None,
    aggregator: Aggregator,
    units: Any,
    max_per_unit: int,
    source: Randomness,
    pos_label: Any = None,
) -> tuple[list[Records], Protected]:
    """Return what counts of each party's rows, and what is protected."""
    if isinstance(aggregator, type) or not hasattr(type(aggregator), "threat"):
        given = aggregator.__name__ if isinstance(aggregator, type) else repr(aggregator)
        raise TypeError(
            f"aggregator says who sees what, and must be an object such as "
            f"noisewise.federated.FunctionSharing(), got {given}"
        )
    if getattr(aggregator, "elsewhere", False):
        if parties is not None or units is not None or max_per_unit != 1:
            raise ValueError(
                "the parties' records are where they are, and this aggregator asks for them there: "
                "give None in their place, and no units: what is protected stands in the study"
            )
        return [], getattr(aggregator, "protects", EACH_RECORD)
    if parties is None or len(parties) == 0:
        raise ValueError("there are no parties: give a list with one entry for each")
    held = [Records.of(party, pos_label) for party in parties]
    protects = Protected.of(units, max_per_unit, len(held))
    if protects == EACH_RECORD:
        return held, EACH_RECORD
    (own,) = source.spawn(1)
    return protects.at_parties(held, units, own), protects
