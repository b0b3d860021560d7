"""What point and comparison keys have in common: a table of keys for one server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.federated.fss.hashing import Words
from noisewise.federated.fss.wire import Kind, Table, depth, public_digests, read_table

__all__ = ["Keys", "checked_points", "left_bits", "pack_bits", "right_bits"]

K = TypeVar("K", bound="Keys")


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of many records, for one server.

    Parameters
    ----------
    table : structured array
        One row for each key, laid out as on the wire.
    levels : int
        Binary digits of the domain.
    server : int
        0 or 1.
    """

    kind: ClassVar[Kind]
    table: Table
    levels: int
    server: int

    def __len__(self) -> int:
        return int(self.table.size)

    def __getitem__(self: K, rows: slice | NDArray[Any]) -> K:
        """Return some of the keys."""
        return replace(self, table=self.table[rows])

    @property
    def identifiers(self) -> list[bytes]:
        """The identifier of each key, equal in both keys of a pair."""
        data = np.ascontiguousarray(self.table["identifier"]).tobytes()
        return [data[start : start + 16] for start in range(0, len(data), 16)]

    @property
    def public_digests(self) -> list[bytes]:
        """16 bytes for each key by which two servers see that their keys are a pair."""
        data = public_digests(self.table).tobytes()
        return [data[start : start + 16] for start in range(0, len(data), 16)]

    def to_bytes(self) -> bytes:
        """Return all keys, one after the other."""
        return self.table.tobytes()

    @classmethod
    def from_bytes(
        cls: type[K], data: bytes | bytearray | memoryview, levels: int, server: int, tag: bytes
    ) -> K:
        """Read and check keys; see :func:`noisewise.federated.fss.wire.read_table`."""
        return cls(read_table(data, cls.kind, levels, server, tag), levels, server)

    def corrections(self) -> tuple[Words, Words, NDArray[np.uint8], NDArray[np.uint8], Words]:
        """Return root seeds, seed corrections, left and right control bits, last values."""
        # Copies, always: the table must not change, and the kernels want aligned rows.
        seeds = np.array(self.table["seeds"], order="C")
        left = left_bits(seeds)
        seeds[..., 0] &= ~np.uint64(1)
        right = right_bits(self.table["right"], depth(self.kind, self.levels))
        root = np.array(self.table["root"], order="C")
        return root, seeds, left, right, np.array(self.table["last"], order="C")


def left_bits(seeds: Words) -> NDArray[np.uint8]:
    """Return the left control bits, kept in the lowest bits of the seed corrections."""
    bits: NDArray[np.uint8] = (seeds[..., 0] & np.uint64(1)).astype(np.uint8)
    return bits


def right_bits(packed: NDArray[np.uint8], down: int) -> NDArray[np.uint8]:
    """Return the right control bits."""
    if down == 0:
        return np.zeros((packed.shape[0], 0), np.uint8)
    contiguous = np.ascontiguousarray(packed)
    bits: NDArray[np.uint8] = np.unpackbits(contiguous, axis=1, count=down, bitorder="little")
    return bits


def pack_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack control bits of shape (keys, levels)."""
    return np.packbits(bits, axis=1, bitorder="little")


def checked_points(points: Any, levels: int, name: str = "points") -> NDArray[np.uint64]:
    """Return points of the domain, or raise."""
    checks.integer("levels", levels, minimum=1, maximum=62)
    whole = np.asarray(points)
    if whole.dtype.kind not in "iu" or whole.ndim != 1:
        raise TypeError(f"{name} must be a one-dimensional array of integers, got {whole.dtype}")
    if whole.size and (int(whole.min()) < 0 or int(whole.max()) >= 1 << levels):
        raise ValueError(f"{name} must lie in [0, 2^{levels})")
    return whole.astype(np.uint64)
