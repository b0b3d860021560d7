"""How far a computed sum is from the exact one, and what follows for kernels and norms.

Everything here is derived in docs/proofs/rounding.md; each constant names its section there.
One record, added or removed, moves a computed sum by its own contribution and by the change
of rounding in the kernels that it touches. Kernels are cut so short, and norms are taken so
carefully, that the second part stays below the slack of the sensitivity whatever the records.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from noisewise.bounds.norms import SQUARES_AT_ONCE, row_norms
from noisewise.gradients.contractions.base import Sums

__all__ = [
    "RECORDS",
    "RUN",
    "SHARED_RUN",
    "SLACK",
    "SQUARES_AT_ONCE",
    "Totals",
    "adds_whole",
    "alike",
    "gamma",
    "kernel_records",
    "propagated_slack",
    "row_norms",
    "spread",
    "unit",
]

#: Relative allowance for rounding on a sensitivity (docs/proofs/contract.md#numbers). That it is
#: enough is derived in docs/proofs/rounding.md#budget.
SLACK = 1e-3
#: The largest one, where only a propagated bound is known of a record: #propagated.
WIDEST = 5e-3
#: Records whose contributions one float32 kernel adds, where each contributes one product to
#: every entry: docs/proofs/rounding.md#kernels. A multiple of `_MOST`, so that kernels nest.
RECORDS = 48
#: Sums of such kernels that are added in float32 before float64 takes over, and of kernels that
#: add several products of a record: #runs.
RUN = 7
SHARED_RUN = 4
#: Share of the slack for kernels that add several products of a record to an entry: #kernels.
SHARED = 2.45e-4
#: What is left for them where no other layer has the same bound, and what all else takes: #alone.
ALONE = 8e-4
_REST = SLACK - ALONE
#: Largest number of records in such a kernel, a power of two so that kernels nest: #layers.
_MOST = 16
#: Fewer are no faster together than each by itself.
_LEAST = 4
#: Records in a kernel for which a larger slack is worth while, and where it is so for fewer: images
#: of few channels, whose windows need not be copied then.
_FAST = (16, 8)
_FAST_NARROW = (16, 8, 4)
#: Positions that one float32 kernel adds for a record, and how many such pieces: #positions.
POSITIONS = 1024
PIECES = 16


def unit(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding."""
    return float(torch.finfo(dtype).eps) / 2


def gamma(operations: int, dtype: torch.dtype) -> float:
    """Largest relative error of so many roundings one after the other."""
    size = operations * unit(dtype)
    return size / (1 - size) if size < 1 else math.inf


def spread(positions: int) -> float:
    """How many times longer than its gradient the products of a record may be together.

    Positions that have nothing to do with each other reach the root of their number. A record
    beyond four times that cancels, and counts as longer than it is: #spread.
    """
    return 4.0 * math.sqrt(positions)


def _alone(records: int, positions: int, ratio: float, dtype: torch.dtype) -> float:
    """Error of a layer's sums, in bounds: of three full kernels, of one that lacks a record."""
    kernels = unit(dtype) * positions * ratio * (3 * records**2 + (records - 1) ** 2)
    return kernels + _REST


def propagated_slack(positions: int, dtype: torch.dtype, narrow: bool = False) -> float:
    """Return the slack of a layer of which only a propagated bound is known.

    The usual one, unless kernels of more records pay for a larger one. Kernels are cut by
    `kernel_records` to whatever slack the sensitivity has, so it cannot be too small for them.
    `narrow`: a convolution of few channels.
    """
    if positions == 1:
        return SLACK
    counts = _FAST_NARROW if narrow else _FAST
    slacks = (_alone(records, positions, 1.0, dtype) for records in counts)
    return max(SLACK, next((slack for slack in slacks if slack <= WIDEST), SLACK))


def kernel_records(
    positions: int, ratio: float, dtype: torch.dtype, alone: bool = False, slack: float = SLACK
) -> int:
    """Return how many records may share a float32 kernel; one: each is computed by itself.

    Parameters
    ----------
    positions : int
        Products that a record adds to an entry.
    ratio : float
        Largest length of a record's products together, in units of its bound.
    dtype : dtype
        Of the kernel.
    alone : bool
        Whether the bound is that of this layer only.
    slack : float
        Of the sensitivity that is stated of a layer alone: what its kernels may take.
    """
    if positions == 1:
        return RECORDS
    limit = RECORDS if dtype == torch.float64 else _MOST
    if alone:
        fits = (c for c in range(limit, 0, -1) if _alone(c, positions, ratio, dtype) <= slack)
        shared = next(fits, 1)
    else:
        most = math.isqrt(int(SHARED / (4 * unit(dtype) * positions * ratio)))
        shared = min(limit, 1 << max(0, most.bit_length() - 1))
    return shared if shared >= _LEAST else 1


def adds_whole(left: Tensor, right: Tensor) -> bool:
    """Whether ``addmm_`` of such matrices sums all products of an entry before it adds the entry.

    Then it is one kernel and one addition, and saves a pass over memory. It is found out by
    products of which all together, and no fewer, are enough to move a one: #fused. Another
    device would have to be waited for, so there it is not asked.
    """
    if left.device.type != "cpu":
        return False
    (rows, products), columns = left.shape, right.shape[1]
    threads = torch.get_num_threads()
    return _adds_whole(rows, products, columns, left.dtype, threads)


@functools.lru_cache(maxsize=1024)
def _adds_whole(rows: int, products: int, columns: int, dtype: torch.dtype, threads: int) -> bool:
    half = unit(dtype)
    left = torch.ones(products, rows, dtype=dtype)
    right = torch.full((products, columns), half / (products - 0.5), dtype=dtype)
    total = torch.ones(rows, columns, dtype=dtype)
    return products > 1 and bool((total.addmm_(left.t(), right) == 1 + 2 * half).all())


def alike(norms: Tensor) -> Tensor:
    """Return lengths of records whose rounding is relative to what they add."""
    return norms.expand(2, -1)


class Totals:
    """Sums of kernels, added up: a few in their own type, all others in float64 (#runs)."""

    def __init__(self, run: int = RUN) -> None:
        self._run = run
        self._recent: Sums = {}
        self._count: dict[str, int] = {}
        self._wide: Sums = {}

    def open(self, name: str) -> Tensor | None:
        """Return the sum to which the next kernel of this name is added, if there is one."""
        recent = self._recent.get(name)
        if recent is not None and recent.dtype != torch.float64 and self._count[name] == self._run:
            self._flush(name)
            return None
        return recent

    def add(self, name: str, part: Tensor) -> None:
        """Add the sum of one kernel, which may be overwritten; or note that it was added."""
        recent = self.open(name)
        if recent is None:
            self._recent[name] = part
        elif recent is not part:
            recent.add_(part)
        self._count[name] = self._count.get(name, 0) + 1

    def _flush(self, name: str) -> None:
        recent = self._recent.pop(name)
        if name in self._wide:
            self._wide[name].add_(recent)
        else:
            self._wide[name] = recent.double()
        self._count[name] = 0

    def result(self) -> Sums:
        """Return the sums; float64 if there were more than a few kernels."""
        for name in self._wide:
            self._flush(name)
        return {**self._recent, **self._wide}
