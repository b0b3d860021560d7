"""Which parameters are bounded together.

A group has a name, the names of its parameters and the number of its entries. A layer is
the module that owns a parameter, named by the path before the last dot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GROUPINGS", "GroupSpec", "Grouping", "block_of", "by_layer", "layer_of", "partition"]

#: Words for what is bounded together.
GROUPINGS = ("model", "layer", "parameter")
Grouping = str | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class GroupSpec:
    """Parameters that are bounded together, and their total number of entries."""

    name: str
    names: tuple[str, ...]
    size: int


def layer_of(parameter: str) -> str:
    """Return the path of the module that owns a parameter."""
    return parameter.rpartition(".")[0] or "(model)"


def by_layer(parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
    """One group per owning module."""
    return partition("layer", parameters)


def partition(per: Grouping, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
    """Partition parameters (name to number of entries), in the order of their first member.

    Examples
    --------
    >>> [g.name for g in partition("layer", {"0.weight": 6, "0.bias": 2, "2.weight": 2})]
    ['0', '2']
    """
    if isinstance(per, Mapping):
        keys = {name: block_of(name, per) for name in parameters}
        empty = set(per) - set(keys.values())
        if empty:
            raise ValueError(
                f"the blocks {sorted(empty)} hold no trainable parameter; the model has "
                f"{', '.join(parameters)}"
            )
    elif per == "model":
        keys = dict.fromkeys(parameters, "model")
    elif per == "layer":
        keys = {name: layer_of(name) for name in parameters}
    else:
        keys = {name: name for name in parameters}
    members: dict[str, list[str]] = {}
    for name, key in keys.items():
        members.setdefault(key, []).append(name)
    return tuple(
        GroupSpec(key, tuple(names), sum(parameters[name] for name in names))
        for key, names in members.items()
    )


def block_of(name: str, blocks: Mapping[str, Sequence[str]]) -> str:
    """Return the block whose prefix is the longest that fits, at a dot."""
    best, length = None, -1
    for block, prefixes in blocks.items():
        for prefix in [prefixes] if isinstance(prefixes, str) else prefixes:
            fits = prefix == "" or name == prefix or name.startswith(prefix.rstrip(".") + ".")
            if fits and len(prefix) > length:
                best, length = block, len(prefix)
    if best is None:
        raise ValueError(
            f"the parameter {name!r} belongs to no block: add its prefix to one of "
            f"{sorted(blocks)}, or a block with the prefix '' for all others"
        )
    return best
