"""What one private median misses on average, computed from the mechanisms' laws instead of drawn.

``python -m benchmarks.quantile_laws``. Cases, bounds and budgets are those of
:mod:`benchmarks.quantiles`. All three mechanisms choose a number with known probabilities, so that
their mean errors have no chance in them and can be compared where runs cannot tell them apart:

* `dp_quantile`: the exponential mechanism over decimal numbers and their measure;
* diffprivlib: the exponential mechanism over gaps between records, weighed by their length, with
  half of the rate;
* OpenDP: the least of 1,024 evenly spaced candidates' scores with exponential noise. How near a
  candidate happens to be decides, so grids of 1,000 and 1,050 candidates stand beside it.

Google's library draws noise for a tree and is left to runs.
"""

from __future__ import annotations

import numpy as np

from benchmarks import table
from benchmarks.quantiles import CASES, EPSILONS, records
from noisewise.release import Decimals

CANDIDATES = (1024, 1000, 1050)


def mean_score(scores: np.ndarray, masses: np.ndarray, rate: float) -> float:
    """Return the mean of a score that is drawn with probability mass * exp(-rate score)."""
    with np.errstate(divide="ignore"):
        weights = np.log(masses) - rate * scores
    weights = np.exp(weights - weights.max())
    return float((weights * scores).sum() / weights.sum())


def of_noisewise(x: np.ndarray, q: float, bounds: tuple[float, float], epsilon: float) -> float:
    """One record comes or goes."""
    domain = Decimals(float(bounds[0]), float(bounds[1]))
    codes, counts = np.unique(domain.place(x), return_counts=True)
    upto = np.cumsum(counts)
    wanted, below = q * x.size, upto - counts
    gaps = np.abs(np.append(below, x.size) - wanted)
    own = np.maximum(0, np.maximum(below - wanted, wanted - upto))
    before = domain.upto(np.append(codes - 1, domain.ends[1]))
    after = domain.upto(codes)
    masses = [float(b - a) for b, a in zip([*before, *after], [0, *after, *before], strict=False)]
    rate = epsilon / (2 * max(q, 1 - q))
    return mean_score(np.concatenate([gaps, own]), np.array(masses), rate) / x.size


def of_diffprivlib(x: np.ndarray, q: float, bounds: tuple[float, float], epsilon: float) -> float:
    """As ``tools.quantile`` of 0.6.6 computes it."""
    edges = np.concatenate([[bounds[0]], np.sort(np.clip(x, *bounds)), [bounds[1]]])
    scores = np.abs(np.arange(x.size + 1) - q * x.size)
    return mean_score(scores, np.diff(edges), epsilon / 2) / x.size


def of_opendp(
    x: np.ndarray, q: float, bounds: tuple[float, float], epsilon: float, candidates: int = 1024
) -> float:
    """As ``make_private_quantile`` of 0.16 does it: by exponential noise on each score."""
    ordered, points = np.sort(x), np.linspace(*bounds, candidates)
    below = np.searchsorted(ordered, points, "left")
    upto = np.searchsorted(ordered, points, "right")
    scores = np.abs((1 - q) * below - q * (x.size - upto)) * epsilon / (2 * max(q, 1 - q))
    missed = np.maximum(0, np.maximum(below - q * x.size, q * x.size - upto)) / x.size
    # Whoever has the largest noise less score wins, at v; only scores near the least one matter.
    late = scores - scores.min()
    late, places, number = np.unique(late[late < 40], return_inverse=True, return_counts=True)
    missed = missed[scores - scores.min() < 40]
    step = 1e-3
    v = np.arange(step / 2, 60, step)
    beyond = np.exp(-(v + late[:, None]))
    others = np.exp((number[:, None] * np.log1p(-beyond)).sum(0))
    chance = (others * beyond / (1 - beyond)).sum(1) * step
    return float((chance[places] * missed).sum() / chance[places].sum())


def main() -> None:
    """Print one row for each case and budget, in percent of n."""
    rows, worse = [], {"diffprivlib": 0, "OpenDP": 0}
    for name, source, column, bounds in CASES:
        x = records(source, column)
        for epsilon in EPSILONS:
            ours = of_noisewise(x, 0.5, bounds, epsilon)
            other = of_diffprivlib(x, 0.5, bounds, epsilon)
            grids = [of_opendp(x, 0.5, bounds, epsilon, many) for many in CANDIDATES]
            worse["diffprivlib"] += ours > other
            worse["OpenDP"] += ours > grids[0]
            errors = (f"{100 * error:.4f}" for error in (ours, other, *grids))
            rows.append((name, f"{epsilon}", *errors))
    names = (f"OpenDP, {many}" for many in CANDIDATES)
    table(
        "mean rank missed by a median, percent of n",
        ("case", "epsilon", "noisewise", "diffprivlib", *names),
        rows,
    )
    for name, number in worse.items():
        print(f"{name} misses less in {number} of {len(rows)} rows")


if __name__ == "__main__":
    main()
