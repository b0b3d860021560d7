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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from noisewise.ecdf import noising
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import as_predictions, public_count, quantile_cuts
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import dp_ecdf
from noisewise.ecdf.group_sums import (
    UNIT,
    Family,
    GroupSums,
    checked_cuts,
    group_of,
    release_sums,
    to_units,
)
from noisewise.ecdf.hosmer_lemeshow_null import Groups, p_values, statistic_of
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.promise import compose
from noisewise.privacy import _validate
from noisewise.privacy.discrete import discrete_laplace, exact_scale
from noisewise.privacy.events import Pure
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HosmerLemeshow", "clipped_root", "dp_hosmer_lemeshow", "root_sensitivity"]

METHODS = ("residual", "thesis", "statistic")
# Parts of the budget for the curve, by method; "thesis" takes (L + 1) / (L + 5).
CURVE_SHARE = {"residual": 0.4, "statistic": 0.4}
# Grid points in the sensitivity of the directly released root.
ROOT_STEPS = 1 << 12


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
    parts : tuple of Statement
        One for each release.
    budget : Budget
    """

    statistic: float
    p_value: float
    noise_aware_p_value: float
    debiased_statistic: float
    cuts: FloatArray
    table: dict[str, FloatArray]
    method: str
    parts: tuple[Statement, ...]
    budget: Budget

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
        if len(self.parts) == 1:
            return self.parts[0]
        return compose(self.parts, self.budget.delta)

    def __repr__(self) -> str:
        return (
            f"HosmerLemeshow(statistic={self.statistic:.4g}, p_value={self.p_value:.3g}, "
            f"{self.groups} groups, {self.method}, {self.budget})"
        )


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
    neighbors: str = "replace",
    rng: Randomness | int | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> HosmerLemeshow:
    """Test the calibration of predicted probabilities with differential privacy.

    Parameters
    ----------
    y, p : array
        Labels and predicted probabilities of the positive class.
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
    pos_label, neighbors, rng
        See :func:`noisewise.ecdf.private_roc`.
    draws, seed : int
        Of the simulation of the null distribution, which never touches the data.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 4, 30_000)
    >>> right = dp_hosmer_lemeshow(rng.random(30_000) < p, p, epsilon=1.0, rng=1)
    >>> wrong = dp_hosmer_lemeshow(rng.random(30_000) < p**1.2, p, epsilon=1.0, rng=1)
    >>> right.p_value > 0.01, wrong.p_value < 0.01
    (True, True)
    """
    relation, budget, source = Relation.of(neighbors), Budget(epsilon, delta), resolve(rng)
    groups = _validate.integer("groups", groups, minimum=1, maximum=1 << 16)
    _validate.choice("method", method, METHODS)
    draws = _validate.integer("draws", draws, minimum=1)
    floor, clip = _validate.positive("floor", floor), _validate.positive("clip", clip)
    labels, predictions = as_predictions(y, p, pos_label)
    records = public_count(labels.size, relation)
    points = None if cuts is None else checked_cuts(cuts)
    share = _curve_share(method, bins)
    curve = None
    rest = budget.epsilon
    if points is None or method == "residual":
        curve = dp_ecdf(
            predictions,
            bounds=(0.0, 1.0),
            epsilon=budget.epsilon * share,
            delta=delta,
            bins=bins,
            neighbors=neighbors,
            mechanism="thesis" if method == "thesis" and delta == 0 else "auto",
            rng=source,
        )
        rest = budget.epsilon * (1 - share)
        if points is None:
            points = quantile_cuts(curve, groups)
    group = group_of(predictions, points)
    said = ["cut points are public or come from the private curve"]
    if records is not None:
        said.append("the number of records is public")
    before = () if curve is None else (curve.statement(),)
    if method == "statistic":
        return _direct(
            labels, predictions, points, rest, floor, clip, relation, source, budget, before,
            said, fitted, draws, seed,
        )  # fmt: skip
    residual = method == "residual"
    families = _residual_family(labels, predictions) if residual else _thesis(labels, predictions)
    sums = release_sums(group, families, points, epsilon=rest, relation=relation, rng=source)
    found = _from_curve(curve, sums) if residual and curve is not None else _from_sums(sums)
    simulated = p_values(found, fitted=fitted, draws=draws, seed=seed)
    statistic = statistic_of(found)
    return HosmerLemeshow(
        statistic=statistic,
        p_value=simulated.plain,
        noise_aware_p_value=simulated.noise_aware,
        debiased_statistic=statistic - simulated.noise_inflation,
        cuts=points,
        table=found.table(),
        method=method,
        parts=(*before, sums.statement("Hosmer-Lemeshow test", said)),
        budget=budget,
    )


def _curve_share(method: str, bins: int) -> float:
    if method != "thesis":
        return CURVE_SHARE[method]
    height = math.ceil(math.log2(_validate.integer("bins", bins, minimum=2)))
    return (height + 1) / (height + 5)


def _residual_family(labels: FloatArray, predictions: FloatArray) -> list[Family]:
    return [Family(("residual",), to_units(labels - predictions)[:, None], UNIT, 1.0)]


def _thesis(labels: FloatArray, predictions: FloatArray) -> list[Family]:
    """O1, O0, E1, E0; positives and negatives of a record always sum to one."""
    observed, expected = to_units(labels), to_units(predictions)
    both = [np.column_stack([part, UNIT - part]) for part in (observed, expected)]
    return [
        Family(("observed_1", "observed_0"), both[0], UNIT, 0.5),
        Family(("expected_1", "expected_0"), both[1], UNIT, 0.5),
    ]


def _from_curve(curve: PrivateECDF, sums: GroupSums) -> Groups:
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


def _from_sums(sums: GroupSums) -> Groups:
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


def root_sensitivity(floor: float, clip: float, relation: Relation) -> float:
    """Return how far one record moves the root of the clipped statistic, at most.

    A record is in one group, so adding it moves the vector of residuals by at most
    1/sqrt(floor) + clip/(2 floor) in one place; replacing it does so at most twice.
    """
    return relation.sum_factor * (1 / math.sqrt(floor) + clip / (2 * floor))


def clipped_root(
    labels: FloatArray, predictions: FloatArray, cuts: FloatArray, floor: float, clip: float
) -> float:
    """Return the length of the clipped, standardised residuals: the root of H, made bounded."""
    group = group_of(predictions, cuts)
    size = cuts.size + 1
    expected, observed = to_units(predictions), to_units(labels)

    def total(values: IntArray) -> FloatArray:
        # Sums of integers below 2^53, exact in float64.
        sums = np.bincount(group, weights=values.astype(np.float64), minlength=size)
        return np.asarray(sums / UNIT, np.float64)

    one, zero, residual = total(expected), total(UNIT - expected), total(observed - expected)
    variance = one * zero / np.maximum(one + zero, 1e-300)
    standardised = residual / np.sqrt(np.maximum(variance, floor))
    return float(np.linalg.norm(np.clip(standardised, -clip, clip)))


def _direct(
    labels: FloatArray,
    predictions: FloatArray,
    cuts: FloatArray,
    epsilon: float,
    floor: float,
    clip: float,
    relation: Relation,
    source: Randomness,
    budget: Budget,
    before: tuple[Statement, ...],
    said: list[str],
    fitted: bool,
    draws: int,
    seed: int,
) -> HosmerLemeshow:
    step = root_sensitivity(floor, clip, relation) / ROOT_STEPS
    # Rounding to the grid adds at most one step. Sums are of integers and exact; the few
    # floating-point operations after them err by far less than the other step.
    change = ROOT_STEPS + 2
    root = clipped_root(labels, predictions, cuts, floor, clip)
    scale = exact_scale(change / epsilon * (1 + 1e-12))
    drawn = int(discrete_laplace((), scale, source))
    noisy = noising.add(round(root / step), drawn) * step
    generator = np.random.default_rng(seed)
    degrees = max(cuts.size + 1 - (2 if fitted else 0), 1)
    null = np.clip(generator.standard_normal((draws, degrees)), -clip, clip)
    simulated = np.linalg.norm(null, axis=1) + generator.laplace(0, float(scale) * step, draws)
    p_value = (1 + int((simulated >= noisy).sum())) / (draws + 1)
    promise = Statement.derive(
        Pure(float(change / scale) * (1 + 1e-15)),
        delta=0.0,
        mechanism="Hosmer-Lemeshow statistic released directly, discrete Laplace noise",
        relation=relation,
        randomness=source.description,
        assumptions=said,
    )
    return HosmerLemeshow(
        statistic=max(noisy, 0.0) ** 2,
        p_value=p_value,
        noise_aware_p_value=p_value,
        debiased_statistic=math.nan,
        cuts=cuts,
        table={},
        method="statistic",
        parts=(*before, promise),
        budget=budget,
    )
