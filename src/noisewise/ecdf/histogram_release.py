"""Private histograms, with noise bin by bin or cumulative (Barczewski 2025, Section 6.7).

Independent noise on every bin is best for single bins; its error in the count of a range grows
with the number of bins in it. Noise on the cumulative counts may also move records to a
neighbouring bin; the error of any range is only logarithmic in the number of bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.estimate import smooth_counts
from noisewise.ecdf.grid import Grid, as_records
from noisewise.ecdf.mechanisms import Mechanism, plan
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.promise import state
from noisewise.privacy import _validate
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PrivateHistogram", "dp_histogram", "private_histogram"]


@dataclass(frozen=True, eq=False)
class PrivateHistogram:
    """A private histogram. Made by :func:`private_histogram`.

    Parameters
    ----------
    edges : array
        Limits of the bins; bins are closed below, the last one on both sides, as in NumPy.
    counts : array
        Noisy counts; not negative if they were made consistent.
    noisy_cumulative : array
        As released: noisy numbers of records from the *last* bin down to each bin.
    mechanism, budget, relation, randomness
        How they were made.
    """

    edges: FloatArray
    counts: FloatArray
    noisy_cumulative: FloatArray
    mechanism: Mechanism
    budget: Budget
    relation: Relation
    randomness: str

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of the noise of the bins, before they were made consistent."""
        strategy = self.mechanism.strategy
        sizes = strategy.blocks
        units = np.eye(sum(sizes))
        read_out = np.diff(strategy.reconstruct(strategy.spread(units), 0.0), prepend=0.0)
        variances = np.repeat([block.variance for block in self.mechanism.noise], sizes)
        forward = read_out[:, ::-1]
        return np.asarray(forward.T @ (variances[:, None] * forward))

    def range_count(self, first: int, last: int) -> tuple[float, float]:
        """Return the number of records in bins first..last, and its noise's deviation."""
        bins = self.counts.size
        first = _validate.integer("first", first, maximum=bins - 1)
        last = _validate.integer("last", last, minimum=first, maximum=bins - 1)
        part = self.covariance[first : last + 1, first : last + 1]
        return float(self.counts[first : last + 1].sum()), float(np.sqrt(max(part.sum(), 0.0)))

    def plot(self, ax: Axes | None = None, **bars: Any) -> Axes:
        """Draw the histogram."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.stairs(self.counts, self.edges, **{"fill": True, "label": "private", **bars})
        ax.set(ylabel="records")
        return ax

    def statement(self) -> Statement:
        """Return what was promised."""
        return state(
            self.mechanism,
            self.budget,
            self.relation,
            randomness=self.randomness,
            what=f"histogram of {self.counts.size} bins",
            assumptions=("bins were chosen without looking at the data",),
        )


def private_histogram(
    x: Any,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    *,
    epsilon: float,
    delta: float = 0.0,
    noise: Literal["cumulative", "independent"] = "cumulative",
    consistent: bool = True,
    neighbors: str = "replace",
    mechanism: str = "auto",
    rng: Randomness | int | None = None,
) -> PrivateHistogram:
    """Release a histogram with differential privacy.

    Parameters
    ----------
    x : array
        Records, one number each; those outside are moved to the first or last bin.
    bins : int or array
        Number of bins of equal width in `range`, or public edges.
    range : pair of float
        Public range; not needed with edges.
    epsilon, delta : float
        The budget.
    noise : {"cumulative", "independent"}
        Best for ranges of bins, or best for single bins.
    consistent : bool
        Make the cumulative counts monotone, so that no bin is negative.
    neighbors, mechanism, rng
        See :func:`noisewise.ecdf.dp_ecdf`.
    """
    relation, budget, source = Relation.of(neighbors), Budget(epsilon, delta), resolve(rng)
    _validate.choice("noise", noise, ("cumulative", "independent"))
    if np.ndim(bins) == 0:
        grid = Grid.of(range, bins)
    else:
        edges = np.asarray(bins, np.float64).ravel()
        if edges.size < 3:
            raise ValueError(f"bins must be a number or at least three edges, got {bins!r}")
        grid = Grid.of((edges[0], edges[-1]), 2, edges[1:])
    edges = grid.edges
    # Bins are closed below, so the negated records are counted, from the last bin on.
    mirrored = Grid(float(-edges[-1]), -edges[-2::-1])
    chosen = plan(
        grid.bins,
        relation,
        budget,
        mechanism="histogram" if noise == "independent" else mechanism,
        objective="mean",
    )
    counts = mirrored.count(-as_records(x))
    noisy = chosen.release(counts, source)
    curve = smooth_counts(noisy, chosen, "auto" if consistent else None)
    return PrivateHistogram(
        edges=edges,
        counts=np.diff(curve, prepend=0.0)[::-1],
        noisy_cumulative=noisy,
        mechanism=chosen,
        budget=budget,
        relation=relation,
        randomness=source.description,
    )


def dp_histogram(
    x: Any,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    *,
    epsilon: float,
    **options: Any,
) -> tuple[FloatArray, FloatArray]:
    """Return ``(counts, edges)`` as ``numpy.histogram`` does; see :func:`private_histogram`.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=5000)
    >>> counts, edges = dp_histogram(x, 16, (-4, 4), epsilon=1.0, rng=1)
    >>> counts.shape, edges.shape, round(float(counts.sum()))
    ((16,), (17,), 5000)
    """
    found = private_histogram(x, bins, range, epsilon=epsilon, **options)
    return found.counts, found.edges
