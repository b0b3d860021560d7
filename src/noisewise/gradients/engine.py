"""The engine: `bounded_sum`, and sums within a training loop of the user's own.

``bounded_sum`` is the contract that everybody tests against. `GradientEngine` adds to
:class:`noisewise.gradients.summation.Summation` the four moments of a step that a user writes:
the forward pass, the loss, its backward, and the collection of what arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.gradients.batches import count_records, leading
from noisewise.gradients.combinations import PerLayer, Schedule
from noisewise.gradients.estimators import Estimator
from noisewise.gradients.open_batch import OpenBatch
from noisewise.gradients.places import by_content
from noisewise.gradients.sizing import PIECE
from noisewise.gradients.summation import Summation
from noisewise.gradients.sums import BoundedSum
from noisewise.gradients.unit_places import UnitPlaces, units_by_content
from noisewise.gradients.units import WITHIN
from noisewise.privacy import unit_codes

__all__ = ["GradientEngine", "bounded_sum"]


def bounded_sum(
    model: nn.Module,
    loss: Any,
    x: Any,
    y: Any,
    gradients: Estimator | PerLayer | Schedule,
    units: Any = None,
    *,
    within: str = "mean",
    views: int = 1,
    chunk: int = PIECE,
) -> BoundedSum:
    """Sum the records' gradients, each bounded by an estimator. No noise is added.

    Parameters
    ----------
    model : Module
        Takes records along the first axis of its input. Left as it is.
    loss : loss module or callable
        A torch loss, read per record whatever its reduction, or a function
        ``(output, target) -> one loss per record``.
    x : Tensor, tuple or dict
        A batch; a tuple is passed as several arguments, a dict by name.
    y : Tensor or any structure of tensors
        Targets, records along the first axis.
    gradients : estimator
        `Clipped`, `Factored`, `InputScaled`, `Propagated`, `PerLayer`, ...
    units : sequence, optional
        The unit that each row belongs to (a patient of several visits), by identifiers of any
        hashable type. Rows of one unit give one contribution, which is bounded as one.
    within : {"mean", "sum"}
        What the gradients of a unit's rows become before they are bounded. Estimators with
        propagated bounds bound every row, and know the mean alone.
    views : int
        Augmentation multiplicity K: x then has shape (records, K, ...), and the gradients of
        a record's views are averaged before they are bounded.
    chunk : int
        Number of records that are processed at a time; the last ones are filled up to it with rows
        that count nothing. So model and loss always meet the same number of records, and cannot
        tell how many the batch has: a loss divided by ``len(y)`` is harmless.

    Returns
    -------
    BoundedSum
        Groups in a fixed order, each with sums of gradients and its sensitivity.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from noisewise.gradients import Clipped
    >>> model = nn.Linear(3, 2)
    >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
    >>> result = bounded_sum(model, nn.CrossEntropyLoss(), x, y, Clipped(1.0))
    >>> result.groups[0].names, result.groups[0].sensitivity
    (('weight', 'bias'), 1.001)
    """
    chunk = checks.integer("chunk", chunk, minimum=1)
    if units is None:
        return _InPlace(model, loss, gradients, views=views, chunk=chunk).sum(x, y)
    codes = torch.from_numpy(unit_codes(units, count_records(x, y)))
    checks.choice("within", within, WITHIN)
    engine = _InPlace(model, loss, gradients, views=views, chunk=chunk, within=within)
    return engine.sum(x, y, codes)


class GradientEngine(Summation):
    """Bounded sums of one model, batch after batch, at once or within a loop.

    Parameters as of `bounded_sum`.

    Attributes
    ----------
    progress : float
        Fraction of training done, for `Schedule`.
    """

    _open: OpenBatch | None = None

    def forward(self, x: Any, units: Tensor | None = None) -> Any:
        """Open a batch and run the model; `losses`, backward and `collect` follow.

        What is returned is cut off from the model: only the loss that `losses` returns leads back
        into it, so nothing else can.
        """
        if self._open is not None:
            raise RuntimeError(
                "a batch is open that was not collected: call backward and the optimizer's step "
                "before the next batch, or discard() it"
            )
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                raise RuntimeError(
                    f'the parameter "{name}" already has a gradient: call optimizer.zero_grad() '
                    "before the batch"
                )
        self.whole = x, None
        limits = self.prepared(x)
        if not self._attached:
            self.attach()
        batch = OpenBatch(self, x, limits, self._codes(units, leading(x)))
        output = batch.forward()
        self._open = batch
        return output

    def losses(self, output: Any, y: Any) -> Tensor:
        """Mean loss of the open batch, whose backward seeds every record with exactly one."""
        if self._open is None:
            raise RuntimeError("no batch is open: call the model first")
        return self._open.loss(output, y)

    def collect(self) -> BoundedSum:
        """Close the open batch and return its bounded sum."""
        if self._open is None:
            raise RuntimeError("no batch is open: call the model and backward first")
        batch, self._open = self._open, None
        return batch.collect()

    def discard(self) -> None:
        """Close an open batch without using it."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def is_open(self) -> bool:
        """Whether a batch is open."""
        return self._open is not None

    @property
    def has_arrived(self) -> bool:
        """Whether gradients of the open batch have arrived (backward was called)."""
        return self._open is not None and self._open.arrived

    def pull_back(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take gradients of effective weights back to the raw parameters.

        Free of charge: docs/proofs/layers.md#effective.
        """
        result = dict(gradients)
        for name, parameter in self.parameters.items():
            owner = self.interception.owners.get(id(parameter))
            local = name.rpartition(".")[2]
            if local == "weight" and hasattr(owner, "pull_back") and name in result:
                result[name] = owner.pull_back(result[name])  # type: ignore[union-attr,operator]
        return result


class _InPlace(GradientEngine):
    """Sums of batches in an order that the caller chose, which are to be compared.

    A slot of one's own follows from the record itself, so that it is the same in both.
    """

    def _places(self, x: Any, y: Any, records: int, size: int) -> list[Tensor]:
        if self.own_places:
            return by_content(x, y, records, size)
        return super()._places(x, y, records, size)

    def _unit_places(self, codes: Tensor, size: int, x: Any, y: Any) -> Iterator[UnitPlaces]:
        if self.own_places:
            return units_by_content(codes, size, x, y)
        return super()._unit_places(codes, size, x, y)
