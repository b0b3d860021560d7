"""Keys as bytes: compact, of fixed length, with one valid spelling, checked when read.

    2  "nw"           2  version, kind       1  levels       1  server (0 or 1)
    8  round tag     16  identifier         16  root seed
    per level: 16 correction of the seeds (its lowest bit: the left control bit),
               comparison keys also 8 correction of the value
    ceil(levels/8) right control bits, first level in the lowest bit
    16 (point), 32 (checked) or 8 (comparison) correction of the last value
    checked keys also 16 of their proof

A point key stops one level early, with two 64-bit values in the last 128-bit block. Everything
but server and root seed is the same in both keys of a pair, so two servers can compare a digest
of it (:func:`public_digests`) to see that their keys belong together, without telling each other
anything that both do not know.

What checks can find: keys of the wrong length, kind, number of levels, server or round,
spellings that are not canonical, and repetitions. That a point key counts one
unit is the owner's word (see :class:`noisewise.federated.FunctionSharing`); a checked key
proves it (:mod:`noisewise.federated.fss.checked`).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.errors import NoisewiseError
from noisewise.federated.sharing.field import PRIME

__all__ = [
    "KeyFormatError",
    "Kind",
    "Table",
    "depth",
    "key_bytes",
    "key_dtype",
    "new_table",
    "public_digests",
    "read_table",
    "round_tag",
]

Kind: TypeAlias = Literal["point", "comparison", "checked"]
Table: TypeAlias = NDArray[Any]

MAGIC = b"nw"
VERSION = 1
KINDS: dict[str, int] = {"point": 1, "comparison": 2, "checked": 3}
#: 64-bit words of the last correction.
LAST: dict[str, int] = {"point": 2, "comparison": 1, "checked": 4}
MAXIMUM_LEVELS = 62
IDENTIFIER_BYTES, TAG_BYTES = 16, 8


class KeyFormatError(NoisewiseError, ValueError):
    """Bytes that are not a valid key for this server, question and round."""


def round_tag(name: str, digest: bytes = b"") -> bytes:
    """Return the tag that binds keys to a round and to the cells that it is about."""
    return hashlib.sha256(b"noisewise/round/1/" + digest + name.encode()).digest()[:TAG_BYTES]


def depth(kind: Kind, levels: int) -> int:
    """Number of corrected levels: a point key stops one level early."""
    return levels if kind == "comparison" else levels - 1


@lru_cache(maxsize=256)
def key_dtype(kind: Kind, levels: int) -> np.dtype[Any]:
    """Return the layout of one key."""
    checks.choice("kind", kind, KINDS)
    checks.integer("levels", levels, minimum=1, maximum=MAXIMUM_LEVELS)
    down = depth(kind, levels)
    fields: list[Any] = [
        ("magic", "S2"),
        ("version", "u1"),
        ("kind", "u1"),
        ("levels", "u1"),
        ("server", "u1"),
        ("round", "V8"),
        ("identifier", "V16"),
        ("root", "<u8", (2,)),
        ("seeds", "<u8", (down, 2)),
    ]
    if kind == "comparison":
        fields.append(("values", "<u8", (down,)))
    fields.append(("right", "u1", (-(-down // 8),)))
    fields.append(("last", "<u8", (LAST[kind],)))
    if kind == "checked":
        fields.append(("proof", "<u8", (2,)))
    return np.dtype(fields)


def key_bytes(kind: Kind, levels: int) -> int:
    """Return the length of a key.

    Examples
    --------
    >>> key_bytes("point", 15), key_bytes("checked", 15), key_bytes("comparison", 15)
    (288, 320, 416)
    """
    return key_dtype(kind, levels).itemsize


def new_table(kind: Kind, levels: int, size: int, server: int, tag: bytes) -> Table:
    """Return keys with their headers filled in and everything else zero."""
    if len(tag) != TAG_BYTES:
        raise ValueError(f"the round tag must have {TAG_BYTES} bytes, got {len(tag)}")
    table = np.zeros(size, key_dtype(kind, levels))
    table["magic"], table["version"], table["kind"] = MAGIC, VERSION, KINDS[kind]
    table["levels"], table["server"] = levels, server
    table["round"] = np.void(tag)
    return table


def read_table(
    data: bytes | bytearray | memoryview, kind: Kind, levels: int, server: int, tag: bytes
) -> Table:
    """Read keys one after the other, or say which of them is not valid, and why.

    Parameters
    ----------
    data : bytes
        Any number of keys, at least one.
    kind, levels, server, tag
        What they must be: a key for another question, server or round is refused.
    """
    layout = key_dtype(kind, levels)
    size = memoryview(data).nbytes
    if size == 0 or size % layout.itemsize:
        raise KeyFormatError(
            f"{kind} keys of {levels} levels have {layout.itemsize} bytes each, got {size} bytes: "
            "truncated, or made for another question"
        )
    table: Table = np.frombuffer(data, layout).copy()
    expected: list[tuple[str, Any]] = [
        ("magic", MAGIC),
        ("version", VERSION),
        ("kind", KINDS[kind]),
        ("levels", levels),
        ("server", server),
    ]
    for name, value in expected:
        _refuse(table[name] != value, f"{name} is not {value!r}")
    tags = np.ascontiguousarray(table["round"]).view(np.uint64)
    _refuse(tags != np.frombuffer(tag, np.uint64)[0], "made for another round or other cells")
    _refuse((table["root"][:, 0] & np.uint64(1)) != 0, "the root seed has its control bit set")
    down = depth(kind, levels)
    if down % 8:
        spare = table["right"][:, -1] >> np.uint8(down % 8)
        _refuse(spare != 0, "unused bits are set")
    if kind == "checked":
        for name in ("last", "proof"):
            _refuse(np.any(table[name] >= PRIME, axis=1), f"{name} is not in the field")
    identifiers = np.ascontiguousarray(table["identifier"]).view(np.uint64).reshape(-1, 2)
    _refuse((identifiers == 0).all(1), "the identifier is empty")
    return table


def public_digests(table: Table) -> NDArray[Any]:
    """Return 16 bytes for each key that are equal in both keys of a pair, and only there."""
    common = table.copy()
    common["server"], common["root"] = 0, 0
    data, size = common.tobytes(), common.dtype.itemsize
    digests = b"".join(
        hashlib.blake2b(data[start : start + size], digest_size=16).digest()
        for start in range(0, len(data), size)
    )
    return np.frombuffer(digests, "V16")


def _refuse(wrong: NDArray[np.bool_], why: str) -> None:
    if np.any(wrong):
        raise KeyFormatError(f"key {int(np.argmax(wrong))}: {why}")
