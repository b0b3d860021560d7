"""Deriving a statement's epsilon again, from the statement alone.

Three numbers must agree: the accountant that the statement names, run again;
the other accountant (Renyi if it says PLD, PLD if it says Renyi), which bounds
it from one side; and an accountant that shares no code with either, which pins
it from both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from noisewise.errors import StatementError
from noisewise.files import read_foreign_text
from noisewise.privacy._limited import run_limited
from noisewise.privacy.accountants import ACCOUNTANTS
from noisewise.privacy.accounting import delta_of, epsilon_of
from noisewise.privacy.first_version import as_released
from noisewise.privacy.independent import CONCENTRATED, estimate_epsilon
from noisewise.privacy.statement import Statement, round_up
from noisewise.privacy.statement_form import shorten

__all__ = ["Verification", "other_accountant", "read_statement", "verify"]

#: The same accountant in another version may round differently.
_SAME = 1e-4
#: PLD rounds each step up on a grid of 1e-4: this fraction of epsilon, plus a term that
#: grows with the root of the number of steps and shows only at tiny epsilons.
_ESTIMATE = 0.03
_GRID = 3e-4
#: A stated epsilon may not lie below the independent estimate by more than this.
_BELOW = 1e-3
#: Differences of an epsilon this small are of no consequence.
_ABSOLUTE = 1e-4


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes
    ----------
    stated, recomputed, other, independent : float or None
        Epsilon as stated, by the named accountant, by the other accountant and
        by the independent estimate; None where one does not apply.
    problems : tuple of str
        What is wrong, in sentences; empty if the statement holds.
    """

    stated: float
    recomputed: float
    other: float | None
    independent: float | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the statement's epsilon follows from its fields."""
        return not self.problems


def verify(statement: Statement | str | Path, *, seconds: float | None = None) -> Verification:
    """Derive the epsilon of a statement again and compare.

    Parameters
    ----------
    statement : Statement, path or JSON text
        A path is read as a file.
    seconds : float, optional
        Give up after that time. Needs another process, which takes a second or two to start;
        for statements that somebody else made, whose numbers may have been chosen to take
        for ever.

    Raises
    ------
    StatementError
        If it is no statement, was tampered with, or its epsilon cannot be derived (in time).
    """
    claim = read_statement(statement)
    if seconds is not None:
        return Verification(**run_limited(claim.to_json(), seconds))
    try:
        return _verify(claim)
    except Exception as error:  # whatever an accountant does with numbers that were made up
        raise StatementError(f"its epsilon cannot be derived: {shorten(str(error))}") from error


def _verify(claim: Statement) -> Verification:
    claim = replace(claim, history=as_released(claim.history, claim.mechanism))
    recomputed = epsilon_of(
        claim.history, delta=claim.delta, relation=claim.relation, accountant=claim.accountant
    )
    other = _other(claim)
    independent = _independent(claim)
    problems = tuple(_problems(claim, recomputed, other, independent))
    return Verification(claim.epsilon, recomputed, other, independent, problems)


def other_accountant(name: str) -> str:
    """Return the accountant with which an epsilon of `name` is compared."""
    return next(other for other in ACCOUNTANTS if other != name)


def _other(claim: Statement) -> float | None:
    other = other_accountant(claim.accountant)
    if ACCOUNTANTS[other].refusal(claim.history, claim.delta):
        return None
    return epsilon_of(claim.history, delta=claim.delta, relation=claim.relation, accountant=other)


def _independent(claim: Statement) -> float | None:
    kinds = {type(event) in CONCENTRATED for event in claim.history}
    if len(kinds) != 1 or claim.delta < 1e-12:
        return None  # nothing released, a mixture it cannot read, or below its resolution
    return estimate_epsilon(claim.history, delta=claim.delta, relation=claim.relation)


def _problems(
    claim: Statement, recomputed: float, other: float | None, independent: float | None
) -> list[str]:
    stated = claim.epsilon
    found = []
    # Too small is compared relatively, however small: a thousand such releases add up.
    low, high = recomputed * (1 - _SAME), recomputed * (1 + _SAME) + _ABSOLUTE * _SAME
    if not low <= stated <= high:
        found.append(
            f"epsilon is stated as {stated!r}, but its accountant ({claim.accountant}) "
            f"derives {round_up(recomputed, 6)}"
        )
    if other is not None:
        # PLD, the first, is the tighter of the two, up to its rounding on the finest grid.
        first = next(iter(ACCOUNTANTS))
        low, high = (stated, other) if claim.accountant == first else (other, stated)
        rounding = _ABSOLUTE + _GRID * math.sqrt(claim.steps)
        if low > high * (1 + _ESTIMATE) + rounding:
            found.append(
                f"epsilon is stated as {stated!r}, which the other accountant contradicts "
                f"({round_up(other, 6)})"
            )
    if independent is not None and stated < independent * (1 - _BELOW) - _ABSOLUTE:
        true_delta = delta_of(
            claim.history, epsilon=stated, relation=claim.relation, accountant=claim.accountant
        )
        found.append(
            f"epsilon is stated as {stated!r}, but an independent accountant finds "
            f"{independent:.6g}; at the stated epsilon delta would be {true_delta:.3g}"
        )
    return found


def read_statement(statement: Statement | str | Path) -> Statement:
    """Return the statement that is given as such, as JSON text or as a path."""
    if isinstance(statement, Statement):
        return statement
    if isinstance(statement, str) and statement.lstrip().startswith("{"):
        return Statement.from_json(statement)
    return Statement.from_json(read_foreign_text(statement))
