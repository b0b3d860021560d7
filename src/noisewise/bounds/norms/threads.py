"""Small linear algebra runs on one thread.

A certificate is a few hundred short operations. Handing each to a pool of threads costs more
than it saves, and on a machine whose cores are busy (a data loader, a second process) the
waiting at every hand-over made certificates ten times slower in our measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]

_LARGE = 1e8


@contextmanager
def one_thread(shape: Sequence[int]) -> Iterator[None]:
    """Use one thread for a weight of this shape unless it is large."""
    threads = torch.get_num_threads()
    if threads == 1 or math.prod(shape) * min(shape[:2], default=0) > _LARGE:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
