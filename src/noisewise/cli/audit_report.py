"""The HTML report of ``noisewise audit``."""

from __future__ import annotations

import math
from pathlib import Path

from noisewise.auditing import AuditResult, audit_pictures
from noisewise.privacy import round_up
from noisewise.reports import Page

__all__ = ["write_report"]

#: What a number is that proves nothing by itself.
_KINDS = {
    "credible": "A credible bound: right on average, under what was assumed beforehand.",
    "estimate": "An estimate, not a bound.",
}
_NEXT = {
    False: [
        "Withdraw the claim: whoever relied on this epsilon must be told.",
        "Find the cause: noisewise debug looks at clipping, noise and sampling one by one.",
        "Repair, and audit again with new seeds.",
    ],
    True: [
        "Do not call the claim confirmed: this attack, with so many canaries, found nothing.",
        "If the largest certifiable epsilon is below the claim, take more canaries or repeats.",
        "Look for causes that no audit sees: noisewise debug.",
    ],
    None: [
        "Give a claim (--statement, or --epsilon and --delta) to have it judged.",
        "Use a bound with a confidence level; a credible one or an estimate decides nothing.",
    ],
}


def write_report(result: AuditResult, path: Path, *, source: str) -> Path:
    """Write what the attack proves, and whether the claim survives it.

    Parameters
    ----------
    result : AuditResult
    path : Path
    source : str
        What was audited.
    """
    page = Page("Audit", f"What an attack on {source} proves.")
    proven = result.bound.kind == "confidence"
    lower = f"epsilon {'≥' if proven else 'about'} {_down(result.epsilon_lower_bound)}"
    shown = f"At confidence {result.confidence:.6g}." if proven else _KINDS[result.bound.kind]
    most = result.largest_certifiable
    claim = result.claimed_epsilon
    large, mood = {
        False: ("the claim is false", "bad"),
        True: ("not refuted", "good"),
        None: ("nothing decided", "unsure"),
    }[result.passed]
    said = "Nothing was claimed." if claim is None else f"Claimed: epsilon {round_up(claim)}"
    page.answer(
        (
            "Verdict",
            large,
            [f"{said}, delta {result.delta:g}, {result.relation.sentence}."],
        ),
        (
            "What was shown",
            lower,
            [
                shown,
                *(
                    [f"The most that this attack could have shown is {_down(most)}."]
                    if math.isfinite(most)
                    else []
                ),
            ],
        ),
        mood=mood,  # type: ignore[arg-type]
        steps=_NEXT[result.passed][0 if result.passed is not None or claim is None else 1 :],
    )
    page.heading("What the attacker sees")
    scores, curve = audit_pictures(result)
    page.figures(
        (scores, "Scores of canaries that were in, and of those that were not"),
        (
            curve,
            "How often the attack is right against how often it is wrong, and the most that the "
            "claim allows",
        ),
    )
    inside, outside = result.scores.counts
    page.heading("How it was measured").table(
        ("", ""),
        [
            ("method", result.method),
            ("threshold", result.bound.rule),
            ("adversary", result.threat_model),
            ("scores of canaries in", inside),
            ("scores of canaries out", outside),
        ],
        words=True,
    )
    page.heading("Assumptions").code("\n".join(result.assumptions or ("none beyond the above",)))
    return page.reproduce().write(path)


def _down(value: float) -> str:
    """Write a lower bound, never larger than it is."""
    return f"{max(0.0, value - 5e-4):.3f}"
