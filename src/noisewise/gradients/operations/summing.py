"""Einstein sums of records with a learnt tensor.

A sum whose letters belong to the records, to the weight or to both is a linear layer: letters of
both that are summed over are its inputs, those of the weight alone its outputs, all others
positions. With letters that all three share, as heads have, every record gets a copy of the weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisewise.gradients.contractions import LinearContraction, TurnedContraction
from noisewise.gradients.operations.dense import seen_as, tapped_linear
from noisewise.gradients.operations.elementwise import repeated
from noisewise.gradients.operations.registry import (
    ConstantUseError,
    UnsupportedUseError,
    handles,
    layout_of_use,
)
from noisewise.gradients.tape import Tape

__all__ = ["einsum"]


@handles(torch.einsum)
def einsum(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of one tensor with records and one weight."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if kwargs or not isinstance(equation, str):
        raise UnsupportedUseError
    if all(tape.is_constant(operand) for operand in operands):
        raise ConstantUseError
    if len(operands) != 2:
        raise UnsupportedUseError
    letters = _letters(equation, [operand.dim() for operand in operands])
    if letters is None:
        raise UnsupportedUseError
    (first, second), result = letters
    x, weight = operands
    if tape.target(weight) is None:
        x, weight, first, second = weight, x, second, first
    if tape.target(weight) is None or tape.target(x) is not None:
        raise UnsupportedUseError
    return _product(tape, x, first, weight, second, result)


def _letters(equation: str, ranks: list[int]) -> tuple[list[str], str] | None:
    """Letters of the operands and of the result; None where some are repeated or left out."""
    entering, arrow, result = equation.replace(" ", "").partition("->")
    parts = entering.split(",")
    if len(parts) != len(ranks):
        return None
    spare = iter(c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation)
    dots = [rank - len(part.replace("...", "")) for rank, part in zip(ranks, parts, strict=True)]
    most = max((d for d, part in zip(dots, parts, strict=True) if "..." in part), default=0)
    names = "".join(next(spare) for _ in range(most))
    parts = [
        part.replace("...", names[most - d :] if d else "")
        for d, part in zip(dots, parts, strict=True)
    ]
    if not arrow:
        every = sorted(set("".join(parts)) - set(names))
        result = "..." * bool(names) + "".join(c for c in every if "".join(parts).count(c) == 1)
    result = result.replace("...", names)
    if any(len(set(part)) != len(part) for part in (*parts, result)):
        return None
    return parts, result


def _product(
    tape: Tape, x: Tensor, of_x: str, weight: Tensor, of_weight: str, result: str
) -> Tensor:
    summed = "".join(c for c in of_weight if c in of_x and c not in result)
    outputs = "".join(c for c in of_weight if c in result and c not in of_x)
    positions = "".join(c for c in of_x if c in result)
    whole = len(summed) + len(outputs) == len(of_weight)
    if set(summed) | set(positions) != set(of_x) or not summed:
        raise UnsupportedUseError
    kind: type[LinearContraction]
    if whole and of_weight == outputs + summed:
        kind, axes = LinearContraction, len(outputs)
    elif whole and of_weight == summed + outputs:
        kind, axes = TurnedContraction, len(summed)
    else:
        return _by_copies(tape, x, of_x, weight, of_weight, result)
    own, other = (
        dict(zip(*pair, strict=True)) for pair in ((of_x, x.shape), (of_weight, weight.shape))
    )
    if any(own[c] != other[c] for c in summed):
        raise UnsupportedUseError  # an axis of one entry that stands for many
    sizes = own | other
    flat = x.permute([of_x.index(c) for c in positions + summed])
    flat = flat.flatten(len(positions)) if positions else flat
    matrix = weight.reshape(torch.Size(weight.shape[:axes]).numel(), -1)
    matrix = matrix.t() if kind is TurnedContraction else matrix
    layout = layout_of_use(tape, "einsum", flat, 1, weight)
    if flat.dim() < 2:
        raise UnsupportedUseError
    view = seen_as(tape, weight, matrix)
    found = tapped_linear(tape, layout.first(flat), view, None, (tape.target(weight), None), kind)
    found = layout.back(found, flat).reshape([sizes[c] for c in positions + outputs])
    return found.permute([(positions + outputs).index(c) for c in result])


def _by_copies(
    tape: Tape, x: Tensor, of_x: str, weight: Tensor, of_weight: str, result: str
) -> Tensor:
    """Every record with a copy of the weight."""
    layout = layout_of_use(tape, "einsum", x, 0, weight)
    target = tape.target(weight)
    if layout.axis < 0 or layout.order is not None or target is None:
        raise UnsupportedUseError
    records = of_x[layout.axis]
    if records in of_weight or records not in result:
        raise UnsupportedUseError
    copies = repeated(tape, weight, target, x.shape[layout.axis] // tape.records)
    return torch.einsum(f"{of_x},{records}{of_weight}->{result}", x, copies)
