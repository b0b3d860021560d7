"""Per-record gradients by batches of one, with the random draws of the whole batch.

A run of the whole batch is recorded: every random operation's result, in order. The run of one
record alone then gets, in place of fresh draws, the part that was that record's: the axis is the
one along which the whole is as many times longer as there are records, and whether the records
lie outside (B*T) or inside (T*B) a merged axis is tried until the record's loss is the one it had
in the batch. Slow, and never optimised: nothing here knows how a gradient is bounded.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.gradients import piece
from noisewise.gradients.runner import Runner

AGREEMENT = 1e-4  # of a record's loss alone and in the batch, relative


# ------------------------------------------------------------------ one batch, one record
def record_losses(loss: Any) -> Callable[[Any, Any], Tensor]:
    """One loss per record, of a torch loss or a function that returns them."""
    if not isinstance(loss, nn.Module):
        return loss
    plain = copy.copy(loss)
    plain.reduction = "none"

    def losses(output: Any, target: Any) -> Tensor:
        values = plain(output, target)
        return values.flatten(1).mean(1) if values.dim() > 1 else values

    return losses


def call(model: nn.Module, x: Any) -> Any:
    """Hand a batch to a model: a dictionary by name, a tuple as several arguments."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def rows(values: Any, records: Sequence[int]) -> Any:
    """The batch of some records only."""
    chosen = torch.tensor(list(records), dtype=torch.long)
    return pytree.tree_map_only(Tensor, lambda t: t.index_select(0, chosen), values)


def size_of(x: Any) -> int:
    """How many records a batch has."""
    return next(t.shape[0] for t in pytree.tree_leaves(x) if isinstance(t, Tensor))


# ------------------------------------------------------------------ random draws
@dataclass
class Draw:
    """The result of one random operation on the whole batch.

    ``axis`` holds the records, ``unit`` entries each; no axis: one draw for all records.
    """

    name: str
    value: Tensor
    axis: int | None = None
    unit: int = 1
    inside: bool = False

    def part(self, shape: torch.Size, records: Sequence[int], total: int) -> Tensor:
        """What belongs to some records; rows beyond them (padding) repeat their draws."""
        if self.axis is None:
            assert shape == self.value.shape, f"{self.name}: {tuple(shape)} was not drawn"
            return self.value
        count, rest = divmod(shape[self.axis], self.unit)
        assert rest == 0, f"{self.name}: {tuple(shape)} holds no whole number of records"
        chosen = torch.tensor([records[i % len(records)] for i in range(count)])
        split = (self.unit, total) if self.inside else (total, self.unit)
        whole = self.value.unflatten(self.axis, split)
        part = whole.index_select(self.axis + self.inside, chosen).flatten(self.axis, self.axis + 1)
        assert part.shape == shape, f"{self.name}: {tuple(shape)} asked, {tuple(part.shape)} there"
        return part

    def moved(self, shape: torch.Size, records: Sequence[int], total: int) -> Tensor:
        """The same for who keeps the axes in another order, or the records under vmap."""
        if self.axis is None:
            if shape[1:] == self.value.shape != shape:  # one copy for every record
                return self.value.expand(shape)
            return self.part(shape, records, total)
        own = list(self.value.shape)
        if len(shape) == len(own):
            # As many rows as there are records, or more: a piece that is filled up.
            for size in (self.unit * len(records), *shape):
                own[self.axis] = size
                for order in itertools.permutations(range(len(own))):
                    if tuple(own[a] for a in order) == tuple(shape) and size % self.unit == 0:
                        return self.part(torch.Size(own), records, total).permute(order)
            return self.part(shape, records, total)
        own[self.axis] = self.unit * len(records)
        if shape[:1] == (len(records),) and shape.numel() == torch.Size(own).numel():
            own[self.axis] = self.unit  # vmap: one record's shape behind an axis of records
            each = [self.part(torch.Size(own), [record], total) for record in records]
            return torch.stack(each).reshape(shape)
        return self.part(shape, records, total)

    def locate(self, alone: torch.Size, total: int) -> None:
        """Find the axis of the records, from the shape that one record alone asks for."""
        if alone == self.value.shape:
            return
        differing = [
            a for a, (s, f) in enumerate(zip(alone, self.value.shape, strict=False)) if s != f
        ]
        assert (len(alone), len(differing)) == (self.value.dim(), 1), (
            f"{self.name} draws {tuple(self.value.shape)} for {total} records and "
            f"{tuple(alone)} for one: no axis holds the records"
        )
        self.axis, self.unit = differing[0], alone[differing[0]]
        assert self.value.shape[self.axis] == total * self.unit, self.name


@dataclass
class Draws:
    """All draws of one run, forward and backward, in order; those outside torch apart."""

    records: int
    draws: list[Draw] = field(default_factory=list)
    host: list[Any] = field(default_factory=list)
    host_functions: tuple[str, ...] = ()


def _family(name: str) -> str:
    """aten.bernoulli_.float and aten.bernoulli.p draw the same."""
    return name.split(".")[1].rstrip("_")


def _is_random(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    if any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
        return False  # somebody's own generator, not the model's
    if "rrelu" in function.__name__ and not args[4]:
        return False  # in evaluation mode: one slope
    if "attention" in function.__name__:  # fused, random only if it drops something
        position = [a.name for a in function._schema.arguments].index("dropout_p")
        rate = kwargs.get("dropout_p", args[position] if position < len(args) else 0.0)
        assert rate == 0, f"{function} hides its draws: use SDPBackend.MATH in both runs"
        return False
    return True


class Recording(TorchDispatchMode):
    """Keep the result of every random operation."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if _is_random(function, args, kwargs):
            name = str(function)
            drawn = result
            if "native_dropout" in name:
                drawn = result[1]
            elif "rrelu" in name:
                drawn = args[1]
            self.draws.draws.append(Draw(name, drawn.detach().clone()))
        return result


class Replaying(TorchDispatchMode):
    """Give some records the draws they had in the recorded run.

    Who runs the records in several passes, chunk after chunk or one by one, gets the draws of the
    first records in the first pass, of the next in the second, and so on.

    Attributes
    ----------
    asked : list of torch.Size
        What was asked for in the last pass, in order.
    """

    def __init__(self, draws: Draws, records: Sequence[int]) -> None:
        super().__init__()
        self.draws, self.records = draws, list(records)
        self.asked: list[torch.Size] = []
        self.host_position = 0
        self.first, self.seen = 0, 0

    def begin(self) -> None:
        """A new pass over the model: draws from the first again."""
        self.asked, self.host_position = [], 0
        self.first += self.seen
        self.seen = 0
        if self.first >= len(self.records):
            self.first = 0

    def next_part(self, name: str, shape: torch.Size) -> Tensor:
        draws = self.draws.draws
        assert draws, f"{name} draws, but nothing was drawn in the recorded run"
        position = len(self.asked) % len(draws)
        draw = draws[position]
        assert _family(draw.name) == _family(name), f"draw {position} was {draw.name}, not {name}"
        self.asked.append(shape)
        if len(self.records) == 1 and draw.axis is None:
            draw.locate(shape, self.draws.records)
        return draw.moved(shape, self.current(draw, shape), self.draws.records)

    def current(self, draw: Draw, shape: torch.Size) -> list[int]:
        """The records of this pass, from how many a draw is for."""
        if draw.axis is None or len(shape) != draw.value.dim():
            return self.records
        moved = sorted(shape) == sorted(draw.value.shape)
        count = len(self.records) if moved else shape[draw.axis] // draw.unit
        if count >= len(self.records):
            self.first = 0
        self.seen = min(count, len(self.records))
        return self.records[self.first :] + self.records[: self.first]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_random(function, args, kwargs):
            return function(*args, **kwargs)
        name = str(function)
        if "native_dropout" in name:
            mask = self.next_part(name, args[0].shape)
            return args[0] * mask / (1 - args[1]), mask.clone()
        if "rrelu" in name:
            args[1].copy_(self.next_part(name, args[0].shape))
            return torch.where(args[0] <= 0, args[0] * args[1], args[0])
        if function._schema.is_mutable:
            return args[0].copy_(self.next_part(name, args[0].shape))
        fresh = function(*args, **kwargs)
        return fresh.copy_(self.next_part(name, fresh.shape))


@contextlib.contextmanager
def _host(functions: tuple[str, ...], around: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap functions that draw outside torch."""
    with contextlib.ExitStack() as stack:
        for path in functions:
            module, _, name = path.rpartition(".")
            home = importlib.import_module(module)
            stack.enter_context(mock.patch.object(home, name, around(getattr(home, name))))
        yield


@contextlib.contextmanager
def recording(records: int, host_functions: tuple[str, ...] = ()) -> Iterator[Draws]:
    """Record all draws of the run inside."""
    draws = Draws(records, host_functions=host_functions)

    def around(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            draws.host.append(original(*args, **kwargs))
            return draws.host[-1]

        return wrapped

    with _host(host_functions, around), Recording(draws):
        yield draws


@contextlib.contextmanager
def replaying(model: nn.Module, draws: Draws, records: Sequence[int]) -> Iterator[Replaying]:
    """Give the runs inside the recorded draws of some records, from the first in every pass."""
    mode = Replaying(draws, records)
    original = nn.Module.__call__

    def begun(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is model:
            mode.begin()
        return original(self, *args, **kwargs)

    def around(_: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = draws.host[mode.host_position]
            mode.host_position += 1
            shape = args[0] if args and isinstance(args[0], tuple) else None
            count = len(records) if shape is None else shape[0]
            return value[[records[i % len(records)] for i in range(count)]]

        return wrapped

    # Draws are recorded by place, so records must not be given others.
    placed = mock.patch.object(Runner, "_compare_slots", return_value=None)
    # A mode around a step is refused; this one is there to compare draws.
    allowed = mock.patch.object(piece, "require_no_modes")
    called = mock.patch.object(nn.Module, "__call__", begun)
    with placed, allowed, called, _host(draws.host_functions, around), mode:
        yield mode


# ------------------------------------------------------------------ gradients
@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put buffers and gradients back as they were."""
    kept = {name: value.clone() for name, value in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in model.named_buffers():
                if name in kept:
                    value.copy_(kept[name])
        model.zero_grad(set_to_none=True)


def _gradients(model: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    losses.sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def whole(
    model: nn.Module, loss: Any, x: Any, y: Any, host_draws: tuple[str, ...] = (), seed: int = 1
) -> tuple[Draws, Tensor, dict[str, Tensor]]:
    """Run the batch once: its draws, its records' losses and the sum of their gradients."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what Hugging Face draws from)
    with untouched(model), recording(size_of(x), host_draws) as draws:
        losses = record_losses(loss)(call(model, x), y)
        summed = _gradients(model, losses)
    return draws, losses.detach().clone(), summed


def alone(
    model: nn.Module, loss: Any, x: Any, y: Any, draws: Draws, record: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run one record by itself with its draws: its loss and its gradient."""
    with untouched(model), replaying(model, draws, [record]) as mode:
        losses = record_losses(loss)(call(model, rows(x, [record])), rows(y, [record]))
        gradient = _gradients(model, losses)
    drawn = len(draws.draws)
    assert len(mode.asked) == drawn, f"one record drew {len(mode.asked)} times, the batch {drawn}"
    return losses.detach().clone(), gradient


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two losses are the same but for rounding."""
    return bool(((one - other).abs() <= AGREEMENT * other.abs().clamp_min(1e-2)).all())


def arrange(model: nn.Module, loss: Any, x: Any, y: Any, draws: Draws, losses: Tensor) -> None:
    """Find where each draw keeps the records, by the losses of two of them alone."""

    def fits() -> bool:
        return all(
            agree(alone(model, loss, x, y, draws, record)[0], losses[record : record + 1])
            for record in (1, draws.records - 1)
        )

    if fits():  # this also finds the axes
        return
    merged = sorted({tuple(d.value.shape) for d in draws.draws if d.unit > 1})
    assert len(merged) <= 6, f"too many merged shapes to try: {merged}"
    for choice in itertools.product((True, False), repeat=len(merged)):
        inside = dict(zip(merged, choice, strict=True))
        for draw in draws.draws:
            draw.inside = draw.unit > 1 and inside.get(tuple(draw.value.shape), False)
        if fits():
            return
    raise AssertionError("no record's loss alone is the one it has in the batch: records mix")


@dataclass
class Reference:
    """Gradients of all records, each by itself, and the draws that they were made with."""

    draws: Draws
    losses: Tensor
    gradients: dict[str, Tensor]

    def norms(self, names: Sequence[str]) -> Tensor:
        """Norm of every record's gradient of some parameters."""
        return (
            sum(self.gradients[n].reshape(self.draws.records, -1).square().sum(1) for n in names)
            ** 0.5
        )

    def clipped(self, names: Sequence[str], clip: float) -> dict[str, Tensor]:
        """Sum over records of min(1, clip / norm) times gradient."""
        factor = (clip / self.norms(names).clamp_min(1e-300)).clamp_max(1.0)
        return {n: torch.einsum("b,b...->...", factor, self.gradients[n]) for n in names}


def reference(
    model: nn.Module, loss: Any, x: Any, y: Any, host_draws: tuple[str, ...] = (), seed: int = 1
) -> Reference:
    """Per-record gradients in float64, checked: they add up to the gradient of the batch."""
    draws, losses, summed = whole(model, loss, x, y, host_draws, seed)
    arrange(model, loss, x, y, draws, losses)
    found: list[dict[str, Tensor]] = []
    for record in range(draws.records):
        own, gradient = alone(model, loss, x, y, draws, record)
        assert agree(own, losses[record : record + 1]), f"record {record} has another loss alone"
        found.append(gradient)
    gradients = {n: torch.stack([g[n] for g in found]).double() for n in summed}
    found_all = Reference(draws, losses, gradients)
    rounding = 1e-6 * float(found_all.norms(list(gradients)).sum())
    for name, value in gradients.items():
        error = torch.linalg.vector_norm(value.sum(0) - summed[name].double())
        size = float(found_all.norms([name]).sum())
        assert error <= AGREEMENT * size + rounding, f"{name}: records do not add up to the batch"
    return found_all


# ------------------------------------------------------------------ comparisons
def error_of(result: Any, expected: Reference, clip: float) -> float:
    """Largest distance of a bounded sum from the exact one, over the sensitivity of its group."""
    worst = 0.0
    for group in result.groups:
        exact = expected.clipped(group.names, clip)
        squares = sum(
            float((group.gradients[n].double() - exact[n]).square().sum()) for n in group.names
        )
        worst = max(worst, squares**0.5 / group.sensitivity)
    return worst


def largest_removal(
    bounded: Callable[[Any, Any], Any], model: nn.Module, x: Any, y: Any, expected: Reference
) -> float:
    """Largest change of a bounded sum, over its sensitivity, when one record goes.

    The records that stay keep their draws. A value above 1 shows a sensitivity to be false.
    """
    everyone = list(range(expected.draws.records))
    with untouched(model), replaying(model, expected.draws, everyone):
        full = bounded(x, y)
    worst = 0.0
    for gone in everyone:
        rest = [i for i in everyone if i != gone]
        with untouched(model), replaying(model, expected.draws, rest):
            fewer = bounded(rows(x, rest), rows(y, rest))
        for one, other in zip(full.groups, fewer.groups, strict=True):
            change = sum(
                float((one.gradients[n].double() - other.gradients[n].double()).square().sum())
                for n in one.names
            )
            worst = max(worst, change**0.5 / one.sensitivity)
    return worst
