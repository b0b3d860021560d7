"""What is known to be equal in tensors without records, and what of an operand reaches what.

Entries of one memory are equal to themselves, whatever they hold; those that were filled with one
number, moved from one place or follow from whole numbers of Python are equal to each other. Values
that happen to be equal now are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes
from noisewise.separation.registry import Operation, words
from noisewise.separation.rules.moving import moved
from noisewise.separation.shadow import PLANE, TOP, Shadow, overlaps, storage_key

__all__ = [
    "PLACED",
    "classes",
    "labels_of",
    "places_of",
    "public_kind",
    "reached",
    "uniform_numbers",
]

#: Every entry gets one and the same number.
_FILLS = words(
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor",
    "fill_ zero_ fill _efficientzerotensor",
)
#: Every entry is drawn by itself, and in the same way.
_DRAWS = words(
    "rand randn randint rand_like randn_like randint_like bernoulli_ normal_ uniform_ random_",
    "exponential_ geometric_ cauchy_ log_normal_ _dropout_mask bernoulli normal poisson binomial",
    "_standard_gamma",
)
#: Functions of what lies along an axis that do not look at its order.
_ORDERLESS = words(
    "mm bmm addmm baddbmm native_layer_norm _fused_rms_norm embedding _softmax _log_softmax",
    "sum mean amax amin logsumexp cat stack convolution constant_pad_nd",
)
#: Numbers of more entries have more than two digits.
_MANY = TOP * TOP
#: What an entry becomes depends on where it is.
PLACED = words("tril triu tril_ triu_")


def public_kind(call: Call, operation: Operation) -> str | None:
    """Of a result without records: "flat" if all entries are equal, "drawn" if drawn alike."""
    others = [t for t in call.tensors if t is not call["self"]]
    if call.name in _FILLS and all(t.numel() == 1 for t in others):
        return "flat"
    if call.name in _DRAWS:
        # One distribution for all entries: a functional draw takes it from its first operand, too.
        given = others if call.name.endswith("_") or "_like" in call.name else call.tensors
        alike = all(t.numel() == 1 or call.shadow.kind(t) == "flat" for t in given)
        return "drawn" if alike else None
    if not operation.pointwise or operation.random or call.name in PLACED or not call.tensors:
        return None
    drawn = [t for t in call.tensors if call.shadow.kind(t) == "drawn"]
    rest = [t for t in call.tensors if all(t is not d for d in drawn)]
    if any(t.numel() > 1 and call.shadow.kind(t) != "flat" for t in rest):
        return None
    if not drawn:
        return "flat"
    # Draws that are spread, or used twice, are no longer one for every entry.
    size = call.results[0].numel() if call.results else 0
    apart = len({storage_key(t) for t in drawn}) == len(drawn)
    whole = all(t.numel() == size and not overlaps(t) for t in drawn)
    return "drawn" if apart and whole and not any(map(_is_part, drawn)) else None


def _is_part(tensor: Tensor) -> bool:
    """Whether memory has other entries, which others may use."""
    return tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes()


def uniform_numbers(call: Call, operation: Operation, result: Tensor, records: int) -> Planes:
    """Numbers for the entries of a public result: equal ones for what is known to be equal.

    What is only moved keeps what it is; other results may not vary along some axes.
    """
    if operation.rule is moved and len(call.tensors) == 1 and result.numel() < _MANY:
        return _moved_numbers(call, operation, call.tensors[0])
    if _is_entrywise(call, operation) and result.numel() < _MANY:
        cells = [call.shadow.cell(t) for t in call.tensors]
        if any(cell is not None and cell.labels is not None for cell in cells):
            return _joined_numbers(call, result)
    if not any(_is_uniform(call.shadow, t, a) for t in call.tensors for a in range(t.dim())):
        return None
    numbers = torch.zeros((), dtype=torch.int32)
    known = False
    for axis, size in enumerate(result.shape):
        same = size > 1 and size % records == 0 and _varies_not(call, operation, result, axis)
        known = known or same
        index = torch.zeros(size) if same else torch.arange(size)
        after = (1,) * (result.dim() - axis - 1)
        numbers = numbers * size + index.to(torch.int32).reshape(-1, *after)
    return numbers if known else None


def _moved_numbers(call: Call, operation: Operation, tensor: Tensor) -> Tensor:
    labels = labels_of(call.shadow, tensor)
    if labels is None:
        labels = torch.zeros((), dtype=torch.long)
    # Two planes hold a number of two digits.
    labels = torch.unique(labels.expand(tensor.shape), return_inverse=True)[1] + 1
    digits = torch.stack([labels % TOP, labels // TOP]).to(PLANE)
    assert operation.rule is not None
    found = operation.rule(call.with_shadow(_Labelled(call.shadow, tensor, digits)))[0]
    assert found is not None
    return found[0].to(torch.int32) + found[1].to(torch.int32) * TOP


def _is_entrywise(call: Call, operation: Operation) -> bool:
    """Whether equal entries of the operands give equal entries of the result."""
    return operation.pointwise and not operation.random and call.name not in PLACED


def _joined_numbers(call: Call, result: Tensor) -> Tensor:
    """An entry is known by what its operands have there."""
    joined = torch.zeros((), dtype=torch.long)
    for tensor in call.tensors:
        labels = labels_of(call.shadow, tensor)
        if labels is not None:
            labels = labels.long() - labels.min()
            both = joined * (int(labels.max()) + 1) + labels.expand(result.shape)
            joined = torch.unique(both, return_inverse=True)[1]
    return joined.to(torch.int32)


def _varies_not(call: Call, operation: Operation, result: Tensor, along: int) -> bool:
    """Whether a public result is the same for every index of an axis."""

    def level(plane: Tensor) -> bool:
        return torch.equal(plane, plane.narrow(along, 0, 1).expand_as(plane))

    if operation.random or call.name in PLACED:
        return False
    for tensor in call.tensors:
        if operation.pointwise:
            labels = labels_of(call.shadow, tensor)
            if labels is not None and not level(labels.expand(result.shape)):
                return False
            continue
        if call.name not in _ORDERLESS:
            return False
        for axis, size in enumerate(tensor.shape):
            numbers = classes(call.shadow, tensor, axis)
            if numbers is None and axis:
                continue
            numbers = torch.zeros(size, dtype=torch.long) if numbers is None else numbers
            planes = reached(call, operation, tensor, axis, numbers)[0]
            if not all(level(plane) for plane in planes):
                return False
    return True


def classes(shadow: Shadow, tensor: Tensor, axis: int) -> Tensor | None:
    """Numbers for the indices of an axis of a public tensor, equal where it is known to be equal.

    None if it is equal everywhere.
    """
    size = tensor.shape[axis]
    if size == 1 or tensor.stride(axis) == 0 or shadow.kind(tensor) == "flat":
        return None
    cell = shadow.cell(tensor)
    if cell is None or not (cell.const or cell.labels is not None):
        return torch.arange(size)
    labels = labels_of(shadow, tensor)
    if labels is None:
        return None
    slices = labels.movedim(axis, 0).reshape(size, -1)
    if torch.equal(slices, slices[:1].expand_as(slices)):
        return None
    return torch.unique(slices, dim=0, return_inverse=True)[1]  # type: ignore[no-any-return]


def _is_uniform(shadow: Shadow, tensor: Tensor, axis: int) -> bool:
    """Whether a public tensor is known to be the same for every index of an axis."""
    return classes(shadow, tensor, axis) is None


def reached(
    call: Call, operation: Operation, tensor: Tensor, axis: int, numbers: Tensor
) -> list[tuple[Tensor, ...]]:
    """Which labels of one axis of an operand reach which entries of the results."""
    assert operation.rule is not None
    found: list[tuple[Tensor, ...]] = [()] * len(call.results)
    while True:  # digit by digit
        digit = numbers % (TOP - 3) + 1
        shape = [1] * (tensor.dim() + 1)
        shape[0], shape[axis + 1] = 2, len(digit)
        labels = torch.stack([digit, TOP - digit]).to(PLANE).reshape(shape)
        shown = _Labelled(call.shadow, tensor, labels.expand(2, *tensor.shape))
        planes = operation.rule(call.with_shadow(shown))
        found = [
            old if new is None else (*old, *new.expand(2, *result.shape))
            for old, new, result in zip(found, planes, call.results, strict=True)
        ]
        if int(numbers.max()) < TOP - 3:
            return found
        numbers = numbers // (TOP - 3)


def labels_of(shadow: Shadow, tensor: Tensor) -> Tensor | None:
    """What every entry of a tensor is; None if all are the same."""
    found = shadow.labels(tensor)
    if found is not None:
        return found
    if tensor.numel() <= 1 or shadow.kind(tensor) == "flat":
        return None
    if shadow.const(tensor) and tensor.device.type != "meta":
        values = tensor.cpu().contiguous()
        if values.is_floating_point():  # zero and minus zero are two
            words_of = {2: torch.int16, 4: torch.int32, 8: torch.int64}
            values = values.view(words_of[values.element_size()])
        return torch.unique(values, return_inverse=True)[1]  # type: ignore[no-any-return]
    return places_of(tensor)


def places_of(tensor: Tensor) -> Tensor:
    """Where in memory each entry is: it is the same as itself alone."""
    places = torch.zeros((), dtype=torch.long)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride:
            after = (1,) * (tensor.dim() - axis - 1)
            places = places + (torch.arange(size) * stride).reshape(-1, *after)
    return places.expand(tensor.shape)


class _Labelled(Shadow):
    """A shadow that shows the labels of one operand and nothing else."""

    def __init__(self, real: Shadow, tensor: Tensor, planes: Tensor) -> None:
        super().__init__()
        self._real, self._tensor, self._planes = real, tensor, planes

    def read(self, tensor: Tensor | None) -> Tensor | None:
        """Labels of that operand."""
        return self._planes if tensor is self._tensor else None

    def const(self, tensor: Tensor) -> bool:
        """As it is."""
        return self._real.const(tensor)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: rules are only asked."""
