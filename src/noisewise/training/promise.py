"""What a run may say about itself: the sentences of its statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from noisewise.errors import UnsoundError
from noisewise.privacy import History, Statement
from noisewise.privacy.statement import Preprocessing
from noisewise.training.records import MapRecords, Records
from noisewise.training.resolved import ResolvedPlan

__all__ = ["Circumstances", "state"]


@dataclass
class Circumstances:
    """How a run was used, as far as the run can see.

    Attributes
    ----------
    size_read : bool
        Whether the number of records was read from the data.
    caller_batches : bool
        Whether a step took a batch that the run's loader did not draw.
    skipped_batches : bool
        Whether a batch of the loader was not stepped on.
    metrics : bool
        Whether metrics on private records were shown.
    unproven : str
        What stands against the proof that records stay apart, if the user vouches for it.
    division : str
        What must be said about how records were divided among workers.
    workers : int
        How many there were.
    uneven : bool
        Whether the last bits of a record's numbers depend on its place in a batch.
    """

    size_read: bool = False
    caller_batches: bool = False
    skipped_batches: bool = False
    metrics: bool = False
    unproven: str = ""
    division: str = ""
    workers: int = 1
    uneven: bool = False


def state(
    resolved: ResolvedPlan,
    history: History,
    circumstances: Circumstances,
    *,
    randomness: str,
    records: Records | None,
    preprocessing: Preprocessing | None,
) -> Statement:
    """Derive the statement of a run."""
    estimator = resolved.plan.gradients
    require_sound(estimator)
    if preprocessing is not None:
        preprocessing.require_sound()
    return Statement.derive(
        history,
        delta=resolved.delta,
        mechanism=_mechanism(resolved),
        relation=resolved.plan.relation,
        accountant=resolved.plan.accountant,
        unit=resolved.plan.unit,
        sampler=_sampler(resolved, circumstances) if history else None,
        randomness=randomness,
        assumptions=_assumptions(resolved, circumstances, records, preprocessing),
    )


def require_sound(estimator: Any) -> None:
    """Raise if no proof bounds what the estimator lets one record do (contract, point 9)."""
    if getattr(estimator, "sound", True):
        return
    reason = getattr(estimator, "reason", "") or (
        "one record's contribution is not bounded by what the noise covers"
    )
    raise UnsoundError(
        f"no epsilon can be stated for {type(estimator).__name__}: {reason}. It is here to be "
        "studied. Use InputScaled, Factored or Clipped for a guarantee."
    )


def _mechanism(resolved: ResolvedPlan) -> str:
    estimator = resolved.plan.gradients
    shown = ""
    if dataclasses.is_dataclass(estimator):
        values = ", ".join(
            f"{item.name}={getattr(estimator, item.name)!r}"
            for item in dataclasses.fields(estimator)
            if item.repr
        )
        shown = f"({values})"
    return (
        f"noisy gradient descent: sums of gradients bounded by {type(estimator).__name__}{shown}, "
        f"Gaussian noise ({resolved.plan.noise} allocation), divided by "
        f"{resolved.batch_size:g}"
    )


def _sampler(resolved: ResolvedPlan, circumstances: Circumstances) -> str:
    if resolved.sample_rate == 1.0:
        return "none: accounted as if every record took part in every step"
    text = f"Poisson: each record independently, with probability {resolved.sample_rate:.6g}"
    if circumstances.caller_batches:
        return f"promised by the caller, who drew the batches: {text}"
    return text


def _assumptions(
    resolved: ResolvedPlan,
    circumstances: Circumstances,
    records: Records | None,
    preprocessing: Preprocessing | None,
) -> Iterator[str]:
    if resolved.size_used:
        how = "was read from the data and " if circumstances.size_read else ""
        yield (
            f"The number of records, {resolved.records}, {how}is treated as public: the sample "
            "rate, the number of steps, delta or the divisor follow from it."
        )
    if circumstances.uneven:
        yield (
            "On this machine the last bits of a record's gradient depend on its place in the "
            "batch. It is assumed that no record lies so close to a kink of the model or the loss "
            "that these bits change its gradient by more than the slack on the sensitivity."
        )
    if resolved.plan.delta is None:
        yield f"Delta was not given; it is 1/(10 n) rounded down to {resolved.delta:g}."
    if resolved.sample_rate < 1.0 and circumstances.caller_batches:
        yield (
            "The caller drew batches and promises that each record entered each of them "
            f"independently with probability {resolved.sample_rate:.6g}."
        )
    elif circumstances.caller_batches:
        yield "The caller drew batches and promises that no record was in one batch twice."
    if circumstances.caller_batches and circumstances.workers > 1:
        yield (
            f"The caller promises that no record was drawn by two of the {circumstances.workers} "
            "workers in one step."
        )
    if circumstances.division:
        yield circumstances.division
    if circumstances.skipped_batches:
        yield "The caller left out batches that were drawn, for reasons that are not private."
    yield (
        "What is published are weights after whole steps and what is computed from them; batches, "
        "gradients before noise and the loss on private records stay secret."
    )
    if circumstances.metrics:
        yield (
            "Metrics on private records that were shown during training are not covered; nobody "
            "but the data's keeper has seen them."
        )
    yield (
        "The weights before training, the plan and the hyperparameters were not chosen by looking "
        "at these records."
    )
    if preprocessing is not None:
        yield from preprocessing.assumptions
    else:
        yield "The records were turned into numbers by public constants only."
    if isinstance(records, MapRecords):
        yield "Item i of the dataset depends on record i alone, and so does its place in a batch."
    if circumstances.unproven:
        yield (
            "That the model and the loss keep records apart is assumed, not proven: "
            f"{circumstances.unproven}. Halves of every batch were compared with the whole, which "
            "is evidence and no proof; if it is false, so is epsilon."
        )
