"""A canary in the steps of a private run: our own engine, noise and all, attacked from outside.

The run is a :class:`noisewise.training.PrivateRun`, known here only by what it can do, since
auditing stands below training. Its steps are taken with the very code that trains, on
synthetic records that the auditor chose, and the noisy gradients are read where the optimizer
reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noisewise import checks
from noisewise.auditing.attacks.training import Data
from noisewise.auditing.scores import Scores
from noisewise.privacy import ADD_REMOVE, unit_codes

__all__ = ["PrivateSteps", "private_steps"]

_CALIBRATION = 6

#: Inputs, targets and, in a run with units, the unit of every row.
Records = tuple[Tensor, ...]


@runtime_checkable
class PrivateSteps(Protocol):
    """What is asked of a private run."""

    plain_model: nn.Module
    resolved: Any
    plan: Any

    def step(self, x: Any, y: Any) -> None:
        """Take one private step on a batch."""
        ...


def private_steps(
    run: PrivateSteps,
    *,
    data: Data,
    canary: Data,
    units: Sequence[Any] | None = None,
    repeats: int = 500,
) -> Scores:
    """Scores of single steps of a run, many times with a canary in the batch and many without.

    The weights are put back after every step. The direction to look along is what the canary
    changes in the sum before noise, in units of the noise of each tensor, whatever the cause: its
    own contribution, or that of the others which it changes.

    Parameters
    ----------
    run : PrivateRun
        Made for the audit, with a plan that names a noise multiplier instead of an epsilon:
        an audit takes ``2 repeats`` steps, all of which are charged.
    data : (inputs, targets)
        The other records of the batch; synthetic, or public.
    canary : (inputs, targets)
        One record, with its leading dimension of 1; in a run with units, all rows of one unit, or
        as many as may take part in a step (``unit_rule="rows"``): a batch in which all of them
        were drawn.
    units : sequence, optional
        In a run with units: who each row of `data` belongs to. A whole unit comes and goes.
    repeats : int
        Steps in each world.
    """
    count = checks.integer("repeats", repeats, minimum=1)
    if getattr(run.plan, "epsilon", None) is not None:
        raise ValueError(
            f"an audit takes about {2 * count} steps of its own and charges them, which the "
            "budget of this run is not for. Make a twin of it: make_private(copy.deepcopy(model), "
            "..., plan.with_(epsilon=None, noise_multiplier=run.resolved.noise_multiplier)), "
            "and audit that; nothing was spent."
        )
    with_canary, others, nobody = _worlds(run, data, canary, units)
    seen = _Gradients(run)
    before, after = seen.silent(others), seen.silent(with_canary)
    noise = np.mean([seen.squares(nobody) for _ in range(_CALIBRATION)], axis=0)
    # A tensor that no record can move has no noise, and tells nothing.
    shift = after - before
    weights = np.divide(shift, noise, out=np.zeros_like(shift), where=noise > 0)
    if np.any((noise == 0) & (shift != 0)):
        raise ValueError("records move a tensor that has no noise at all: nothing is private here")
    far = float(weights @ shift) ** 0.5
    if far == 0.0 or not np.isfinite(far):
        raise ValueError(
            "the canary does not change the sum of a batch, so nothing can be learnt from it: "
            "choose a record with a large gradient at the weights of the run"
        )

    def scores(records: Records) -> NDArray[np.float64]:
        values = [float(weights @ (seen.noisy(records) - before)) / far for _ in range(count)]
        return np.asarray(values, dtype=np.float64)

    return Scores(
        scores(with_canary),
        scores(others),
        midpoint=far / 2,
        relation=ADD_REMOVE,
        observed="batch",
        threat_model=f"an adversary who chooses {'a record' if units is None else 'a unit'}, "
        "knows the rest of the batch and sees the noisy gradient of a step",
        assumptions=("every step of the run draws fresh noise",),
        rows=len(canary[0]),
    )


def _worlds(
    run: PrivateSteps, data: Data, canary: Data, units: Sequence[Any] | None
) -> tuple[Records, Records, Records]:
    """The batch with the canary, without it, and an empty one; with units where there are any."""
    whole = (torch.cat([data[0], canary[0]]), torch.cat([data[1], canary[1]]))
    if (getattr(run.resolved, "unit_rule", None) is None) != (units is None):
        raise ValueError(
            "a run with units is audited by whole units: give units= for the rows of data"
            if units is None
            else "this run protects single records, so there are no units to be audited"
        )
    most = getattr(run.resolved, "unit_rows", None)
    if most is not None and len(canary[0]) > most:
        raise ValueError(
            f"the canary has {len(canary[0])} rows, but of a unit at most {most} may take part in "
            f"a step of this run (unit_rows): give a canary of {most} rows"
        )
    if units is None:
        return whole, data, (data[0][:0], data[1][:0])
    known = torch.from_numpy(unit_codes(units, len(data[0])))
    one = torch.full((len(canary[0]),), len(known))
    return (
        (*whole, torch.cat([known, one])),
        (*data, known),
        (data[0][:0], data[1][:0], known[:0]),
    )


class _Gradients:
    """Gradients of a run at fixed weights, as one vector, times the expected batch size."""

    def __init__(self, run: PrivateSteps) -> None:
        self._run = run
        self._start = {n: v.detach().clone() for n, v in run.plain_model.state_dict().items()}
        named = run.plain_model.named_parameters()
        self._parameters = {n: p for n, p in named if p.requires_grad}

    def noisy(self, records: Records) -> NDArray[np.float64]:
        """The gradient of one private step, weights put back afterwards."""
        self._run.step(*records)
        found = {n: p.grad for n, p in self._parameters.items() if p.grad is not None}
        vector = self._vector(found) * float(self._run.resolved.batch_size)
        self._run.plain_model.load_state_dict(self._start)
        return vector

    def squares(self, records: Records) -> NDArray[np.float64]:
        """The mean square of each tensor's noise, spread over its entries."""
        rows = self.noisy(records)
        parts = np.split(rows, np.cumsum([p.numel() for p in self._parameters.values()])[:-1])
        return np.concatenate([np.full(part.size, np.mean(part**2)) for part in parts])

    def silent(self, records: Records) -> NDArray[np.float64]:
        """The sum before noise."""
        # The one thing that a run does not show in public, for good reason.
        engine = self._run._engine  # type: ignore[attr-defined]
        by_itself = getattr(self._run.resolved, "unit_rule", None) == "rows"
        bounded = engine.sum(*(records[:2] if by_itself else records))
        return self._vector(bounded.gradients)

    def _vector(self, gradients: Mapping[str, Tensor]) -> NDArray[np.float64]:
        parts = [
            gradients[name].detach().to("cpu", torch.float64).flatten()
            if name in gradients
            else torch.zeros(parameter.numel(), dtype=torch.float64)
            for name, parameter in self._parameters.items()
        ]
        return np.asarray(torch.cat(parts).numpy())
