"""Keyed digests of records: to tell whether two are equal without showing either.

Eight bytes of BLAKE2b per record, under a key of 32 random bytes that is made for one comparison
and never stored. Without the key a digest says nothing; with it, equal records have equal digests,
and different ones differ but for a chance of n^2 / 2^65 (3e-8 for a million records).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from numbers import Rational
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisewise.training.records import Records, TensorRecords, leaves

__all__ = [
    "Digests",
    "changing",
    "identifier_digests",
    "layout_of",
    "record_digests",
    "unit_digests",
]

Digests = npt.NDArray[np.uint64]

#: Rows that are looked at together, by their bytes.
_CHUNK = 1 << 24
#: Records that are read twice: a coin in each is missed with probability 2^-32.
_REREAD = 32


def record_digests(records: Records, key: bytes) -> Digests:
    """Return one digest per record, in order.

    Raises
    ------
    TypeError
        If a record holds something whose content cannot be read as bytes.
    """
    found = bytearray()
    if isinstance(records, TensorRecords):
        for digest in _of_rows(list(leaves(records.tensors)), len(records), key):
            found += digest
    else:
        for digests in records.visit(partial(_of_item, key), range(len(records))):
            found += b"".join(digests)
    return np.frombuffer(bytes(found), dtype=np.uint64)


def changing(records: Records, key: bytes, known: Digests) -> bool:
    """Whether records read differently the second time, as randomly augmented ones do."""
    if isinstance(records, TensorRecords) or not len(records):
        return False
    positions = sorted({int(p) for p in np.linspace(0, len(records) - 1, _REREAD)})
    again = b"".join(d for part in records.visit(partial(_of_item, key), positions) for d in part)
    return not np.array_equal(np.frombuffer(again, dtype=np.uint64), known[positions])


def identifier_digests(identifiers: Any, key: bytes) -> Digests:
    """Return one digest per identifier: whole numbers, words, bytes or UUIDs."""
    values = identifiers.tolist() if hasattr(identifiers, "tolist") else list(identifiers)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, str, bytes, UUID)):
            raise TypeError(
                "identifiers must be whole numbers, words, bytes or UUIDs, one per record, got a "
                f"{type(value).__name__}"
            )
    found = bytearray()
    for value in values:
        found += _digest(key, [value if isinstance(value, bytes) else str(value).encode()])
    return np.frombuffer(bytes(found), dtype=np.uint64)


def unit_digests(identifiers: Sequence[Hashable], key: bytes) -> Digests:
    """Return one digest for each different identifier of a unit, of equal ones the same.

    Equal identifiers are written alike on every worker: 1, 1.0 and True are one, as they are in a
    dictionary.
    """
    found = b"".join(_digest(key, [_written(name)]) for name in dict.fromkeys(identifiers))
    return np.unique(np.frombuffer(found, dtype=np.uint64))


def unit_kinds(identifiers: Sequence[Hashable]) -> str:
    """Name the kinds of identifiers: 17 and "17" are different, though perhaps one person's."""
    return ", ".join(sorted({_kind(name) for name in dict.fromkeys(identifiers)}))


def _kind(name: Any) -> str:
    if isinstance(name, (tuple, frozenset)):
        parts = [_kind(part) for part in name]
        return f"({', '.join(parts if isinstance(name, tuple) else sorted(parts))})"
    return _written(name).partition(b" ")[0].decode()


def _written(name: Any) -> bytes:
    """Write an identifier so that equal ones are written alike, whatever their types."""
    if isinstance(name, np.generic):
        name = name.item()
    if isinstance(name, str):
        return b"text " + name.encode("utf-8", "surrogatepass")
    if isinstance(name, bytes):
        return b"bytes " + name
    if isinstance(name, (Rational, float, Decimal)):  # truth values and whole numbers are rational
        if math.isinf(name):
            return f"number {float(name)}".encode()
        exact = Fraction(name)
        return f"number {exact.numerator}/{exact.denominator}".encode()
    if isinstance(name, UUID):
        return b"uuid " + name.bytes
    if isinstance(name, datetime):
        moment = name if name.tzinfo is None else name.astimezone(timezone.utc)
        return b"time " + moment.isoformat().encode()
    if isinstance(name, date):
        return b"date " + name.isoformat().encode()
    if isinstance(name, (tuple, frozenset)):
        parts = [_written(part) for part in name]
        kind = b"tuple" if isinstance(name, tuple) else b"set"
        ordered = parts if isinstance(name, tuple) else sorted(parts)
        return kind + b"".join(b" %d %s" % (len(part), part) for part in ordered)
    raise TypeError(
        "workers compare units by digests of their identifiers, which must be numbers, text, "
        f"bytes, dates, UUIDs or tuples of these, got a {type(name).__name__}"
    )


def layout_of(records: Records | None) -> str:
    """Describe how records are held, without their values: equal ones look alike only then."""
    if records is None:
        return "none"
    if isinstance(records, TensorRecords):
        return f"tensors {_shape(records.tensors)}"
    if not len(records):
        return "dataset, empty"
    first = records.collate([records.dataset[0]])
    return f"dataset {[str(leaf.dtype) for leaf in leaves(first)]}"


def _of_rows(tensors: Sequence[Tensor], count: int, key: bytes) -> Iterator[bytes]:
    width = sum(t.element_size() * t[:1].numel() for t in tensors)
    size = max(1, _CHUNK // max(1, width))
    for start in range(0, count, size):
        parts = [_bytes(t[start : start + size]) for t in tensors]
        rows = np.concatenate([p.reshape(min(size, count - start), -1) for p in parts], axis=1)
        data, step = rows.reshape(-1).data, rows.shape[1]
        for row in range(len(rows)):
            yield _digest(key, [data[row * step : (row + 1) * step]])


def _of_item(key: bytes, item: Any) -> bytes:
    return _digest(key, _parts(item))


def _digest(key: bytes, parts: Any) -> bytes:
    total = hashlib.blake2b(key=key, digest_size=8)
    for part in parts:
        total.update(part)
    return total.digest()


def _parts(value: Any) -> Iterator[Any]:
    """Content of a record as bytes, each part with its kind and length before it."""
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield _bytes(value).data
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping{len(value)}".encode()
        for name, item in value.items():
            yield from _parts(str(name))
            yield from _parts(item)
    elif isinstance(value, (tuple, list)):
        yield f"sequence{len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        content = repr(value).encode()
        yield f"{type(value).__name__}{len(content)}:".encode()
        yield content
    else:
        raise TypeError(
            f"records of this dataset hold a {type(value).__name__}, whose content cannot be "
            "compared"
        )


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    held = tensor.detach()
    held = held.cpu() if held.layout == torch.strided else held.cpu().to_dense()
    flat: npt.NDArray[np.uint8] = held.contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape[1:])}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shape(item)}' for name, item in value.items())}}}"
    return f"({', '.join(_shape(item) for item in value)})"
