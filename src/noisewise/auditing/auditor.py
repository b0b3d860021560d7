"""One call from a mechanism, a training function or scores to a verdict on a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor, nn

from noisewise import checks
from noisewise.auditing.attacks import (
    PrivateSteps,
    crowd_canaries,
    gradient_canaries,
    membership,
    one_run_losses,
    private_steps,
    run_canaries,
    stepwise_canaries,
    two_worlds,
)
from noisewise.auditing.bounds import (
    Bound,
    clopper_pearson,
    gaussian,
    joint_beta,
    looks_normal,
    normal_estimate,
    one_run,
    one_run_tradeoff,
)
from noisewise.auditing.bounds.thresholds import Threshold
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.result import AuditResult
from noisewise.auditing.scores import Scores
from noisewise.errors import RelationError
from noisewise.privacy import Relation, Statement

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ATTACKS", "METHODS", "audit"]

ATTACKS: dict[str, Callable[..., Scores]] = {
    "gradient-canaries": gradient_canaries,
    "crowd-canaries": crowd_canaries,
    "stepwise-canaries": stepwise_canaries,
    "run-canaries": run_canaries,
    "private-steps": private_steps,
    "two-worlds": two_worlds,
    "one-run": one_run_losses,
    "membership": membership,
}


class AttackOptions(TypedDict, total=False):
    """Arguments of the attacks; each takes its own."""

    canaries: Any
    canary: Any
    clip: float
    crowd: int
    data: Any
    init: Mapping[str, Tensor]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    loud: bool
    lr: float
    magnitude: float
    model_fn: Callable[[], nn.Module]
    noise_multiplier: float | None
    relation: Relation | str
    repeats: int
    sample_rate: float
    score: str
    seed: int
    settings: Mapping[str, Any]
    steps: int
    unit_rows: int
    units: Sequence[Any] | None


METHODS = (
    "auto",
    "gaussian",
    "clopper-pearson",
    "joint-beta",
    "one-run",
    "one-run-tradeoff",
    "normal-estimate",
)

_NEED_NOISE = ("gaussian", "one-run-tradeoff", "normal-estimate")
_NEED_INDEPENDENCE = ("gaussian", "clopper-pearson", "joint-beta", "normal-estimate")


def audit(
    target: Scores | PrivateSteps | Callable[..., Any],
    *,
    claimed: Statement | float | None,
    delta: float | None = None,
    attack: str | None = None,
    method: str = "auto",
    noise: NoiseModel | None = None,
    confidence: float = 0.95,
    threshold: Threshold = "all",
    **options: Unpack[AttackOptions],
) -> AuditResult:
    """Attack a mechanism and bound its epsilon from below.

    Parameters
    ----------
    target : Scores, PrivateRun, PrivateSum or Train
        Scores that exist already, or what `attack` attacks.
    claimed : Statement, float or None
        What is claimed. A statement also brings delta, the relation, the sampling
        rate, the number of steps and the kind of noise.
    delta : float, optional
        Needed unless `claimed` is a statement.
    attack : str, optional
        One of "gradient-canaries", "stepwise-canaries", "run-canaries" (for a
        :class:`~noisewise.auditing.PrivateSum`), "two-worlds", "one-run", "membership"
        (for a :class:`~noisewise.auditing.Train`), "private-steps" (for a run of
        :func:`noisewise.training.make_private`, where it is the default).
    method : str
        "gaussian" (sharp; the mechanism adds Gaussian noise), "clopper-pearson" (any
        mechanism), "joint-beta" (credible, not frequentist), "one-run" (any mechanism,
        canaries of one training), "one-run-tradeoff" (the same with Gaussian noise),
        "normal-estimate" (no guarantee, decides nothing). "auto" takes the sharpest
        that is valid: a noise model is used only if the claim is a statement about
        Gaussian noise or `noise` is given.
    noise : NoiseModel, optional
        Say that the mechanism adds Gaussian noise, at this sampling rate and for so
        many steps. Taken from a statement if it says so.
    confidence : float
        A correct mechanism is refuted with probability at most 1 - `confidence`. For
        a check that runs every night take 1 - 1e-6; it costs little.
    threshold : "all", "split" or float
        See :func:`noisewise.auditing.bounds.thresholds.rates`.
    **options
        Arguments of the attack.

    Returns
    -------
    AuditResult
        Its ``passed`` is False if the claim is refuted; ``raise_if_violated()`` raises.

    Examples
    --------
    >>> import torch
    >>> def step(gradients, *, seed):
    ...     norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
    ...     total = (gradients * (1 / norms).clamp(max=1)).sum(0)
    ...     return total + torch.randn(total.shape, generator=torch.Generator().manual_seed(seed))
    >>> result = audit(step, claimed=4.378, delta=1e-5, attack="gradient-canaries",
    ...                noise=NoiseModel(), clip=1.0)
    >>> result.passed, result.epsilon_lower_bound > 3.5
    (True, True)
    """
    checks.choice("method", method, METHODS)
    confidence = checks.fraction("confidence", confidence)
    delta = _delta(claimed, delta)
    epsilon = _claimed_epsilon(claimed)
    settings = {**_claimed_settings(attack, claimed), **options}
    _check_length(attack, settings, claimed, noise)
    scores = _scores(target, attack, settings)
    _require_same_change(claimed, scores)
    model = _model(claimed, noise, scores, delta)
    if method == "auto" and scores.observed == "batch" and not isinstance(claimed, Statement):
        _require_noise(model)
    chosen = _choose(method, scores, model)
    _check(chosen, scores, model, delta)
    _require_whole(claimed, scores, model)
    bound = _bound(chosen, scores, model, delta, confidence, threshold)
    return AuditResult(
        bound=bound,
        delta=delta,
        confidence=confidence,
        claimed_epsilon=epsilon,
        relation=scores.relation,
        threat_model=scores.threat_model,
        assumptions=tuple(dict.fromkeys((*scores.assumptions, *bound.assumptions))),
        scores=scores,
        estimate=_estimate(chosen, scores, model, delta, confidence),
        noise=model if chosen in _NEED_NOISE else None,
    )


def _require_same_change(claimed: Statement | float | None, scores: Scores) -> None:
    """Refuse to hold canaries against a claim about another change of the data."""
    if not isinstance(claimed, Statement):
        return
    if claimed.relation != scores.relation:
        raise RelationError(
            f"the claim holds under {claimed.relation}, the canaries were compared under "
            f"{scores.relation}: choose the attack's relation to match the claim"
        )
    if scores.rows > 1 and claimed.unit == "one record":
        raise RelationError(
            f"the claim is about one record, but a canary is a unit of {scores.rows} rows, of "
            "which it says nothing: attack it by single rows, or claim what is promised about "
            "such a unit, in a statement with unit='one patient' or the like"
        )


def _claimed_settings(attack: str | None, claimed: Statement | float | None) -> dict[str, Any]:
    """What an attack takes from a claim, unless told otherwise."""
    if not isinstance(claimed, Statement):
        return {}
    if attack == "stepwise-canaries":
        return {"noise_multiplier": claimed.noise_multiplier}
    if attack == "run-canaries" and claimed.sample_rate is not None:
        return {
            "noise_multiplier": claimed.noise_multiplier,
            "sample_rate": claimed.sample_rate,
            "steps": claimed.steps,
        }
    return {}


def _check_length(
    attack: str | None,
    options: dict[str, Any],
    claimed: Statement | float | None,
    noise: NoiseModel | None,
) -> None:
    """Several steps on all records are compared with a claim about just that, and no other."""
    length = options.get("steps", 1) if attack == "two-worlds" else 1
    if length == 1:
        return
    model = noise
    if model is None and isinstance(claimed, Statement):
        model = NoiseModel.of(claimed, "run")
    if model is None or (model.sample_rate, model.steps) != (1.0, length):
        raise ValueError(
            f"two-worlds takes {length} steps on all records, so the claim must be about {length} "
            "steps without sampling: give such a statement or noise=NoiseModel(1.0, "
            f"{length}), or leave steps out, and one step is composed as claimed"
        )


def _delta(claimed: Statement | float | None, delta: float | None) -> float:
    if isinstance(claimed, Statement):
        if delta is not None and delta != claimed.delta:
            raise ValueError(
                f"delta must be that of the statement, {claimed.delta!r}, got {delta!r}: leave it "
                "out"
            )
        return claimed.delta
    if delta is None:
        raise ValueError("delta must be given with a claim that is not a statement, got None")
    return checks.probability("delta", delta, zero=True, one=False)


def _claimed_epsilon(claimed: Statement | float | None) -> float | None:
    if claimed is None:
        return None
    if isinstance(claimed, Statement):
        return claimed.epsilon
    return checks.positive("claimed", claimed, zero=True)


def _scores(target: Any, attack: str | None, options: dict[str, Any]) -> Scores:
    if isinstance(target, Scores):
        if attack is not None or options:
            given = [*([] if attack is None else ["attack"]), *options]
            raise ValueError(f"scores exist already, so these do nothing: {', '.join(given)}")
        return target
    if isinstance(target, PrivateSteps) and not isinstance(target, nn.Module):
        checks.choice("attack", attack or "private-steps", ("private-steps",))
        return private_steps(target, **options)
    if not callable(target):
        raise TypeError(
            f"target must be Scores, a private run or a function to attack, got {target!r}"
        )
    if attack is None:
        raise ValueError(f"attack must be given for a function: one of {', '.join(ATTACKS)}")
    return ATTACKS[checks.choice("attack", attack, tuple(ATTACKS))](target, **options)


def _model(
    claimed: Statement | float | None, noise: NoiseModel | None, scores: Scores, delta: float
) -> NoiseModel | None:
    if noise is not None:
        if noise.relation != scores.relation:
            raise RelationError(
                f"the noise model is under {noise.relation}, the scores under {scores.relation}"
            )
        return NoiseModel(
            noise.sample_rate, noise.steps, scores.observed, noise.relation, noise.rows
        )
    if isinstance(claimed, Statement) and delta > 0.0:
        try:
            return NoiseModel.of(claimed, scores.observed)
        except ValueError:
            return None
    return None


def _require_noise(model: NoiseModel | None) -> None:
    if model is None:
        raise ValueError(
            "the attack chose the batches itself, so it cannot know how the claim accounts for "
            "sampling: pass noise=NoiseModel(sample_rate, steps) if Gaussian noise is added, or "
            "method='clopper-pearson' if the claim is about a step on all of the data"
        )


def _choose(method: str, scores: Scores, model: NoiseModel | None) -> str:
    if method != "auto":
        return method
    if scores.design == "one-run":
        return "one-run" if model is None else "one-run-tradeoff"
    return "clopper-pearson" if model is None else "gaussian"


def _check(method: str, scores: Scores, model: NoiseModel | None, delta: float) -> None:
    if method in _NEED_NOISE and model is None:
        raise ValueError(
            f"method {method!r} needs to know that the mechanism adds Gaussian noise: pass a "
            "statement that says so, or noise=NoiseModel(sample_rate, steps)"
        )
    if method in _NEED_NOISE and delta == 0.0:
        raise ValueError(f"method {method!r} needs delta > 0: Gaussian noise is never pure")
    if method in _NEED_INDEPENDENCE and scores.design == "one-run":
        raise ValueError(
            f"method {method!r} is not valid for scores of one training, whose canaries may "
            "influence each other: use 'one-run' or 'one-run-tradeoff', or, if you can show that "
            "they are independent, say so with design='independent'"
        )
    if method not in _NEED_NOISE and scores.observed == "batch" and not _whole(model):
        raise ValueError(
            f"method {method!r} cannot take sampling into account for scores of batches that the "
            "auditor chose: use method='gaussian', or an attack in which the mechanism samples"
        )


def _require_whole(
    claimed: Statement | float | None, scores: Scores, model: NoiseModel | None
) -> None:
    """Refuse to hold batches without sampling against a claim that counts on it."""
    if not isinstance(claimed, Statement) or scores.observed != "batch" or model is not None:
        return
    if any(event.secret_rates for event in claimed.history):
        raise ValueError(
            "the attack chose the batches itself, and the claim counts on secret sampling of more "
            "than one kind, so the scores say nothing against it: claim the kind of release that "
            "was attacked, or use an attack in which the mechanism samples"
        )


def _whole(model: NoiseModel | None) -> bool:
    """Whether the scores are about all that is claimed, and not about a part of it."""
    return model is None or model.sample_rate == 1.0


def _bound(
    method: str,
    scores: Scores,
    model: NoiseModel | None,
    delta: float,
    confidence: float,
    threshold: Threshold,
) -> Bound:
    level: dict[str, Any] = {"delta": delta, "confidence": confidence}
    if method == "gaussian":
        return gaussian(scores, model=model, threshold=threshold, **level)
    if method == "clopper-pearson":
        return clopper_pearson(scores, threshold=threshold, **level)
    if method == "joint-beta":
        return joint_beta(scores, threshold=None if threshold == "all" else threshold, **level)
    if method == "one-run":
        return one_run(scores, **level)
    if method == "one-run-tradeoff":
        return one_run_tradeoff(scores, model=model, **level)
    return normal_estimate(scores, model=model, **level)


def _estimate(
    method: str, scores: Scores, model: NoiseModel | None, delta: float, confidence: float
) -> Bound | None:
    """The normal estimate, where it means anything."""
    if method != "gaussian" or model is None or looks_normal(scores) is not None:
        return None
    if model.observed != "batch" and model.sample_rate < 1.0:
        return None
    return normal_estimate(scores, delta=delta, confidence=confidence, model=model)
