"""Private distribution functions beside OpenDP's b-ary tree: error and time, same guarantee.

``python -m benchmarks ecdf_opendp``. Both get the same n records in [0, 1], the same N = 2^15
thresholds and the same epsilon, with one record replaced (n public). OpenDP: histogram, b-ary
tree with the library's own choice of branching factor, discrete Laplace noise, its consistency
post-processing, cumulative sum. Needs ``pip install opendp``; without it only our side runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks import interleaved, table
from noisewise.ecdf import Budget, dp_ecdf, plan
from noisewise.ecdf.estimate import smooth_counts
from noisewise.privacy import Randomness


def opendp_curve(bins: int, epsilon: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that releases noisy cumulative counts of a histogram with OpenDP."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    branching = dp.t.choose_branching_factor(size_guess=bins)
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=bins), dp.l1_distance(T="i64")

    def build(scale: float):  # type: ignore[no-untyped-def]
        return (
            space
            >> dp.t.then_b_ary_tree(leaf_count=bins, branching_factor=branching)
            >> dp.m.then_laplace(scale=scale)
        )

    # Replacing a record changes two counts by one.
    scale = dp.binary_search_param(build, d_in=2, d_out=epsilon, T=float)
    tree = build(scale)
    consistent = dp.t.make_consistent_b_ary_tree(branching_factor=branching)

    def release(counts: np.ndarray) -> np.ndarray:
        return np.cumsum(consistent(tree(counts.tolist())))

    print(f"OpenDP: branching factor {branching}, scale {scale:.4g}")
    return release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10**6)
    parser.add_argument("--height", type=int, default=15)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments, _ = parser.parse_known_args()
    bins, epsilon = 2**arguments.height, arguments.epsilon
    data = np.random.default_rng(0).beta(2, 5, arguments.records)
    truth = np.cumsum(np.histogram(data, bins, (0, 1))[0])
    rng = Randomness.secure()

    def ours(**options: object) -> Callable[[], np.ndarray]:
        return lambda: (
            dp_ecdf(  # type: ignore[return-value]
                data, bounds=(0, 1), epsilon=epsilon, bins=bins, rng=rng, **options
            ).counts
        )

    candidates: dict[str, Callable[[], np.ndarray]] = {
        "noisewise": ours(),
        "noisewise, not smoothed": ours(smooth=None),
        "noisewise, delta 1e-6": ours(delta=1e-6),
        "noisewise, thesis": ours(mechanism="thesis", smooth=None),
    }
    counts = np.histogram(data, bins, (0, 1))[0]
    prepared = plan(bins, "replace", Budget(epsilon))
    readers: dict[str, Callable[[], np.ndarray]] = {
        "noisewise": lambda: smooth_counts(prepared.release(counts, rng), prepared, "auto"),
    }
    try:
        peer = opendp_curve(bins, epsilon)

        def from_records() -> np.ndarray:
            # The quickest way that we know to count: no library is timed for this part.
            place = np.minimum((data * bins).astype(np.int64), bins - 1)
            return peer(np.bincount(place, minlength=bins))

        candidates["OpenDP"] = from_records
        readers["OpenDP"] = lambda: peer(counts)
    except ImportError:
        print("opendp is not installed (pip install opendp): only our side is measured")
    errors = {}
    for name, release in candidates.items():
        curves = np.array([release() for _ in range(4 if name == "OpenDP" else 8)])
        inner = (curves - truth)[:, :-1]
        errors[name] = (float(np.sqrt((inner**2).mean())), float(np.abs(inner).max(1).mean()))
    seconds = interleaved(candidates, arguments.repeats)
    base = "OpenDP" if "OpenDP" in candidates else "noisewise"
    rows = [
        (
            name,
            f"{errors[name][0]:.1f}",
            f"{errors[name][0] / errors[base][0]:.3f}",
            f"{errors[name][1]:.0f}",
            f"{seconds[name] * 1e3:.0f} ms",
            f"{seconds[base] / seconds[name]:.1f}x",
        )
        for name in candidates
    ]
    header = ("", "rms error", f"/ {base}", "mean max error", "time", f"speed / {base}")
    title = f"from records: n = {arguments.records}, N = {bins}, epsilon {epsilon:g}, replace-one"
    table(title, header, rows)
    seconds = interleaved(readers, arguments.repeats)
    rows = [
        (name, f"{seconds[name] * 1e3:.0f} ms", f"{seconds[base] / seconds[name]:.1f}x")
        for name in readers
    ]
    table("from a histogram: noise, read-out, smoothing", ("", "time", f"speed / {base}"), rows)


if __name__ == "__main__":
    main()
