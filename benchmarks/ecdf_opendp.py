"""Private distribution functions beside OpenDP's b-ary tree: error and time, same guarantee.

``python -m benchmarks ecdf_opendp``. Both get the same n records in [0, 1], the same N = 2^15
thresholds and the same budget, with one record replaced (n public). OpenDP (0.16): histogram, b-ary
tree, discrete Laplace noise of the scale that its own search finds, its consistency
post-processing, and its own ``make_cdf`` or a cumulative sum, whichever is better. Two
configurations: the branching factor that ``choose_branching_factor`` proposes, and the best of
all that were tried, which a user would have to know. With delta 1e-6 its Laplace tree is valid
too, and is the better one: the Gaussian tree, also measured, charges the number of levels where
its square root would do, and takes whole distances only. OpenDP has no step that makes
the curve monotone. Errors are of counts (n F), over all thresholds and releases; times are
processor times of one release from records, planning done. Needs ``pip install opendp``; without
it only our side runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks import table
from noisewise.ecdf import Budget, dp_ecdf, plan
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.estimate import smooth_counts
from noisewise.privacy import Randomness

Curve = Callable[[np.ndarray], np.ndarray]


def opendp_curves(
    bins: int, epsilon: float, branching: int | None, delta: float = 0.0
) -> tuple[Curve, Curve, str]:
    """Return cumulative sums and rescaled `make_cdf` of OpenDP's tree, and its parameters."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    factor = branching or dp.t.choose_branching_factor(size_guess=bins)
    distance = dp.l2_distance if delta else dp.l1_distance
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=bins), distance(T="i64")

    def build(scale: float):  # type: ignore[no-untyped-def]
        tree = space >> dp.t.then_b_ary_tree(leaf_count=bins, branching_factor=factor)
        if not delta:
            return tree >> dp.m.then_laplace(scale=scale)
        noisy = tree >> dp.m.then_gaussian(scale=scale)
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(noisy), delta=delta)

    # Replacing a record changes two counts by one: l1 distance 2, l2 distance at most 2.
    d_out = (epsilon, delta) if delta else epsilon
    scale = dp.binary_search_param(build, d_in=2, d_out=d_out, T=float)
    tree = build(scale)
    consistent = dp.t.make_consistent_b_ary_tree(branching_factor=factor)
    cdf = dp.t.make_cdf(TA=float)

    def sums(counts: np.ndarray) -> np.ndarray:
        return np.cumsum(consistent(tree(counts.tolist())))

    def rescaled(counts: np.ndarray) -> np.ndarray:
        leaves = consistent(tree(counts.tolist()))
        return np.array(cdf(leaves)) * counts.sum()

    return sums, rescaled, f"branching factor {factor}, scale {scale:.4g}"


def processor_seconds(
    candidates: dict[str, Callable[[], np.ndarray]], repeats: int
) -> dict[str, float]:
    """Return the median processor time of each, in turns: other load changes it little."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def errors_of(release: Callable[[], np.ndarray], truth: np.ndarray, releases: int) -> list[float]:
    """Root mean squared, mean absolute and mean largest error."""
    inner = np.array([release() - truth for _ in range(releases)])[:, :-1]
    largest = np.abs(inner).max(1).mean()
    return [float(np.sqrt((inner**2).mean())), float(np.abs(inner).mean()), float(largest)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10**6)
    parser.add_argument("--height", type=int, default=15)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--best", type=int, default=16, help="OpenDP's best branching factor")
    parser.add_argument("--releases", type=int, default=16, help="for the errors")
    parser.add_argument("--repeats", type=int, default=5, help="for the times")
    arguments, _ = parser.parse_known_args()
    bins, epsilon, delta = 2**arguments.height, arguments.epsilon, arguments.delta
    data = np.random.default_rng(0).beta(2, 5, arguments.records)
    counts = np.histogram(data, bins, (0, 1))[0]
    truth = np.cumsum(counts)
    rng = Randomness.secure()

    def ours(**options: object) -> Callable[[], np.ndarray]:
        return lambda: (
            dp_ecdf(  # type: ignore[return-value]
                data,
                bounds=(0, 1),
                epsilon=epsilon,
                bins=bins,
                rng=rng,
                relation="replace-one",
                **options,
            ).counts
        )

    def counted(curve: Curve) -> Callable[[], np.ndarray]:
        def from_records() -> np.ndarray:
            # The quickest way that we know to count: no library is timed for this part.
            place = np.minimum((data * bins).astype(np.int64), bins - 1)
            return curve(np.bincount(place, minlength=bins))

        return from_records

    candidates: dict[str, Callable[[], np.ndarray]] = {
        "noisewise": ours(),
        "noisewise, adaptive": ours(mechanism="adaptive"),
        "noisewise, shrunken": ours(smooth="shrink"),
        "noisewise, not smoothed": ours(smooth=None),
        f"noisewise, delta {delta:g}": ours(delta=delta),
        "noisewise, thesis": ours(mechanism="thesis", smooth=None),
    }
    prepared = plan(bins, "replace-one", Budget(epsilon))
    readers: dict[str, Callable[[], np.ndarray]] = {
        "noisewise": lambda: smooth_counts(noisy_counts(prepared, counts, rng), prepared, "auto"),
    }
    try:
        for name, branching in (("OpenDP, proposed", None), ("OpenDP, best", arguments.best)):
            sums, rescaled, text = opendp_curves(bins, epsilon, branching)
            print(f"{name}: {text}")
            candidates[name], candidates[f"{name}, make_cdf"] = counted(sums), counted(rescaled)
        sums, rescaled, text = opendp_curves(bins, epsilon, 2, delta)
        print(f"OpenDP, Gaussian with delta {delta:g}: {text}")
        candidates[f"OpenDP, Gaussian, delta {delta:g}"] = counted(rescaled)
        proposed = opendp_curves(bins, epsilon, None)[0]
        readers["OpenDP, proposed"] = lambda: proposed(counts)
    except ImportError:
        print("opendp is not installed (pip install opendp): only our side is measured")
    errors = {
        name: errors_of(release, truth, arguments.releases) for name, release in candidates.items()
    }
    seconds = processor_seconds(candidates, arguments.repeats)
    base = next((name for name in candidates if name.startswith("OpenDP")), "noisewise")
    rows = []
    for name in candidates:
        squared, absolute, largest = errors[name]
        ratio = squared / errors[base][0]
        rows.append(
            (
                name,
                f"{squared:.1f}",
                f"{ratio:.2f}",
                f"{ratio**2:.2f}",
                f"{absolute:.1f}",
                f"{largest:.0f}",
                f"{seconds[name] * 1e3:.0f} ms",
                f"{seconds[base] / seconds[name]:.1f}x",
            )
        )
    header = (
        "",
        "rms error",
        "/ proposed",
        "squared",
        "mean abs",
        "mean largest",
        "time",
        "speed / proposed",
    )
    title = f"from records: n = {arguments.records}, N = {bins}, epsilon {epsilon:g}, replace-one"
    table(title, header, rows)
    seconds = processor_seconds(readers, arguments.repeats)
    last = list(readers)[-1]
    rows = [
        (name, f"{seconds[name] * 1e3:.0f} ms", f"{seconds[last] / seconds[name]:.1f}x")
        for name in readers
    ]
    table("from a histogram: noise, read-out, smoothing", ("", "time", f"speed / {last}"), rows)


if __name__ == "__main__":
    main()
