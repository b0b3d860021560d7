"""The mechanism of least closed-form variance for a relation, a budget and a grid."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms import circulant, kary, thesis, toeplitz
from noisewise.ecdf.mechanisms.protocol import Change, Mechanism, Setting
from noisewise.ecdf.mechanisms.registry import COUNTING, Objective, Wanted
from noisewise.privacy import Relation

__all__ = ["MECHANISMS", "STRATEGY_FILES", "plan"]

#: Importing a strategy's file enters it into the registry.
STRATEGY_FILES = (kary, thesis, toeplitz, circulant)
MECHANISMS = ("auto", *COUNTING)


def plan(
    bins: int,
    relation: Relation | str,
    budget: Budget,
    *,
    mechanism: str = "auto",
    objective: Objective = "mean",
    change: Change | None = None,
    base: int = 2,
) -> Mechanism:
    """Return a calibrated mechanism for one curve.

    Parameters
    ----------
    bins : int
        Number of cells of the histogram.
    relation : {"replace-one", "add-remove"}
        Which datasets are neighbours. Under "replace-one" the number of records is public.
    budget : Budget
        What one release may cost.
    mechanism : {"auto", "kary", "thesis", "sqrt", "circulant", "histogram"}
        "auto" takes the one whose closed-form variance is least.
    objective : {"mean", "max"}
        Whether the mean or the largest variance over the thresholds counts.
    change : {"suffix", "interval", "joint"}, optional
        What one record may do, if it is not what `relation` says: "joint" for two curves
        that share the budget (both get this mechanism, with independent noise, in a setting
        in which totals are private).
    base : int
        Children of a node of the thesis's tree.

    Examples
    --------
    >>> plan(1024, "replace-one", Budget(1.0)).name
    'kary'
    """
    checks.choice("mechanism", mechanism, MECHANISMS)
    checks.choice("objective", objective, ("mean", "max"))
    setting = Setting.of(bins, relation)
    base = checks.integer("base", base, minimum=2, maximum=16)
    if base != 2 and (mechanism == "auto" or not COUNTING[mechanism].has_base):
        raise ValueError(
            f"base={base} belongs to mechanism='thesis', got mechanism={mechanism!r}: the other "
            "mechanisms choose their own fan-outs"
        )
    if change == "joint":
        setting = replace(setting, total_is_public=False)
    return _plan(setting, budget, mechanism, Wanted(objective, change, base))


@lru_cache(maxsize=64)
def _plan(setting: Setting, budget: Budget, mechanism: str, wanted: Wanted) -> Mechanism:
    if mechanism != "auto":
        return COUNTING[mechanism].make(setting, budget, wanted)
    objective = wanted.objective
    candidates = [
        one for each in COUNTING.values() for one in each.candidates(setting, budget, wanted)
    ]

    def error(candidate: Mechanism) -> float:
        return candidate.mean_variance if objective == "mean" else candidate.max_variance

    ranked = sorted(candidates, key=error)
    others = ", ".join(f"{c.name} ({c.kind}) {error(c):.4g}" for c in ranked[1:])
    reason = (
        f"{ranked[0].description}: least {objective} variance of a count, "
        f"{error(ranked[0]):.4g}, for {setting.bins} bins and {budget}; others: {others}"
    )
    return replace(ranked[0], reason=reason)
