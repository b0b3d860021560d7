"""What a run may say about itself: the sentences of its statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from noisewise.errors import UnsoundError
from noisewise.privacy import POISSON_SAMPLING, Preprocessing, Relation, Statement
from noisewise.release import FLOATING_POINT, ONE_ROW, Steps, promise_of
from noisewise.training.records import MapRecords, Records
from noisewise.training.resolved import ResolvedPlan
from noisewise.training.streamed import Streamed

__all__ = ["Circumstances", "assumptions", "require_sound", "state"]


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
    resumed : bool
        Whether the run was continued from a checkpoint, which holds nothing of units.
    """

    size_read: bool = False
    caller_batches: bool = False
    skipped_batches: bool = False
    metrics: bool = False
    unproven: str = ""
    division: str = ""
    workers: int = 1
    resumed: bool = False


def state(
    resolved: ResolvedPlan,
    account: Steps,
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
    return promise_of(
        account,
        delta=resolved.delta,
        mechanism=_mechanism(resolved),
        relation=Relation.of(resolved.plan.relation),
        accountant=resolved.plan.accountant,
        unit=resolved.plan.unit,
        sampler=_sampler(resolved, circumstances),
        randomness=randomness,
        assumptions=assumptions(resolved, circumstances, records, preprocessing),
    ).state()


def assumptions(
    resolved: ResolvedPlan,
    circumstances: Circumstances,
    records: Records | None,
    preprocessing: Preprocessing | None,
) -> tuple[str, ...]:
    """Return what must hold for a promise about a run."""
    if preprocessing is not None:
        preprocessing.require_sound()
    return tuple(_assumptions(resolved, circumstances, records, preprocessing))


def require_sound(estimator: Any) -> None:
    """Raise if no proof bounds what the estimator lets one record do.

    docs/proofs/contract.md#proof.
    """
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
        f"noisy gradient descent: sums of gradients{_of_units(resolved)} bounded by "
        f"{type(estimator).__name__}{shown}, "
        f"Gaussian noise ({resolved.plan.noise} allocation), divided by "
        f"{resolved.batch_size:g}"
    )


def _drawn(resolved: ResolvedPlan) -> str:
    most = resolved.plan.unit_rows
    rows = f"row, of the at most {most} of its unit that may ever be drawn in that step,"
    return {None: "record", "units": "unit with its rows", "rows": rows}[resolved.unit_rule]


def _of_units(resolved: ResolvedPlan) -> str:
    """Whose gradients, where a unit has several rows."""
    most = resolved.plan.unit_rows
    if resolved.unit_rule == "units":
        which = "all its rows" if most is None else f"at most {most} of its rows, drawn by chance"
        return f" of units, each the mean over {which},"
    if resolved.unit_rule == "rows":
        return f" of rows, at most {most} of each unit, chosen once by chance,"
    return ""


def _sampler(resolved: ResolvedPlan, circumstances: Circumstances) -> str:
    if resolved.sample_rate == 1.0:
        return "none: accounted as if every record took part in every step"
    kind = {None: "record", "units": "unit", "rows": "row"}[resolved.unit_rule]
    text = f"{POISSON_SAMPLING[kind]}{resolved.sample_rate:.6g}"
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
            f"The number of {'records' if resolved.unit_rule is None else 'units'}, "
            f"{resolved.records}, {how}is treated as public: the sample "
            "rate, the number of steps, delta or the divisor follow from it."
        )
    if resolved.unit_rule is not None:
        yield "All rows of a unit carry its identifier, and those of no other unit do."
        if circumstances.resumed:
            yield "The run was continued from a checkpoint, with the same units as before."
    elif resolved.plan.unit != ONE_ROW.unit:
        yield f"No units were given: each row is all that there is of {resolved.plan.unit}."
    if resolved.plan.delta is None:
        yield f"Delta was not given; it is 1/(10 n) rounded down to {resolved.delta:g}."
    if circumstances.caller_batches:
        yield from _promised_by_the_caller(resolved, circumstances.workers)
    if circumstances.division:
        yield circumstances.division
    if circumstances.skipped_batches:
        yield "The caller left out batches that were drawn, for reasons that are not private."
    yield (
        "What is published are weights after whole steps and what is computed from them; batches, "
        "gradients before noise and the loss on private records stay secret, and the training "
        "program itself carries nothing of them into weights, state or settings."
    )
    yield f"{FLOATING_POINT[0].upper()}{FLOATING_POINT[1:]}."
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
    if isinstance(records, Streamed):
        yield (
            "Every pass over the stream gives each record once and no more than "
            f"{len(records)} in all, and an item depends on its record alone."
        )
    elif isinstance(records, MapRecords):
        yield "Item i of the dataset depends on record i alone, and so does its place in a batch."
    if circumstances.unproven:
        yield (
            "That the model and the loss keep records apart is assumed, not proven: "
            f"{circumstances.unproven}. Halves of every batch were compared with the whole, which "
            "is evidence and no proof; if it is false, so is epsilon."
        )


def _promised_by_the_caller(resolved: ResolvedPlan, workers: int) -> Iterator[str]:
    """Return what whoever drew the batches must have done."""
    if resolved.sample_rate < 1.0:
        yield (
            f"The caller drew batches and promises that each {_drawn(resolved)} entered each of "
            f"them independently with probability {resolved.sample_rate:.6g}."
        )
    else:
        yield (
            f"The caller drew batches and promises that no {_drawn(resolved)} was in one batch "
            "twice, and that whether one was in it did not depend on who else was."
        )
    yield (
        "Every row of these batches was computed from its own record alone: none is a mixture of "
        "records (mixup), or was changed by statistics of the batch."
    )
    if workers > 1:
        yield (
            f"The caller promises that no {_drawn(resolved)} was drawn by two of the "
            f"{workers} workers in one step."
        )
    yield (
        "The caller put the records of every batch into an order drawn at random, on which the "
        "bound on rounding rests."
    )
