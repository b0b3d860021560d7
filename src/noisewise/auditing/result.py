"""The outcome of an audit: a lower bound on epsilon beside the claim.

An audit can refute a claim. It can never confirm one: a bound below the claim says
only that this attack, with this many canaries, found nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.scores import Scores
from noisewise.errors import NoisewiseError
from noisewise.privacy import Relation

__all__ = ["AuditResult", "ViolatedClaimError"]


class ViolatedClaimError(NoisewiseError, RuntimeError):
    """An audit refuted a privacy claim."""


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on epsilon, what it rests on, and the claim it is held against.

    Attributes
    ----------
    bound : Bound
        The bound with its method, threshold and assumptions.
    delta, confidence : float
        The bound is on epsilon at this delta, at this level.
    claimed_epsilon : float or None
    relation : Relation
    threat_model : str
        What the adversary was allowed to see.
    assumptions : tuple of str
        All that the number rests on.
    scores : Scores
        The scores, for plots.
    estimate : Bound or None
        A sharper number without a guarantee, where the scores allow one.
    noise : NoiseModel or None
        The noise, sampling and number of steps that were taken for granted.
    """

    bound: Bound
    delta: float
    confidence: float
    claimed_epsilon: float | None
    relation: Relation
    threat_model: str
    assumptions: tuple[str, ...]
    scores: Scores = field(repr=False, compare=False)
    estimate: Bound | None = None
    noise: NoiseModel | None = None

    @property
    def epsilon_lower_bound(self) -> float:
        """Epsilon is at least this, at the stated level."""
        return self.bound.epsilon

    @property
    def largest_certifiable(self) -> float:
        """Largest bound that an attack without errors would have given here."""
        return self.bound.largest

    @property
    def method(self) -> str:
        """Name of the bound."""
        return self.bound.method

    @property
    def passed(self) -> bool | None:
        """False if the claim is refuted; None without a claim.

        Only a bound with a confidence level decides. A credible bound or an estimate above the
        claim is worth a second look, not a verdict: None as well.
        """
        if self.claimed_epsilon is None or self.bound.kind != "confidence":
            return None
        return self.epsilon_lower_bound <= self.claimed_epsilon

    @property
    def tightness(self) -> float | None:
        """Bound over claim: how much of the claimed epsilon the attack could exhibit."""
        if not self.claimed_epsilon:
            return None
        return self.epsilon_lower_bound / self.claimed_epsilon

    def raise_if_violated(self) -> None:
        """Raise :class:`ViolatedClaimError` if the claim is refuted."""
        if self.passed is False:
            raise ViolatedClaimError(
                f"epsilon is at least {_round_down(self.epsilon_lower_bound)} at delta "
                f"{self.delta:g} ({self._level}), but {self.claimed_epsilon:.4g} is claimed "
                f"({self.relation}; method {self.method}; {self.threat_model}). The mechanism "
                "does not do what was accounted for: compare its clipping, noise and sampling "
                "with the claim, for example with noisewise.debugging."
            )

    def __str__(self) -> str:
        claim = "none" if self.claimed_epsilon is None else f"epsilon {self.claimed_epsilon:.4g}"
        inside, outside = self.scores.counts
        rows = [
            ("verdict", self._verdict),
            ("claim", claim),
            ("level", self._level),
            ("method", self.method),
            ("thresholds", self.bound.rule),
            ("relation", f"{self.relation} ({self.relation.sentence})"),
            ("adversary", self.threat_model),
            ("canaries", f"{inside} scores in, {outside} out"),
            ("could certify", f"at most epsilon {_round_down(self.largest_certifiable)}"),
        ]
        if self.bound.noise_multiplier is not None:
            rows.append(("noise", f"multiplier at most {self.bound.noise_multiplier:.4g}"))
        if self.estimate is not None:
            text = f"epsilon about {_round_down(self.estimate.epsilon)} if the scores are normal"
            rows.append(("estimate", f"{text} (no guarantee)"))
        title = f"Audit: epsilon >= {_round_down(self.epsilon_lower_bound)} at delta {self.delta:g}"
        return "\n".join(
            [
                title,
                *(f"  {name:<14}{value}" for name, value in rows),
                "  assumptions",
                *(f"    - {text}" for text in self.assumptions or ("none beyond the above",)),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, without the scores."""
        inside, outside = self.scores.counts
        return {
            "format": "noisewise-audit",
            "version": 1,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "delta": self.delta,
            "confidence": self.confidence,
            "kind": self.bound.kind,
            "claimed_epsilon": self.claimed_epsilon,
            "passed": self.passed,
            "tightness": self.tightness,
            "largest_certifiable": _finite(self.largest_certifiable),
            "method": self.method,
            "threshold": self.bound.threshold,
            "threshold_rule": self.bound.rule,
            "noise_multiplier_upper_bound": _finite(self.bound.noise_multiplier),
            "estimated_epsilon": None if self.estimate is None else self.estimate.epsilon,
            "relation": self.relation.name,
            "threat_model": self.threat_model,
            "scores_inside": inside,
            "scores_outside": outside,
            "assumptions": list(self.assumptions),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the result as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def plot(self, path: str | Path) -> Path:
        """Draw both groups of scores and the attack's ROC curve; return the path."""
        from noisewise.auditing.plotting import draw

        return draw(self, Path(path))

    @property
    def _level(self) -> str:
        words = {"confidence": "confidence", "credible": "credibility", "estimate": "nominal"}
        return f"{100 * self.confidence:.6g} % {words[self.bound.kind]}"

    @property
    def _verdict(self) -> str:
        if self.passed is None and self.claimed_epsilon is not None:
            above = self.epsilon_lower_bound > self.claimed_epsilon
            status = {"credible": "a credible bound", "estimate": "an estimate"}[self.bound.kind]
            return f"none: {status} decides nothing, and lies {'above' if above else 'below'} it"
        if self.passed is None:
            return "nothing to decide"
        if self.passed:
            return "the claim is not refuted (which does not confirm it)"
        return "THE CLAIM IS REFUTED"


def _round_down(value: float, digits: int = 4) -> str:
    """Write a lower bound with few digits, never larger than it is."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.floor(value * scale * (1 + 1e-13)) / scale:.{digits}g}"


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
