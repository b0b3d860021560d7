"""What is summed over units, and how far one unit can move the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noisewise.errors import RelationError, UnsoundError
from noisewise.privacy import History, Relation, Sensitivity

if TYPE_CHECKING:
    from noisewise.release.noise import Noise

__all__ = ["Query"]


@dataclass(frozen=True, eq=False)
class Query:
    """A function of records whose change by one unit is bounded.

    Parameters
    ----------
    measure : callable
        From the records that one party holds to their exact sums. Additive: the sums of all
        records are the sum over any division of them.
    sensitivity : tuple of Sensitivity
        How far one unit moves the sums: one for each group of numbers that has noise of its own,
        all under one relation.
    what : str
        In words, for the statement and the ledger.
    unit : str
        What one record stands for.
    assumptions : tuple of str
        What must hold for the bound and cannot be checked here.
    unit_rows : int, optional
        How many rows of a unit count: so many times what one row does is what moves the sums.

    Examples
    --------
    >>> ages = Query.of(lambda rows: sum(rows), Sensitivity(120.0), "sum of ages")
    >>> ages.relation.name, ages.measure([30, 40])
    ('add-remove', 70)
    """

    measure: Callable[[Any], Any]
    sensitivity: tuple[Sensitivity, ...]
    what: str
    unit: str = "one record"
    assumptions: tuple[str, ...] = ()
    unit_rows: int | None = None

    def __post_init__(self) -> None:
        if not self.sensitivity:
            raise ValueError("a query has at least one sensitivity, got none")
        if any(part.relation != self.relation for part in self.sensitivity[1:]):
            raise RelationError(
                "the sensitivities of a query hold under different relations: "
                + ", ".join(map(str, self.sensitivity))
            )

    @classmethod
    def of(
        cls,
        measure: Callable[[Any], Any],
        sensitivity: Sensitivity | Iterable[Sensitivity],
        what: str,
        *,
        unit: str = "one record",
        assumptions: Iterable[str] = (),
        unit_rows: int | None = None,
    ) -> Query:
        """Return a query; a single sensitivity stands for all numbers together."""
        parts = (sensitivity,) if isinstance(sensitivity, Sensitivity) else tuple(sensitivity)
        return cls(measure, parts, what, unit, tuple(assumptions), unit_rows)

    @property
    def relation(self) -> Relation:
        """Which datasets are neighbours."""
        return self.sensitivity[0].relation

    def require_rows(self, history: History) -> None:
        """Raise unless what is charged says of how many rows of a unit it is the cost."""
        told = {getattr(part, "rows", None) for event in history for part in event.parts}
        if self.unit_rows is not None and told != {self.unit_rows}:
            raise UnsoundError(
                f"{self.what or 'this query'} counts up to {self.unit_rows} rows of a unit, and "
                "what is charged for it does not say so: state the cost by rows (per_row). Nothing "
                "was charged."
            )

    def require(self, noise: Noise) -> None:
        """Raise unless `noise` was planned for at least the change that one unit makes here."""
        planned = noise.sensitivity
        if planned is self.sensitivity:
            return  # as at every step of a training
        if any(part.relation != self.relation for part in planned):
            raise RelationError(
                f"{self.what or 'this query'} moves by what one unit does under {self.relation}, "
                f"but its noise was planned for {planned[0].relation}: plan it for the same "
                "relation. Nothing was charged."
            )
        enough = len(planned) == len(self.sensitivity) and all(
            mine.norm == other.norm and mine.value <= other.value
            for mine, other in zip(self.sensitivity, planned, strict=False)
        )
        if not enough:
            raise UnsoundError(
                f"one unit moves {self.what or 'this query'} by up to "
                f"{', '.join(map(str, self.sensitivity))}, but its noise was planned for "
                f"{', '.join(map(str, planned))}: plan noise for this query. Nothing was charged."
            )
