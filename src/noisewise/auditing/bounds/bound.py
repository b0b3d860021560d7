"""What every bound returns: a number, how sure it is, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Bound"]

#: confidence: fails with at most the stated probability, whatever the truth.
#: credible: a Bayesian statement, right on average over the prior; no promise for one truth.
#: estimate: no promise; the scores must follow the assumed distribution.
KINDS = ("confidence", "credible", "estimate")


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon.

    Attributes
    ----------
    epsilon : float
        The bound, >= 0.
    largest : float
        What the same method would have returned for as many canaries and an attack
        that never errs. A claim above it cannot be refuted by this audit.
    method : str
    kind : {"confidence", "credible", "estimate"}
        See :data:`KINDS`.
    threshold : float or None
        Score from which on the attack says "in", where the bound was attained.
    noise_multiplier : float or None
        Upper bound on the noise multiplier, for methods that go through one.
    rule : str
        How thresholds or guesses were chosen, in words.
    assumptions : tuple of str
        What the number rests on beyond fair coins and honest scores.
    """

    epsilon: float
    largest: float
    method: str
    kind: str
    threshold: float | None = None
    noise_multiplier: float | None = None
    rule: str = ""
    assumptions: tuple[str, ...] = ()
