"""One or few quantiles, without paying for a whole curve.

The exponential mechanism chooses a number by how far its rank is from the one that is wanted
(:mod:`noisewise.release.rank_choice`). Its error is a few records divided by epsilon, whatever the
bounds are: they enter by the logarithm of how likely the right numbers were before. Several
quantiles are chosen by recursive splitting, so that epsilon is divided by the logarithm of their
number. Where records cannot be ranked, they are searched for by few counts
(:mod:`noisewise.ecdf.search`); very many are read from a private curve.

Proof: docs/proofs/curves.md#quantiles and docs/proofs/curves.md#looks.
"""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget, concentrated_rho
from noisewise.ecdf.counting import PUBLIC_GRID, public_total, stated_delta
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import dp_ecdf
from noisewise.ecdf.grid import MOST_BINS, Grid, as_records
from noisewise.ecdf.labelled import with_codes
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.options import QuantileOptions
from noisewise.ecdf.quantile_model import SIZES, Way, best, needs_size
from noisewise.ecdf.quantile_results import (
    PrivateQuantile,
    PrivateQuantiles,
    asked_for,
    made_of,
    named,
    placed,
    read_from,
    searched,
)
from noisewise.ecdf.registry import curve
from noisewise.ecdf.search import MOST_QUANTILES, QuantileSearch, cells_for, part_of
from noisewise.ecdf.sources.tables import rows_in_memory, without_others
from noisewise.privacy import (
    Event,
    Pure,
    Randomness,
    Relation,
    Sensitivity,
    ZeroConcentrated,
    tightest,
)
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    Aggregator,
    Coarse,
    Contribution,
    Decimals,
    Envelope,
    LedgerOrPath,
    PerUnit,
    Query,
    RankChoice,
    Ranked,
    RankLimit,
    Release,
    ThisProcess,
    one_vocabulary,
    open_account,
    per_unit,
    release,
    spread_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["dp_median", "dp_quantile", "plan_quantiles"]

MECHANISMS = ("auto", "exponential", "search", "curve")
#: The part of the budget for limits, if there are any.
LIMIT_SHARE = 0.5
#: The part of the budget for the number of records, where that is private and decides.
SIZE_SHARE = Fraction(1, 64)


@curve(
    answers="Below which value a given share lies, for one or few shares.",
    proof="proofs/curves.md#quantiles",
)
@one_vocabulary
def dp_quantile(
    x: Any,
    q: Any,
    *,
    bounds: tuple[float, float] | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    mechanism: Literal["auto", "exponential", "search", "curve"] = "auto",
    interval: float | None = None,
    bins: int = 2**15,
    aggregator: Aggregator | None = None,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    rho: float | None = None,
    data: Any = None,
) -> PrivateQuantile | PrivateQuantiles:
    """Release one or few quantiles with differential privacy.

    Parameters
    ----------
    x : array
        Records, one number each. With an `aggregator`, whatever that takes.
    q : float or array
        Which quantiles, in [0, 1]: the least number with that part of the records at or below it.
    bounds : pair of float
        Public range, known without looking at the records; may be far too wide.
    epsilon, delta : float
        The budget of all quantiles and limits together.
    relation, units, max_per_unit
        See :func:`noisewise.ecdf.dp_ecdf`. With units, quantiles are those of the weighted rows.
    mechanism : {"auto", "exponential", "search", "curve"}
        "exponential" ranks the records, which must be in this process, and chooses each quantile
        by its rank. "search" looks at few counts, up to ten times, each time closer: for tables of
        engines and for parties. "curve" reads them from one private curve on `bins` thresholds,
        for hundreds of them. "auto" takes what misses least on public shapes for this many
        quantiles, records times epsilon, and `bins`; where the number of records is private and
        decides, a 64th of the budget is spent on it. Of tables and parties it is not asked for.
    interval : float, optional
        Level of :meth:`confidence_interval` that is to be paid for: half of the budget goes to
        limits. A search and a curve have intervals of any level for nothing.
    bins : int
        Thresholds of a curve.
    aggregator : Aggregator, optional
        Who adds up the records of several parties, which are asked up to ten times.
    ledger, seed, rho
        See :func:`noisewise.ecdf.dp_ecdf`.
    data : table, optional
        Where the records are, `x` being the name of a column (see :func:`noisewise.ecdf.dp_ecdf`).
        An engine is sent up to ten grouped counts; a data frame in memory is ranked.

    Returns
    -------
    PrivateQuantile or PrivateQuantiles
        A float, or an array like `q`, with ``statement()`` and ``confidence_interval()``.

    Examples
    --------
    >>> ages = np.random.default_rng(0).normal(40, 10, 5000)
    >>> median = dp_quantile(ages, 0.5, bounds=(-1e6, 1e6), epsilon=1.0, seed=1)
    >>> bool(abs(median - 40) < 1), median.statement().epsilon
    (True, 1.0)
    >>> dp_quantile(ages, [0.25, 0.75], bounds=(0, 120), epsilon=1.0, seed=1).shape
    (2,)
    """
    relation, budget, source = Relation.of(relation), Budget.of(epsilon, delta, rho), resolve(seed)
    wanted = asked_for(q)
    checks.choice("mechanism", mechanism, MECHANISMS)
    level = None if interval is None else checks.fraction("interval", interval)
    grid = Grid.of(bounds, 2)
    checks.integer("bins", bins, minimum=2, maximum=MOST_BINS)
    bounded = per_unit(units, max_per_unit, source, several=aggregator is not None)
    most = ONE_ROW if bounded is None else bounded.contribution
    different = tuple(sorted({Fraction(one) for one in wanted.ravel().tolist()}))
    if data is not None:
        without_others(aggregator)
        x, units, data = rows_in_memory(data, x, units)
    here = aggregator is None and data is None
    if mechanism == "exponential" and not here:
        raise ValueError(
            "mechanism='exponential' ranks all records at once, which no aggregator and no grouped "
            "query of a table can: leave it out, and the quantiles are searched for by few counts"
        )
    domain = Decimals(grid.lower, grid.upper)
    choice = plan_quantiles(domain, different, relation, budget, most, level)
    options: dict[str, Any] = {
        "bounds": (grid.lower, grid.upper), "relation": relation, "units": units,
        "max_per_unit": max_per_unit, "aggregator": aggregator, "data": data,
    }  # fmt: skip

    def look(thresholds: FloatArray, part: Budget) -> PrivateECDF:
        return dp_ecdf(
            x, epsilon=part.epsilon if part.rho is None else None, rho=part.rho,
            thresholds=thresholds, ledger=account, seed=noise, **options,
        )  # fmt: skip

    with contextlib.ExitStack() as stack:
        account, noise, rest = ledger, source, budget
        whole: Event | None = None  # of several looks, once it was set aside

        def set_aside() -> Budget:
            """Charge the whole at the first of several looks, and return what they divide."""
            nonlocal account, noise, whole
            spent = _for_looks(len(different), budget, relation, gaussian=aggregator is None)
            cost = Pure(spent.epsilon) if spent.rho is None else ZeroConcentrated(spent.rho)
            whole = most.told(cost)
            opened = stack.enter_context(
                open_account(
                    ledger,
                    relation=relation,
                    delta=stated_delta(budget),
                    unit=most.unit,
                    accountant=tightest((cost,)),
                )
            )
            account = envelope = Envelope(opened, whole, source)
            noise = envelope.rng
            return spent

        if mechanism == "auto":
            among = _among(len(different), here)
            # Records that are elsewhere are not counted for this: a search begins with few
            # counts, and goes on by what it has seen.
            size = float(SIZES[-1])
            if here and needs_size(len(different), among, bins):
                known = public_total(ThisProcess(_held(x, units, bounded)), relation, bounded)
                number = float(known or 0)
                if known is None:
                    Grid.of(bounds, bins)  # refused before anything is spent
                    spent = set_aside()
                    rest = part_of(spent, 1 - SIZE_SHARE)
                    middle = (grid.lower + grid.upper) / 2
                    seen = look(np.array([middle, grid.upper]), part_of(spent, SIZE_SHARE))
                    number = max(float(seen.noisy_counts[-1]), 1.0)
                    choice = plan_quantiles(domain, different, relation, rest, most, level)
                size = number * _strength(choice)
            mechanism = best(len(different), size, among, bins)
        if mechanism == "curve":
            curve = dp_ecdf(
                x, epsilon=rest.epsilon if rest.rho is None else None, delta=rest.delta, bins=bins,
                ledger=account, seed=noise, rho=rest.rho, **options,
            )  # fmt: skip
            return read_from(curve, wanted)
        if mechanism == "search":
            spent = rest if rest is not budget else set_aside()
            found = QuantileSearch(domain, different).run(look, spent)
            assert whole is not None
            return searched(found, different, wanted, whole, stated_delta(budget))
        chosen = _released(x, choice, units, bounded, relation, budget, account, noise)
    numbers = chosen.value
    value = dict(zip(different, numbers, strict=False))
    limits = dict(zip(different, _pairs(numbers[len(different) :]), strict=False))
    ends = (grid.lower, grid.upper)

    def between(asked: float) -> tuple[FloatArray, FloatArray]:
        known = level is not None and asked <= level
        pairs = [limits[Fraction(one)] if known else ends for one in wanted.ravel().tolist()]
        low, high = np.array(pairs, np.float64).reshape(-1, 2).T
        return low.reshape(wanted.shape), high.reshape(wanted.shape)

    return made_of(placed(value, wanted), chosen.promise.state, between, choice.description)


@curve(answers="The value in the middle.", proof="proofs/curves.md#quantiles")
@one_vocabulary
def dp_median(
    x: Any, *, bounds: tuple[float, float] | None = None, **options: Unpack[QuantileOptions]
) -> PrivateQuantile:
    """Release the median with differential privacy; arguments as in :func:`dp_quantile`.

    Examples
    --------
    >>> ages = np.random.default_rng(0).normal(40, 10, 5000)
    >>> median = dp_median(ages, bounds=(0, 120), epsilon=1.0, interval=0.95, seed=1)
    >>> low, high = median.confidence_interval()
    >>> bool(low <= 40 <= high and high - low < 2)
    True
    """
    found = dp_quantile(x, 0.5, bounds=bounds, **options)
    assert isinstance(found, PrivateQuantile)
    return found


def plan_quantiles(
    domain: Decimals,
    quantiles: tuple[Fraction, ...],
    relation: Relation,
    budget: Budget,
    contribution: Contribution = ONE_ROW,
    level: float | None = None,
) -> RankChoice:
    """Return the choice of points that a budget allows, with limits if a level is given.

    All that is spent is a sum over levels of the recursion and limits: of epsilons for a pure
    guarantee, of eta^2 / 8 for a concentrated one. What leaves more for each is taken.
    """
    levels = len(quantiles).bit_length()
    number = 0 if level is None else 2 * len(quantiles)
    share = LIMIT_SHARE if number else 0.0
    event, rate, of_limit = _rates(budget, levels, number, share, contribution.rows)
    planned = Sensitivity(float(contribution.steps), "linf", relation)
    total = contribution.keeps_total(relation.count_is_public)
    limits = []
    for q in quantiles if level is not None else ():
        for upper in (False, True):
            coarse = Coarse.of(domain, upper)
            # P(a score above r) <= exp(-r eta / spread) / P(a score of 0), by the union bound.
            unlikely = math.log(coarse.high - coarse.low + 1) - math.log(
                (1 - (level or 0)) / number
            )
            spread = spread_of(1 - q if upper else q, planned, total)
            beyond = math.ceil(unlikely * float(spread) / float(of_limit) * (1 + 1e-9)) + 1
            limits.append(RankLimit(q, beyond, upper, of_limit))
    how = "exponential mechanism over ranks" + (", recursive splitting" if levels > 1 else "")
    rows = f" for {contribution.rows} rows of a unit" if contribution.of_units else ""
    public = "units" if contribution.of_units else "records"
    return RankChoice(
        domain,
        quantiles,
        (rate,) * levels,
        planned,
        contribution.told(event),
        how + rows,
        tuple(limits),
        total,
        (f"the number of {public} is public",) if relation.count_is_public else (),
    )


def _rates(
    budget: Budget, levels: int, limits: int, share: float, rows: int
) -> tuple[Event, Fraction, Fraction]:
    """Return the event, and what each level and each limit may cost, in bounded range."""
    options: list[tuple[Event, float, float]] = []
    if budget.rho is None:
        # What one of several rows costs is rounded up, and all of them must not exceed epsilon.
        whole = budget.epsilon if rows == 1 else budget.epsilon * (1 - 2.0**-48)
        options.append((Pure(whole), whole * (1 - share) / levels, whole * share / max(limits, 1)))
    if budget.kind != "pure":
        rho = budget.rho or concentrated_rho(budget.epsilon, budget.delta)
        options.append(
            (
                ZeroConcentrated(rho),
                math.sqrt(8 * rho * (1 - share) / levels),
                math.sqrt(8 * rho * share / max(limits, 1)),
            )
        )
    event, rate, of_limit = max(options, key=lambda option: option[1])
    # A little less, so that rounding cannot make the sum larger.
    less = Fraction(1) - Fraction(1, 10**12)
    return event, Fraction(rate) * less, Fraction(of_limit) * less


def _among(many: int, here: bool) -> tuple[Way, ...]:
    """Return what quantiles can be had by; first what "auto" takes unless others are better."""
    ways: tuple[Way, ...] = ("exponential",) if here else ()
    return (*ways, *(("search",) if many <= MOST_QUANTILES else ()), "curve")


def _strength(choice: RankChoice) -> float:
    """Return the epsilon of one quantile under add-remove that a record is hidden by as well."""
    spread = choice.spread(Fraction(1, 2), 1 if len(choice.rates) > 1 else 0)
    return float(sum(choice.rates) / spread) * choice.planned.value


def _for_looks(many: int, budget: Budget, relation: Relation, *, gaussian: bool) -> Budget:
    """Return what looks divide among them: epsilon, or rho if that leaves less noise."""
    if budget.rho is not None:
        return budget
    pure = Budget(budget.epsilon)
    if budget.kind == "pure" or not gaussian:
        return pure
    rho = Budget.concentrated(concentrated_rho(budget.epsilon, budget.delta))
    return min(pure, rho, key=lambda one: plan(cells_for(many), relation, one).mean_variance)


def _held(x: Any, units: Any, bounded: PerUnit | None) -> FloatArray:
    """Return records, beside each whose it is if that matters."""
    held = as_records(x)
    return held if bounded is None else with_codes(held, units)


def _released(
    x: Any,
    choice: RankChoice,
    units: Any,
    bounded: PerUnit | None,
    relation: Relation,
    budget: Budget,
    ledger: LedgerOrPath,
    source: Randomness,
) -> Release:
    most = ONE_ROW if bounded is None else bounded.contribution
    parties = ThisProcess(_held(x, units, bounded))
    if public_total(parties, relation, bounded) == 0:
        raise ValueError(
            "x is empty: it has no quantiles. If the number of records is private, use "
            "relation='add-remove'."
        )

    def measure(rows: FloatArray) -> Ranked:
        if bounded is None:
            return Ranked(rows, np.ones(rows.size, np.int64))
        values = np.ascontiguousarray(rows[:, 0])
        return Ranked(values, bounded.steps(rows[:, 1].astype(np.int64), values))

    query = Query.of(
        measure,
        Sensitivity(float(most.steps), "linf", relation),
        named(choice.quantiles) + (" with limits" if choice.limits else ""),
        unit=most.unit,
        assumptions=(PUBLIC_GRID, *most.sentences),
        unit_rows=most.unit_rows,
    )
    with open_account(
        ledger,
        relation=relation,
        delta=stated_delta(budget),
        unit=most.unit,
        accountant=tightest((choice.event,)),
    ) as account:
        return release(query, choice, parties, account, delta=stated_delta(budget), rng=source)


def _pairs(numbers: list[float]) -> list[tuple[float, float]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))
