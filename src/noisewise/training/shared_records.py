"""Whether two datasets are known to hold the same records."""

from __future__ import annotations

from typing import Any

__all__ = ["records_shared"]


def records_shared(first: Any, second: Any) -> bool:
    """Whether two datasets hold the same records, as far as identities tell.

    The same object, parts (`Subset`) of one, lists with items in common, selections of one table
    of the package `datasets`; loaders and dicts of such. Equal copies are not noticed.

    Examples
    --------
    >>> records = [{"a": 1}, {"a": 2}]
    >>> records_shared(records, records[:1]), records_shared(records, [{"a": 1}])
    (True, False)
    """
    if isinstance(second, dict):
        return any(records_shared(first, part) for part in second.values())
    if first is None or second is None:
        return False
    if _roots(first) & _roots(second):
        return True
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return bool({id(item) for item in first} & {id(item) for item in second})
    return False


def _roots(dataset: Any) -> set[int]:
    """A dataset and those that it is a part of, by identity."""
    found: set[int] = set()
    while dataset is not None and id(dataset) not in found:
        found.add(id(dataset))
        if (table := getattr(dataset, "_data", None)) is not None:  # of the package `datasets`
            found.add(id(getattr(table, "table", table)))
        tensors = getattr(dataset, "tensors", None)
        found.update(map(id, tensors if isinstance(tensors, tuple) else ()))
        dataset = getattr(dataset, "dataset", None)
    return found
