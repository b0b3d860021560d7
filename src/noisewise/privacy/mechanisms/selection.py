"""Choosing one of several candidates by a score, privately and exactly.

* :func:`exponential` (McSherry and Talwar 2007; paper 004, Algorithm 4): candidate i
  with probability proportional to exp(epsilon s_i / (2 D)). Drawn by rejection: a
  uniform candidate is kept with probability exp(-epsilon (max - s_i) / (2 D)).
* :func:`permute_and_flip` (McKenna and Sheldon 2020): the same coins in a random order
  without return; never worse in expected score.

Both use coins of probability exp(-rational) drawn with integers only, so their law
is exact. The number of coins, hence the running time, is not protected.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from noisewise.privacy import _validate
from noisewise.privacy.discrete import bernoulli_exp
from noisewise.privacy.events import Pure
from noisewise.privacy.mechanisms.release import Release, bound_and_relation, reals
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.relation import Relation, Sensitivity
from noisewise.privacy.statement import Statement

__all__ = ["exponential", "permute_and_flip"]

_ASSUMPTIONS = (
    "the list of candidates is public; only their scores depend on the data",
    "the sensitivity bounds the change of every score and does not depend on the data",
)


def exponential(
    scores: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool = False,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Choose a candidate by the exponential mechanism.

    Parameters
    ----------
    scores : sequence, array or tensor of numbers
        One score for each candidate; higher is better.
    sensitivity : float or Sensitivity
        Largest change of any one score between neighbouring datasets.
    epsilon : float
        What the choice may cost.
    monotonic : bool
        Whether a record moves all scores in the same direction, as counts under
        add-remove do; then half the noise suffices.
    relation, unit, rng
        As for :func:`noisewise.privacy.gaussian`.

    Returns
    -------
    Release
        The index of the chosen candidate and the statement.
    """
    exponents, source, statement = _prepare(
        "exponential mechanism", scores, sensitivity, epsilon, monotonic, relation, unit, rng
    )
    while True:
        candidate = int(source.below(len(exponents)))
        if bernoulli_exp((), exponents[candidate], source):
            return Release(candidate, statement)


def permute_and_flip(
    scores: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool = False,
    relation: Relation | str | None = None,
    unit: str = "one record",
    rng: Randomness | int | None = None,
) -> Release:
    """Choose a candidate by permute-and-flip; parameters as for :func:`exponential`."""
    exponents, source, statement = _prepare(
        "permute-and-flip mechanism", scores, sensitivity, epsilon, monotonic, relation, unit, rng
    )
    remaining = list(range(len(exponents)))
    while True:
        # The best candidate's coin always shows heads, so the list never runs out.
        candidate = remaining.pop(int(source.below(len(remaining))))
        if bernoulli_exp((), exponents[candidate], source):
            return Release(candidate, statement)


def _prepare(
    mechanism: str,
    scores: Any,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool,
    relation: Relation | str | None,
    unit: str,
    rng: Randomness | int | None,
) -> tuple[list[Fraction], Randomness, Statement]:
    bound, relation = bound_and_relation(sensitivity, relation, "linf")
    epsilon = _validate.positive("epsilon", epsilon)
    exact = reals(np.asarray(scores) if isinstance(scores, (list, tuple)) else scores)[0]
    if exact.ndim != 1 or exact.size == 0:
        raise ValueError(f"scores must be a non-empty vector, got shape {exact.shape}")
    if monotonic and relation.name != "add-remove":
        raise ValueError(
            "monotonic must be False under replace-one: replacing a record is a removal and an "
            "addition, which move scores in opposite directions"
        )
    rate = Fraction(epsilon) / Fraction(bound) / (1 if monotonic else 2)
    best = Fraction(float(exact.max()))
    exponents = [(best - Fraction(float(score))) * rate for score in exact]
    source = resolve(rng)
    statement = Statement.derive(
        Pure(epsilon),
        delta=0.0,
        mechanism=mechanism,
        relation=relation,
        unit=unit,
        randomness=source.description,
        assumptions=_ASSUMPTIONS,
    )
    return exponents, source, statement
