"""Batches as users bring them: a tensor, several, or a dict; records along the first axis."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.places import takes_all
from noisewise.separation import RefusedError, same_bits

__all__ = [
    "Part",
    "augmented",
    "autocast_as_now",
    "count_records",
    "finite_records",
    "fold_views",
    "is_autocasting",
    "keeps_rows",
    "leading",
    "require_plain",
    "same_bits",
    "signature",
]


def leading(values: Any) -> int:
    """Return the number of rows, which must be the same for all tensors."""
    if isinstance(values, Tensor) and values.dim():
        return values.shape[0]
    require_plain(values)
    sizes = {t.shape[0] if t.dim() else -1 for t in pytree.tree_leaves(values) if _is_tensor(t)}
    if not sizes:
        raise TypeError(
            f"a batch must hold torch tensors, got {type(values).__name__}; convert arrays with "
            "torch.from_numpy"
        )
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            "all tensors of a batch need the same number of records along their first axis, got "
            f"sizes {sorted(sizes)}"
        )
    return sizes.pop()


def require_plain(values: Any) -> None:
    """Refuse containers that run code of their own when they are taken apart or put together.

    Batches are cut into pieces before anything is watched, so such code would see many records at
    once, unseen itself.
    """
    if values is None or isinstance(values, Tensor):
        return
    kind = type(values)
    if kind in _PLAIN or (kind in pytree.SUPPORTED_NODES and kind.__module__ in _TORCHS):
        for part in values.values() if isinstance(values, dict) else values:
            require_plain(part)
    elif kind in pytree.SUPPORTED_NODES or (isinstance(values, tuple) and not _is_named(kind)):
        raise RefusedError(
            f"a batch in a {kind.__name__}, which is taken apart and put together by code of its "
            "own, and that may look at all records at once",
            "Give the tensors in tuples, lists, dicts or plain named tuples, and build a "
            f"{kind.__name__} of them in the model's forward.",
        )
    elif isinstance(values, tuple):
        for part in values:
            require_plain(part)


#: Containers of Python that only hold what is in them, and those in which torch returns tensors.
_PLAIN = {tuple, list, dict, OrderedDict, defaultdict, deque}
_TORCHS = {"torch", "torch.return_types"}


def _is_named(kind: Any) -> bool:
    """Whether a type is what `namedtuple` makes, without a constructor of its own."""
    made = getattr(kind.__new__, "__code__", None)
    return (
        kind.__bases__ == (tuple,)
        and made is not None
        and made.co_code == _named_code(len(made.co_varnames) - 1)
        and kind.__new__.__globals__.get("_tuple_new") is tuple.__new__
        and not {"__init__", "__iter__"} & set(vars(kind))
    )


@lru_cache
def _named_code(fields: int) -> bytes:
    names = [f"field_{i}" for i in range(fields)]
    made: Any = namedtuple("_Alike", names)  # type: ignore[misc]
    code: bytes = made.__new__.__code__.co_code
    return code


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def count_records(x: Any, y: Any) -> int:
    """Return the number of records of a batch with targets."""
    records = leading(x)
    require_plain(y)
    if _is_tensor(y) or any(_is_tensor(t) for t in pytree.tree_leaves(y)):
        targets = leading(y)
        if targets != records:
            raise ValueError(f"x has {records} records, but y has {targets}")
    return records


class Part(NamedTuple):
    """Records of one fixed number, some of which may only fill it up.

    Attributes
    ----------
    x, y : structures of tensors
    places : Tensor
        Which record of the batch is in each slot; -1 for a copy that fills it up.
    valid : Tensor or None
        Which slots count; None: all.
    number : int
        Of this piece in its batch.
    each : int
        Slots of one unit, whose gradients are added before they are bounded.
    weights : Tensor or None
        What the gradient in each slot counts within its unit; None: one.
    gathered : int or None
        Rows of one long unit, which fills several pieces: how many of these are left.
    owners : Tensor or None
        The unit in each run of `each` slots, -1 for none; None: every record is a unit.
    barred : Tensor or None
        Slots of records on which the program fails: they count nothing.
    """

    x: Any
    y: Any
    places: Tensor
    valid: Tensor | None
    number: int
    each: int = 1
    weights: Tensor | None = None
    gathered: int | None = None
    owners: Tensor | None = None
    barred: Tensor | None = None

    @classmethod
    def of(
        cls,
        x: Any,
        y: Any,
        places: Tensor,
        number: int,
        each: int = 1,
        gathered: int | None = None,
    ) -> Part:
        """Take records of a batch into memory of their own, so that no others lie beside them.

        What fills a unit up are copies of its own first row: lengths of its factors are measured
        together, and must not depend on anybody else's.
        """
        valid, chosen = None, places
        whole = takes_all(places, leading(x))
        if not whole and places.amin().item() < 0:
            taken = places >= 0
            first = places.reshape(-1, each)[:, 0].repeat_interleave(each)
            spare = torch.where(first >= 0, first, places.amax())
            valid, chosen = taken, torch.where(taken, places, spare)

        def leaf(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if whole:  # nobody's rows lie beside it, and nobody may write into the batch
                return value.detach().clone(memory_format=torch.contiguous_format)
            index = chosen if value.device.type == "cpu" else chosen.to(value.device)
            return value.index_select(0, index)

        plain = isinstance(x, Tensor) and isinstance(y, Tensor)
        inputs, targets = (leaf(x), leaf(y)) if plain else pytree.tree_map(leaf, (x, y))
        return cls(inputs, targets, places, valid, number, each, gathered=gathered)

    def counting(self, rows: Tensor, views: int = 1) -> Tensor:
        """Those rows of a result that belong to records which count."""
        if self.valid is None:
            return rows
        return rows[self.valid.to(rows.device).repeat_interleave(views)]

    def counting_units(self, units: Tensor) -> Tensor:
        """Those entries of a result, one for each unit, that belong to somebody."""
        if self.valid is None:
            return units
        return units[self.valid.reshape(-1, self.each)[:, 0].to(units.device)]


def signature(values: Any) -> Any:
    """What two batches must share for one proof: structure, shapes and types."""
    if isinstance(values, Tensor):
        return "*", ((tuple(values.shape), values.dtype),), _autocasting([values])
    leaves, structure = pytree.tree_flatten(values)
    described: list[tuple[Any, ...]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append((tuple(leaf.shape), leaf.dtype))
        elif leaf is None:
            described.append((leaf,))
        else:
            raise TypeError(
                "a batch holds tensors with one row per record; this one has a "
                f"{type(leaf).__name__}. Flags, numbers and words may depend on the records in "
                "ways that cannot be followed: give them as a tensor, or fix them in the model, "
                "for example with functools.partial."
            )
    return str(structure), tuple(described), _autocasting(leaves)


def _autocasting(leaves: Sequence[Any]) -> torch.dtype | None:
    """The type that operations choose by themselves, if they do."""
    for leaf in leaves:
        if isinstance(leaf, Tensor) and is_autocasting(leaf):
            return torch.get_autocast_dtype(leaf.device.type)
    return None


def autocast_as_now(device: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Something that enters the autocast that is in force now."""
    if device == "meta" or not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext
    enabled, kind = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    if not enabled:
        return contextlib.nullcontext
    return partial(torch.autocast, device, dtype=kind)


def is_autocasting(tensor: Tensor) -> bool:
    """Whether operations on a tensor's device choose their type by themselves."""
    kind = tensor.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def augmented(augmentation: Callable[[Any], Any], views: int, x: Any) -> Any:
    """Change x, `views` times beside each other."""
    copies = [augmentation(x) for _ in range(views)]
    require_plain(copies)
    if views == 1:
        return copies[0]
    return pytree.tree_map(
        lambda *parts: torch.stack(parts, 1) if isinstance(parts[0], Tensor) else parts[0],
        *copies,
    )


def fold_views(values: Any, views: int) -> Any:
    """Turn (records, views, ...) into rows (records * views, ...)."""

    def fold(value: Any) -> Any:
        if views == 1 or not isinstance(value, Tensor):
            return value
        if value.dim() < 2 or value.shape[1] != views:
            raise ValueError(
                f"with views={views}, every input needs shape (records, {views}, ...), "
                f"got {tuple(value.shape)}"
            )
        return value.flatten(0, 1)

    return pytree.tree_map(fold, values)


def finite_records(x: Any, views: int) -> tuple[Any, Tensor]:
    """Replace rows of records that are not finite by zeros; returns also which rows are kept."""
    rows = leading(x)
    kept: Tensor | None = None
    for value in pytree.tree_leaves(x):
        if isinstance(value, Tensor) and value.is_floating_point():
            if _is_surely_finite(value):
                continue  # as nearly always
            # A sum is not finite if an entry is not, nor if it overflows: such a record would
            # have no finite gradient either. One pass, nothing stored.
            kind = torch.promote_types(value.dtype, torch.float32)
            part = torch.isfinite(value.reshape(rows, -1).sum(1, dtype=kind))
            kept = part if kept is None else kept & part
    if kept is None:
        device = next(t.device for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
        return x, torch.ones(rows, dtype=torch.bool, device=device)
    if views > 1:
        kept = kept.reshape(-1, views).all(1).repeat_interleave(views)
    if kept.device.type == "cpu" and bool(kept.all()):
        return x, kept
    mask = kept

    def clean(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        shaped = mask.view(-1, *[1] * (value.dim() - 1))
        return torch.where(shaped, value, torch.zeros((), dtype=value.dtype, device=value.device))

    return pytree.tree_map(clean, x), kept


def _is_surely_finite(value: Tensor) -> bool:
    """Whether one number tells that the sum of every record is finite.

    Squares do not cancel: where their sum is finite, no entry is larger than the root of the
    largest float32 number, and no sum of entries comes near it.
    """
    if value.device.type != "cpu" or value.dtype is not torch.float32:
        return False
    flat = value.reshape(-1)
    return math.isfinite(torch.dot(flat, flat).item())


def keeps_rows(view: Tensor, base: Tensor) -> bool:
    """Whether each row of a view lies within the same row of a contiguous tensor."""
    if view.dim() == 0 or view.shape[0] != base.shape[0] or not base.is_contiguous():
        return False
    row = base.stride(0)
    offset = view.storage_offset() - base.storage_offset()
    reach = sum(
        (size - 1) * stride for size, stride in zip(view.shape[1:], view.stride()[1:], strict=True)
    )
    return view.stride(0) == row and offset >= 0 and offset + reach < row
