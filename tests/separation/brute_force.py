"""Does a program mix records? Asked of values, by changing records, never by its code.

Each question is asked at the program's own weights, at random ones and with records far away, so
that a gate of zero or a dead unit hides nothing.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from separation.program import Program
from zoo.reference import call, record_losses, reference, rows, size_of

SEED = 7
TOLERANCE = 1e-4


def _fresh(program: Program, spread: float) -> Any:
    """Model, loss, x, y; with other weights if ``spread`` says so."""
    model, loss, x, y = program.case()
    if spread:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model, loss, x, y


def _changed(values: Any, record: int, size: float) -> Any:
    """The same batch with another record in one place."""
    generator = torch.Generator().manual_seed(11 + record)

    def change(t: Tensor) -> Tensor:
        t = t.clone()
        if t.is_floating_point():
            t[record] = size * torch.randn(t[record].shape, generator=generator)
        elif t.dtype == torch.bool:
            t[record] = ~t[record]
        else:
            high = int(t.max()) + 1
            t[record] = (t[record] + 1 + int(t.min())) % max(high, 2) if high > 1 else 1
            if high > 1:
                t[record] = t[record].clamp_min(int(t.min()))
        return t

    return pytree.tree_map_only(Tensor, change, values)


def _run(model: Any, loss: Any, x: Any, y: Any) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(SEED)
    model.zero_grad(set_to_none=True)
    losses = record_losses(loss)(call(model, x), y)
    losses.sum().backward()
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for p in model.parameters()
        if p.requires_grad
    ]
    return losses.detach().clone(), gradients


def _differ(one: Tensor, other: Tensor) -> bool:
    same = torch.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return not bool(same.all())


def _settings() -> Iterator[tuple[float, float]]:
    """(spread of the weights, size of a record)"""
    yield from [(0.0, 1.0), (0.5, 1.0), (0.5, 30.0), (0.0, 300.0)]


def shows_in_losses(program: Program) -> bool:
    """Another record changes this record's loss."""
    for spread, size in _settings():
        plain, _ = _run(*_fresh(program, spread))
        for record in range(len(plain)):
            model, loss, x, y = _fresh(program, spread)
            changed = _run(model, loss, _changed(x, record, size), _changed(y, record, size))[0]
            others = [i for i in range(len(plain)) if i != record]
            if _differ(plain[others], changed[others]):
                return True
    return False


def shows_in_size(program: Program) -> bool:
    """This record's loss changes when another goes. Only without random draws."""
    model, loss, x, y = _fresh(program, 0.0)
    count = size_of(x)
    plain, _ = _run(model, loss, x, y)
    model, loss, x, y = _fresh(program, 0.0)
    rest = list(range(count - 1))
    try:
        fewer, _ = _run(model, loss, rows(x, rest), rows(y, rest))
    except RuntimeError:
        return False  # it takes batches of one size only
    return _differ(plain[:-1], fewer)


def shows_in_gradients(program: Program) -> bool:
    """What one record adds to the gradient depends on another: a second difference is not 0."""
    pairs = ((0, 3), (2, 3))
    for (spread, size), (one, other) in itertools.product(_settings(), pairs):
        sums: list[list[Tensor]] = []
        for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
            model, loss, x, y = _fresh(program, spread)
            if first:
                x, y = _changed(x, one, size), _changed(y, one, size)
            if second:
                x, y = _changed(x, other, size), _changed(y, other, size)
            sums.append(_run(model, loss, x, y)[1])
        for a, b, c, d in zip(*sums, strict=True):
            scale = float(torch.stack([a, b, c, d]).abs().max()) + 1e-12
            if bool(((a - b - c + d).abs() > 1e-3 * scale + 1e-5).any()):
                return True
    return False


def shows_in_state(program: Program) -> bool:
    """What a batch leaves behind, in the model's state or in the next batch's losses, tells."""
    for spread, size in _settings():
        left, after = [], []
        for changed in (False, True):
            model, loss, x, y = _fresh(program, spread)
            seen_x = _changed(x, 0, size) if changed else x
            seen_y = _changed(y, 0, size) if changed else y
            _run(model, loss, seen_x, seen_y)
            state = dict(model.state_dict())
            if isinstance(loss, torch.nn.Module):
                state.update({f"loss.{k}": v for k, v in loss.state_dict().items()})
            numbers = {k: torch.tensor(float(v)) for k, v in vars(model).items()
                       if type(v) in (int, float)}  # fmt: skip
            left.append(copy.deepcopy({**state, **numbers}))
            after.append(_run(model, loss, x, y)[0])
        if any(_differ(left[0][k].float(), left[1][k].float()) for k in left[0]):
            return True
        if _differ(*after):
            return True
    # A count of records: leave one away.
    left = []
    for count in (size_of(x), size_of(x) - 1):
        model, loss, x, y = _fresh(program, 0.0)
        try:
            _run(model, loss, rows(x, range(count)), rows(y, range(count)))
        except RuntimeError:
            return False
        left.append({k: v.clone() for k, v in model.named_buffers()})
    return any(_differ(left[0][k].float(), left[1][k].float()) for k in left[0])


def how_it_mixes(program: Program) -> str:
    """The first place where values show that a program mixes records; empty if none does."""
    questions = {
        "losses": shows_in_losses,
        "gradients": shows_in_gradients,
        "state": shows_in_state,
        "size": shows_in_size,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, question in questions.items():
            if question(program):
                return place
    return ""


def keeps_sums_apart(program: Program, bounded: Any) -> bool:
    """Whether what a record adds to a bounded sum is the same whoever else is there.

    ``bounded`` makes the sum of model, loss, x and y.
    """
    everyone = list(range(size_of(program.case()[2])))

    def total(gone: tuple[int, ...]) -> Tensor:
        model, loss, x, y = program.case()
        stay = [i for i in everyone if i not in gone]
        gradients = bounded(model, loss, rows(x, stay), rows(y, stay)).gradients
        return torch.cat([g.flatten().double() for g in gradients.values()])

    for one, other in itertools.combinations(everyone, 2):
        second = total(()) - total((one,)) - total((other,)) + total((one, other))
        if float(second.norm()) > TOLERANCE:
            return False
    return True


def is_apart(program: Program) -> None:
    """Check that every record alone, with its draws, is what it is in the batch; raises else."""
    for spread, _ in _settings():
        model, loss, x, y = _fresh(program, spread)
        reference(model, loss, x, y)
    assert not shows_in_losses(program)
    assert not shows_in_state(program)
