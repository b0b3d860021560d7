"""Private histograms, with noise bin by bin or cumulative (Barczewski 2025, Section 6.7).

Independent noise on every bin is best for single bins; its error in the count of a range grows
with the number of bins in it. Noise on the cumulative counts may also move records to a
neighbouring bin; the error of any range is only logarithmic in the number of bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import account_of, count_of, counting, public_total
from noisewise.ecdf.estimate import curve_mechanism, smooth_counts
from noisewise.ecdf.grid import Grid, as_records
from noisewise.ecdf.labelled import with_codes
from noisewise.ecdf.mechanisms import Mechanism
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.registry import curve
from noisewise.ecdf.sources.tables import column_of, rows_at_hand
from noisewise.privacy import Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    LedgerOrPath,
    Promise,
    StatedTuple,
    ThisProcess,
    one_vocabulary,
    per_unit,
    release,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from noisewise.ecdf.options import HistogramOptions

__all__ = ["Histogram", "PrivateHistogram", "dp_histogram", "private_histogram"]


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
    mechanism, budget, relation
        How they were made.
    promise : Promise
        What the statement is derived from.
    """

    edges: FloatArray
    counts: FloatArray
    noisy_cumulative: FloatArray
    mechanism: Mechanism
    budget: Budget
    relation: Relation
    promise: Promise

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of the noise of the bins, before they were made consistent."""
        strategy = self.mechanism.strategy
        sizes = strategy.blocks
        units = np.eye(sum(sizes))
        read_out = np.diff(strategy.reconstruct(strategy.spread(units), 0.0), prepend=0.0)
        variances = np.repeat(self.mechanism.block_variances, sizes)
        forward = read_out[:, ::-1]
        return np.asarray(forward.T @ (variances[:, None] * forward))

    def range_count(self, first: int, last: int) -> tuple[float, float]:
        """Return the number of records in bins first..last, and its noise's deviation."""
        bins = self.counts.size
        first = checks.integer("first", first, maximum=bins - 1)
        last = checks.integer("last", last, minimum=first, maximum=bins - 1)
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
        return self.promise.state()


@curve(
    answers="How many values lie in each bin, with deviations and intervals.",
    proof="proofs/curves.md#trees",
)
@one_vocabulary
def private_histogram(
    x: Any,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    *,
    epsilon: float,
    delta: float = 0.0,
    noise: Literal["cumulative", "independent"] = "cumulative",
    consistent: bool = True,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    mechanism: str = "auto",
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    data: Any = None,
) -> PrivateHistogram:
    """Release a histogram with differential privacy.

    Parameters
    ----------
    x : array
        Records, one number each; those outside are moved to the first or last bin. With `data`,
        the name of a column.
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
    relation, units, max_per_unit, mechanism, ledger, seed, data
        See :func:`noisewise.ecdf.dp_ecdf`.
    """
    relation, budget, source = Relation.of(relation), Budget(epsilon, delta), resolve(seed)
    bounded = per_unit(units, max_per_unit, source)
    most = ONE_ROW if bounded is None else bounded.contribution
    checks.choice("noise", noise, ("cumulative", "independent"))
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
    chosen = curve_mechanism(
        grid.bins,
        relation,
        budget,
        most,
        mechanism="histogram" if noise == "independent" else mechanism,
        objective="mean",
    )
    x, _, _, units, data, bounded = rows_at_hand(data, x, None, None, units, bounded)
    if data is not None:
        column = column_of(data, x, units=units, bounded=bounded)
        held: Any = column.counted(mirrored, negated=True)
    else:
        held = -as_records(x)
    if bounded is not None:
        held = with_codes(held, units)
    parties = ThisProcess(held)
    query = counting(
        chosen,
        relation,
        count_of(mirrored, bounded),
        f"histogram of {grid.bins} bins",
        assumptions=("bins were chosen without looking at the data",),
        contribution=most,
    )
    with account_of(ledger, relation, budget, most) as account:
        found = release(query, chosen, parties, account, delta=delta, rng=source)
    noisy = chosen.read(found.value, float(public_total(parties, relation, bounded) or 0))
    curve = smooth_counts(noisy, chosen, "auto" if consistent else None)
    return PrivateHistogram(
        edges=edges,
        counts=np.diff(curve, prepend=0.0)[::-1],
        noisy_cumulative=noisy,
        mechanism=chosen,
        budget=budget,
        relation=relation,
        promise=found.promise,
    )


class _Histogram(NamedTuple):
    counts: FloatArray
    edges: FloatArray


class Histogram(StatedTuple, _Histogram):
    """``(counts, edges)`` as of ``numpy.histogram``, with ``statement()``."""


@curve(answers="The same, as `numpy.histogram` returns it.", proof="proofs/curves.md#trees")
@one_vocabulary
def dp_histogram(
    x: Any,
    bins: Any = 64,
    range: tuple[float, float] | None = None,
    *,
    epsilon: float,
    **options: Unpack[HistogramOptions],
) -> Histogram:
    """Return ``(counts, edges)`` as ``numpy.histogram`` does; see :func:`private_histogram`.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=5000)
    >>> counts, edges = dp_histogram(x, 16, (-4, 4), epsilon=1.0, relation="replace-one", seed=1)
    >>> counts.shape, edges.shape, round(float(counts.sum()))
    ((16,), (17,), 5000)
    """
    found = private_histogram(x, bins, range, epsilon=epsilon, **options)
    return Histogram.stated((found.counts, found.edges), found.statement)
