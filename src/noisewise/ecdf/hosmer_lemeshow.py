"""The Hosmer-Lemeshow statistic with differential privacy (Barczewski 2025, Section 6.5.2).

With O observed and E expected numbers of positives (1) and negatives (0) by group,

    H = sum_g (O1 - E1)^2 / E1 + (O0 - E0)^2 / E0 = sum_g D^2 (E1 + E0) / (E1 E0),

where D = sum(y - p) is the residual, as O1 - E1 = -(O0 - E0). Three methods:

* "residual" (ours): a private ECDF of the predictions gives the cut points *and* E1, E0 (an
  integral of the curve over the group, so its noise shrinks with the group's width); the
  rest of the budget measures D itself, with one noise where O1 - E1 would carry two.
* "thesis": Algorithm 10, corrected. Each of O1, O0, E1, E0 has its own noise (with noise shared
  between O and E, their difference would be released exactly), groups are half-open, and
  E0 = sum(1 - p). One record adds 1 to O and p + (1 - p) = 1 to E, so replacing it moves
  the sums by 4 in l1; with the curve's L + 1, epsilon' = epsilon / (L + 5).
* "statistic": only sqrt(H) is released. H itself has no finite sensitivity (E1 may be as
  small as one likes), so residuals are standardised with a floor c below the variance and
  clipped: r = clip(D / sqrt(max(E1 E0 / (E1 + E0), c)), -R, R). One record moves D by at most
  1 and the variance term by at most 1 (it is concave with gradient in [0, 1]), hence its
  root by at most 1 / (2 sqrt(c)), hence r by at most 1/sqrt(c) + R/(2c).

The noisy statistic is not chi-square: p-values come from simulations of sampling and noise.

Proofs: docs/proofs/curves.md#groups and docs/proofs/curves.md#hosmer-lemeshow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import quantile_cuts
from noisewise.ecdf.counting import account_of
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import curve_mechanism, dp_ecdf
from noisewise.ecdf.group_sums import (
    GroupSums,
    Held,
    checked_cuts,
    group_mechanism,
    group_of,
    release_sums,
)
from noisewise.ecdf.hosmer_lemeshow_null import Groups, p_values, statistic_of
from noisewise.ecdf.hosmer_lemeshow_root import (
    clipped_root,
    release_root,
    root_event,
    root_p_value,
    root_sensitivity,
)
from noisewise.ecdf.hosmer_lemeshow_sums import SUMMED, _families, _residual_family, _thesis
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.predictions import as_predictions, curve_records, public_count
from noisewise.ecdf.registry import curve
from noisewise.ecdf.sources.tables import Column, rows_at_hand
from noisewise.privacy import Event, Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    LedgerOrPath,
    Promise,
    as_rows,
    compose,
    one_vocabulary,
    per_unit,
    together,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HosmerLemeshow", "clipped_root", "dp_hosmer_lemeshow", "root_sensitivity"]

HOSMER_LEMESHOW = "Hosmer-Lemeshow test"
METHODS = ("residual", "thesis", "statistic")
# Parts of the budget for the curve, by method; "thesis" takes (L + 1) / (L + 5).
CURVE_SHARE = {"residual": 0.4, "statistic": 0.4}


@dataclass(frozen=True, eq=False)
class HosmerLemeshow:
    """A private Hosmer-Lemeshow test.

    Parameters
    ----------
    statistic : float
        H of the noisy numbers ("statistic": of clipped residuals). Noise makes it larger.
    p_value : float
        Probability of a statistic at least as large if the predictions were right, sampling
        and noise included.
    noise_aware_p_value : float
        The same for sum D^2 / (sampling variance + noise variance), which gives no weight
        to groups that the noise drowns: the better test ("residual" method).
    debiased_statistic : float
        H less what the noise adds to it on average (NaN where it cannot be told).
    cuts : array
        Between the groups.
    table : dict
        By group, the released numbers; empty for method "statistic".
    method : str
    parts : tuple of Promise
        One for each release.
    budget : Budget
    curve : PrivateECDF or None
        The private curve behind the cut points, if there is one.
    """

    statistic: float
    p_value: float
    noise_aware_p_value: float
    debiased_statistic: float
    cuts: FloatArray
    table: dict[str, FloatArray]
    method: str
    parts: tuple[Promise, ...]
    budget: Budget
    curve: PrivateECDF | None = None

    @property
    def pvalue(self) -> float:
        """The p-value, under scipy's name."""
        return self.p_value

    @property
    def groups(self) -> int:
        """Number of groups; fewer than asked for if predictions coincide."""
        return int(self.cuts.size) + 1

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each group."""
        import pandas as pd

        edges = np.concatenate([[0.0], self.cuts, [1.0]])
        frame: pd.DataFrame = pd.DataFrame({"low": edges[:-1], "high": edges[1:], **self.table})
        return frame

    def statement(self) -> Statement:
        """Return what was promised for all releases together."""
        parts = [part.state() for part in self.parts]
        return parts[0] if len(parts) == 1 else compose(parts, self.budget.delta)

    def __repr__(self) -> str:
        return (
            f"HosmerLemeshow(statistic={self.statistic:.4g}, p_value={self.p_value:.3g}, "
            f"{self.groups} groups, {self.method}, {self.budget})"
        )


@curve(
    answers="Whether the difference is more than chance: a test.",
    proof="proofs/curves.md#hosmer-lemeshow",
)
@one_vocabulary
def dp_hosmer_lemeshow(
    y: Any,
    p: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    groups: int = 10,
    method: Literal["residual", "thesis", "statistic"] = "residual",
    cuts: Any = None,
    bins: int = 2**10,
    fitted: bool = False,
    floor: float = 20.0,
    clip: float = 5.0,
    pos_label: Any = None,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    draws: int = 10_000,
    simulation_seed: int = 0,
    data: Any = None,
) -> HosmerLemeshow:
    """Test the calibration of predicted probabilities with differential privacy.

    Parameters
    ----------
    y, p : array
        Labels and predicted probabilities of the positive class. With `data`, names of columns.
    epsilon, delta : float
        The whole budget; `delta` helps the curve only.
    groups : int
        Number of groups of nearly equal size.
    method : {"residual", "thesis", "statistic"}
        See the module's text.
    cuts : array, optional
        Public cut points inside (0, 1) instead of private quantiles; "statistic" then spends
        all on the statistic.
    bins : int
        Thresholds of the private curve.
    fitted : bool
        Whether the model was fitted to these very records. Then two degrees of freedom are
        taken from the null distribution (chi-square with groups - 2 in the classic test).
        False is right for held-out records, and conservative otherwise.
    floor, clip : float
        c and R of the "statistic" method; public.
    pos_label, relation, ledger, seed, data
        See :func:`noisewise.ecdf.private_roc`.
    units, max_per_unit
        As there, but rows of a unit are chosen at random: the null distribution is that of whole
        records. They are taken for independent, which is right for one row of a unit.
    draws, simulation_seed : int
        Of the simulation of the null distribution, which never touches the data.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 4, 30_000)
    >>> right = dp_hosmer_lemeshow(rng.random(30_000) < p, p, epsilon=1.0, seed=1)
    >>> wrong = dp_hosmer_lemeshow(rng.random(30_000) < p**1.2, p, epsilon=1.0, seed=1)
    >>> right.p_value > 0.01, wrong.p_value < 0.01
    (True, True)
    """
    relation, budget, source = Relation.of(relation), Budget(epsilon, delta), resolve(seed)
    groups = checks.integer("groups", groups, minimum=1, maximum=1 << 16)
    checks.choice("method", method, METHODS)
    draws = checks.integer("draws", draws, minimum=1)
    floor, clip = checks.positive("floor", floor), checks.positive("clip", clip)
    bounded = per_unit(units, max_per_unit, source, whole=True)
    at_hand = rows_at_hand(data, p, y, pos_label, units, bounded)
    p, y, pos_label, units, data, bounded = at_hand
    labels, predictions = as_predictions(y, p, pos_label, data)
    most = ONE_ROW if bounded is None else bounded.contribution
    held = Held.of(bounded, units, labels.size)
    points = None if cuts is None else checked_cuts(cuts)
    with_curve = points is None or method == "residual"
    scores: Any = curve_records(predictions, bins) if with_curve else predictions
    if isinstance(predictions, Column) and points is not None:
        public_count(predictions.number(points, SUMMED[method]), relation)
    else:
        public_count(len(scores), relation, held)
    share = curve_share_of(method, bins)
    curve = None
    rest = budget.epsilon
    kind = "thesis" if method == "thesis" and delta == 0 else "auto"
    with account_of(ledger, relation, budget, most) as account:
        if with_curve:
            rest = budget.epsilon * (1 - share)
            curve_budget = Budget(budget.epsilon * share, delta)
            first = curve_mechanism(bins, relation, curve_budget, most, mechanism=kind).event
            account = together(account, (first, most.told(_event(method, rest, relation))), source)
            curve = dp_ecdf(
                scores,
                bounds=(0.0, 1.0),
                epsilon=curve_budget.epsilon,
                delta=delta,
                bins=bins,
                relation=relation,
                mechanism=kind,
                units=None if units is None else as_rows(units),
                max_per_unit=max_per_unit,
                ledger=account,
                seed=source,
            )
            if points is None:
                points = quantile_cuts(curve, groups)
        assert points is not None
        before = () if curve is None else (curve.promise,)
        if method == "statistic":
            root = release_root(
                labels, predictions, points, rest, floor, clip, relation, account, source, held
            )
            p_value = root_p_value(
                root, points.size + 1, clip, fitted=fitted, draws=draws, seed=simulation_seed
            )
            return HosmerLemeshow(
                statistic=max(root.value, 0.0) ** 2,
                p_value=p_value,
                noise_aware_p_value=p_value,
                debiased_statistic=math.nan,
                cuts=points,
                table={},
                method=method,
                parts=(*before, root.promise),
                budget=budget,
                curve=curve,
            )
        residual = method == "residual"
        group, families = _families(labels, predictions, points, residual)
        sums = release_sums(
            group,
            families,
            points,
            epsilon=rest,
            relation=relation,
            rng=source,
            account=account,
            what=HOSMER_LEMESHOW,
            held=held,
        )
    found = (
        groups_from_curve(curve, sums) if residual and curve is not None else groups_from_sums(sums)
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


def judged(
    found: Groups,
    curve: PrivateECDF | None,
    sums: GroupSums,
    budget: Budget,
    *,
    method: str,
    fitted: bool,
    draws: int,
    seed: int,
) -> HosmerLemeshow:
    """Return the test of released numbers, with its p-values simulated."""
    simulated = p_values(found, fitted=fitted, draws=draws, seed=seed)
    statistic = statistic_of(found)
    return HosmerLemeshow(
        statistic=statistic,
        p_value=simulated.plain,
        noise_aware_p_value=simulated.noise_aware,
        debiased_statistic=statistic - simulated.noise_inflation,
        cuts=sums.cuts,
        table=found.table(),
        method=method,
        parts=(sums.promise,) if curve is None else (curve.promise, sums.promise),
        budget=budget,
        curve=curve,
    )


def _event(method: str, epsilon: float, relation: Relation) -> Event:
    """Return what is released after the curve, to an accountant."""
    if method == "statistic":
        return root_event(epsilon)
    none = np.zeros(0)
    families = _residual_family(none, none) if method == "residual" else _thesis(none, none)
    columns = [len(family.names) for family in families]
    bounds, shares = [f.bound for f in families], [f.share for f in families]
    return group_mechanism(1, columns, bounds, shares, epsilon, relation).event


def curve_share_of(method: str, bins: int) -> float:
    if method != "thesis":
        return CURVE_SHARE[method]
    height = math.ceil(math.log2(checks.integer("bins", bins, minimum=2)))
    return (height + 1) / (height + 5)


def groups_from_curve(curve: PrivateECDF, sums: GroupSums) -> Groups:
    """Read the numbers of each group off the curve, with D from the sums."""
    edges = curve.grid.edges
    middle = (edges[1:] + edges[:-1]) / 2
    mass = np.diff(curve.counts, prepend=0.0)
    group = group_of(curve.grid.thresholds, sums.cuts)

    def total(values: FloatArray) -> FloatArray:
        sums_by_group = np.bincount(group, weights=values * mass, minlength=sums.groups)
        return np.asarray(sums_by_group, np.float64)

    return Groups(
        expected_1=np.maximum(total(middle), 1.0),
        expected_0=np.maximum(total(1 - middle), 1.0),
        residual_1=sums.columns["residual"],
        residual_0=-sums.columns["residual"],
        variance=np.maximum(total(middle * (1 - middle)), 0.0),
        residual_scale=sums.scales["residual"],
        expected_scale=0.0,
    )


def groups_from_sums(sums: GroupSums) -> Groups:
    """Use Algorithm 10's four sums; expected numbers below 1 are raised to 1."""
    one = np.maximum(sums.columns["expected_1"], 1.0)
    zero = np.maximum(sums.columns["expected_0"], 1.0)
    return Groups(
        expected_1=one,
        expected_0=zero,
        residual_1=sums.columns["observed_1"] - one,
        residual_0=sums.columns["observed_0"] - zero,
        variance=one * zero / (one + zero),
        residual_scale=sums.scales["observed_1"],
        expected_scale=sums.scales["expected_1"],
    )
