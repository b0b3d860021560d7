"""Which of the two rules for units a plan takes, from public numbers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.training.resolved import Constants

if TYPE_CHECKING:
    from noisewise.training.plan import Plan

__all__ = ["FIELDS", "check", "chosen", "mean_rows"]

UNIT_RULES = ("auto", "units", "rows")
#: Fields of a plan that speak of units alone.
FIELDS = ("unit_rule", "unit_rows", "rows")


def chosen(plan: Plan, constants: Constants) -> str:
    """The rule as asked for, or the one with the smaller noise.

    With the same sample rate both take the same number of rows in a step. The noise is that on the
    mean over units: "units" divides by the expected number of units, "rows" by that of rows; if the
    number of rows is not public, each unit may have a single one.
    """
    if plan.unit_rule != "auto":
        return plan.unit_rule
    if plan.unit_rows is None or plan.rows is None or plan.relation != "add-remove":
        return "units"
    mean = mean_rows(plan, constants.records)
    if mean == 1.0 or plan.noise_multiplier is not None:
        return "units"  # with the noise given it is epsilon that differs, and units cost less
    whole, single = plan.sigma(constants), plan.sigma(constants, plan.unit_rows)
    return "rows" if single / mean < whole else "units"


def mean_rows(plan: Plan, units: int | None) -> float:
    """Rows of a unit that can be drawn, as far as is public; at least one."""
    if plan.rows is None or units is None or plan.unit_rows is None:
        return 1.0
    return min(max(1.0, plan.rows / units), float(plan.unit_rows))


def check(plan: Plan) -> None:
    """Refuse rules that do not exist, or have no analysis."""
    checks.choice("unit_rule", plan.unit_rule, UNIT_RULES)
    for name in ("unit_rows", "rows"):
        if getattr(plan, name) is not None:
            checked = checks.integer(name, getattr(plan, name), minimum=1)
            object.__setattr__(plan, name, checked)
    if plan.unit_rule != "rows":
        return
    if plan.unit_rows is None:
        raise ValueError(
            "unit_rule='rows' draws the rows of a unit by themselves, so the most rows of one unit "
            "must be a public number: give unit_rows, e.g. unit_rows=8"
        )
    if plan.relation != "add-remove":
        raise UnsoundError(
            "unit_rule='rows' has no analysis here under replace-one, so no epsilon would be true: "
            "use relation='add-remove', or unit_rule='units'"
        )
