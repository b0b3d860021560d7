"""Which datasets count as neighbours, and how far a result may move between them.

A :class:`Sensitivity` is a number that carries its norm and its :class:`Relation`. Adding
sensitivities that hold under different relations is an error, because the sum would be true
under neither (docs/proofs/contract.md#relation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from noisewise import checks
from noisewise.errors import RelationError

__all__ = ["ADD_REMOVE", "REPLACE_ONE", "Norm", "Relation", "Sensitivity"]

Norm = Literal["l1", "l2", "linf"]


@dataclass(frozen=True)
class Relation:
    """When two datasets are neighbours.

    Parameters
    ----------
    name : {"add-remove", "replace-one"}
        `add-remove`: one has exactly one record more than the other, so the
        number of records is private. `replace-one`: both have the same number
        of records and differ in one of them, so the number may be public.
        "replace" is accepted for "replace-one".

    Examples
    --------
    >>> Relation("add-remove").sum_factor
    1
    >>> Relation("replace-one").sum_factor
    2
    """

    name: str

    def __post_init__(self) -> None:
        name = "replace-one" if self.name == "replace" else self.name
        checks.choice("relation", name, ("add-remove", "replace-one"))
        object.__setattr__(self, "name", name)

    @classmethod
    def of(cls, value: Relation | str) -> Relation:
        """Return `value` itself, or the relation of that name."""
        return value if isinstance(value, Relation) else cls(value)

    @property
    def sum_factor(self) -> int:
        """By how many times one record's largest contribution a sum may move."""
        return 1 if self.name == "add-remove" else 2

    @property
    def count_is_public(self) -> bool:
        """Whether neighbours have the same number of records."""
        return self.name == "replace-one"

    @property
    def sentence(self) -> str:
        """The relation in words, for people who read a statement."""
        if self.name == "add-remove":
            return "one record added or removed"
        return "one record replaced by any other"

    def sentence_of(self, unit: str, named: bool = False) -> str:
        """The relation in words; of another unit than one record, what happens to one unit."""
        if unit == "one record":
            return self.sentence
        return self.sentence.replace("one record ", "one unit " if named else "")

    def __str__(self) -> str:
        return self.name


ADD_REMOVE = Relation("add-remove")
REPLACE_ONE = Relation("replace-one")


@dataclass(frozen=True)
class Sensitivity:
    """How far a result may move between neighbouring datasets.

    Parameters
    ----------
    value : float
        Upper bound of the distance, >= 0.
    norm : {"l1", "l2", "linf"}
        The norm in which the distance is measured.
    relation : Relation or str
        The relation under which the bound holds.

    Examples
    --------
    >>> one = Sensitivity.of_sum(1.0, relation="add-remove")
    >>> (one * 3 + one).value
    4.0
    >>> Sensitivity.concatenate([one, one]).value == 2 ** 0.5
    True
    """

    value: float
    norm: Norm = "l2"
    relation: Relation = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", checks.positive("sensitivity", self.value, zero=True))
        checks.choice("norm", self.norm, ("l1", "l2", "linf"))
        object.__setattr__(self, "relation", Relation.of(self.relation))

    @classmethod
    def of_sum(
        cls, bound: float, norm: Norm = "l2", relation: Relation | str = ADD_REMOVE
    ) -> Sensitivity:
        """Sensitivity of a sum in which each record contributes at most `bound`."""
        relation = Relation.of(relation)
        bound = checks.positive("bound", bound, zero=True)
        return cls(relation.sum_factor * bound, norm, relation)

    @classmethod
    def concatenate(cls, parts: Iterable[Sensitivity]) -> Sensitivity:
        """Sensitivity of several results released together as one vector."""
        group = list(parts)
        if not group:
            raise ValueError("parts must hold at least one sensitivity, got none")
        for part in group[1:]:
            group[0]._check_same(part)
        values = [part.value for part in group]
        joined = {"l1": math.fsum(values), "l2": math.hypot(*values), "linf": max(values)}
        return replace(group[0], value=joined[group[0].norm])

    def __add__(self, other: Sensitivity) -> Sensitivity:
        """Sensitivity of the sum of two results (triangle inequality)."""
        if not isinstance(other, Sensitivity):
            return NotImplemented
        self._check_same(other)
        return replace(self, value=self.value + other.value)

    def __mul__(self, factor: float) -> Sensitivity:
        """Sensitivity of a result that is multiplied by a public constant."""
        return replace(self, value=abs(checks.finite("factor", factor)) * self.value)

    __rmul__ = __mul__

    def for_group(self, size: int) -> Sensitivity:
        """Sensitivity towards `size` records that change at once."""
        return self * checks.integer("size", size, minimum=1)

    def __str__(self) -> str:
        return f"{self.value:.6g} ({self.norm}, {self.relation})"

    def _check_same(self, other: Sensitivity) -> None:
        if self.relation != other.relation:
            raise RelationError(
                f"sensitivities under different relations cannot be combined: {self} and {other}. "
                "State both under one relation first: a sum moves twice as far under "
                "replace-one as under add-remove."
            )
        if self.norm != other.norm:
            raise ValueError(f"sensitivities in different norms: {self} and {other}")
