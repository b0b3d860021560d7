"""Records of which only a histogram is held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisewise.ecdf.mechanisms.protocol import IntArray

__all__ = ["Counted"]


@dataclass(frozen=True, eq=False)
class Counted:
    """Records of which only a histogram is held: what an engine was asked for.

    Parameters
    ----------
    histogram : array
        Counts by bin: private, like the records.
    assumptions : tuple of str
        What is taken for granted about how the records were made.
    """

    histogram: IntArray
    assumptions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.histogram.sum())

    def on(self, bins: int) -> IntArray:
        """Return the histogram, which must be one of so many bins."""
        assert self.histogram.shape == (bins,)
        return np.asarray(self.histogram, np.int64)
