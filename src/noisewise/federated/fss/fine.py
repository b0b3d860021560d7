"""A few thresholds on a very fine grid: comparison keys.

Records are placed on 2^levels cells of equal width, far too many to evaluate; servers evaluate
their keys at the thresholds that are asked for, which may be chosen after the keys were sent. As
the placement is monotone, a record at or below a threshold is always counted; one above it
is counted only if it lies within the same fine cell, closer than (upper - lower) / 2^levels.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf import as_records
from noisewise.federated.fss.comparison import ComparisonKeys
from noisewise.federated.fss.hashing import Words
from noisewise.federated.fss.keys import Keys
from noisewise.federated.fss.server import KeyStore

__all__ = ["ComparisonStore", "FineDomain"]


@dataclass(frozen=True)
class FineDomain:
    """2^levels public cells of equal width, closed above.

    Parameters
    ----------
    lower, upper : float
        Public bounds; values outside are moved to them.
    levels : int
        Binary digits, at most 48 (beyond, doubles would not tell cells apart).

    Examples
    --------
    >>> FineDomain(0.0, 1.0, 2).place([0.0, 0.25, 0.26, 7.0]).tolist()
    [0, 0, 1, 3]
    """

    lower: float
    upper: float
    levels: int = 32

    def __post_init__(self) -> None:
        lower, upper = checks.finite("lower", self.lower), checks.finite("upper", self.upper)
        if not lower < upper:
            raise ValueError(f"bounds must increase, got {lower!r} and {upper!r}")
        checks.integer("levels", self.levels, minimum=1, maximum=48)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    def place(self, values: Any) -> NDArray[np.uint64]:
        """Return the cell of each value: a monotone function of it."""
        inside = np.clip(as_records(values), self.lower, self.upper)
        # Each floating-point operation is monotone in its argument, so the whole is.
        part = (inside - self.lower) / (self.upper - self.lower)
        cells = np.ceil(part * 2.0**self.levels) - 1
        whole: NDArray[np.uint64] = np.clip(cells, 0, 2.0**self.levels - 1).astype(np.uint64)
        return whole

    @property
    def digest(self) -> bytes:
        """32 bytes that two parties can compare to know that they mean the same cells."""
        text = struct.pack("<ddB", self.lower, self.upper, self.levels)
        return hashlib.sha256(b"noisewise/fine-domain/1/" + text).digest()


class ComparisonStore(KeyStore):
    """The comparison keys that one server accepted in one round."""

    keys: ClassVar[type[Keys]] = ComparisonKeys

    def counts_share(
        self, names: Iterable[bytes], thresholds: Any, *, compiled: bool | None = None
    ) -> Words:
        """Return shares of the numbers of records in (t_(i-1), t_i], the last up to the end.

        Parameters
        ----------
        names : iterable of bytes
            Identifiers; both servers must take the same ones.
        thresholds : array of float
            Increasing; the last one is the upper bound, where every record is counted.
        compiled : bool, optional
            See :meth:`ComparisonKeys.sum_at`.
        """
        points = np.asarray(thresholds, np.float64)
        inner = self.domain.place(points[:-1])
        wanted = list(names)
        prefix = np.zeros(points.size, np.uint64)
        for part in self._select(wanted):
            assert isinstance(part, ComparisonKeys)
            prefix[:-1] += part.sum_at(inner, compiled=compiled)
        # Both servers know how many records there are; one of them says so.
        prefix[-1] = len(wanted) if self.server == 0 else 0
        return np.diff(prefix, prepend=np.uint64(0))
