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
        Counts by bin: private, like the records. With units, in steps of what one may add.
    assumptions : tuple of str
        What is taken for granted about how the records were made.
    units : int, optional
        How many units there are.
    """

    histogram: IntArray
    assumptions: tuple[str, ...] = ()
    units: int | None = None

    def __len__(self) -> int:
        return int(self.histogram.sum()) if self.units is None else self.units

    def on(self, bins: int) -> IntArray:
        """Return the histogram, which must be one of so many bins."""
        assert self.histogram.shape == (bins,)
        return np.asarray(self.histogram, np.int64)
