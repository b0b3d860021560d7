"""Choosing one of several candidates by a score, privately and exactly.

The two ways to choose, and why their laws are exact, are in :mod:`noisewise.release.choice`.
Proof: docs/proofs/mechanisms.md#selection.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noisewise import checks
from noisewise.mechanisms.additive import release_value
from noisewise.mechanisms.values import reals, sensitivity_in
from noisewise.privacy import Randomness, Relation, Sensitivity
from noisewise.release import (
    ExponentialChoice,
    LedgerOrPath,
    PermuteAndFlip,
    Release,
    one_vocabulary,
)

__all__ = ["exponential", "permute_and_flip"]

_ASSUMPTIONS = (
    "the list of candidates is public; only their scores depend on the data",
    "the sensitivity bounds the change of every score and does not depend on the data",
)


@one_vocabulary
def exponential(
    scores: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool = False,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
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
    relation, unit, seed, ledger
        As for :func:`noisewise.privacy.gaussian`.

    Returns
    -------
    Release
        The index of the chosen candidate and the statement.
    """
    return _choose(
        ExponentialChoice, scores, sensitivity, epsilon, monotonic, relation, unit, seed, ledger
    )


@one_vocabulary
def permute_and_flip(
    scores: Any,
    *,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool = False,
    relation: Relation | str | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
) -> Release:
    """Choose a candidate by permute-and-flip; parameters as for :func:`exponential`."""
    return _choose(
        PermuteAndFlip, scores, sensitivity, epsilon, monotonic, relation, unit, seed, ledger
    )


def _choose(
    way: type[ExponentialChoice] | type[PermuteAndFlip],
    scores: Any,
    sensitivity: float | Sensitivity,
    epsilon: float,
    monotonic: bool,
    relation: Relation | str | None,
    unit: str,
    seed: Randomness | int | None,
    ledger: LedgerOrPath,
) -> Release:
    bound = sensitivity_in("linf", sensitivity, relation)
    epsilon = checks.budget(epsilon)
    exact = reals(np.asarray(scores) if isinstance(scores, (list, tuple)) else scores)[0]
    if exact.ndim != 1 or exact.size == 0:
        raise ValueError(f"scores must be a non-empty vector, got shape {exact.shape}")
    return release_value(
        exact,
        lambda chosen: chosen,
        bound,
        way(epsilon, bound, monotonic),
        delta=0.0,
        unit=unit,
        seed=seed,
        ledger=ledger,
        assumptions=_ASSUMPTIONS,
    )
