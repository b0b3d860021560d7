"""Private quantiles beside diffprivlib, OpenDP and Google's library, and our own curve.

``python -m benchmarks.quantiles``. The cases stand in `CASES` below and were written down before
the first run: columns of four public tables and three made-up shapes (atoms, heavy tails), with
bounds as a careful user would give them and, marked "wide", as a careless one would; epsilon
0.05, 0.5 and 2; 1, 3 and 9 quantiles, evenly spaced. One record comes or goes, delta is 0, the
number of records is private. All get the same records, bounds and epsilon, and answer with their
own defaults:

* diffprivlib 0.6: ``tools.quantile``, which divides epsilon by the number of quantiles;
* OpenDP 0.16: ``make_private_quantile`` over 2^10 evenly spaced candidates, epsilon divided;
* Google's, by python-dp 1.1: ``Percentile`` (a tree), epsilon divided;
* our curve: ``dp_ecdf(...).quantile`` on 2^15 thresholds.

The error of a quantile is by how much its rank is wrong, as a part of n: the distance of q from
the ranks that the answer has among the records, averaged over quantiles and runs. Peers run in
a Python of their own (``--peers /path/to/python``), which needs diffprivlib, opendp and
python-dp; what is not installed there is left out, and ``--only diffprivlib`` leaves others out.
``--cases Cauchy,lognormal --epsilons 0.05 --numbers 1`` are some cases, budgets and numbers of
quantiles, for more runs.
Single runs say little: at epsilon 0.05 errors of one method differ by as much as their mean. So it
is also counted in how many rows a method is better than ours by more than chance: by four standard
errors of the difference of the two means.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import table

RUNS = 12
EPSILONS = (0.05, 0.5, 2.0)
NUMBERS = (1, 3, 9)
#: Name, table or shape, column, bounds.
CASES: tuple[tuple[str, str, str, tuple[float, float]], ...] = (
    ("Framingham, age", "framingham", "age", (0, 120)),
    ("Framingham, BMI", "framingham", "BMI", (0, 100)),
    ("Framingham, cigarettes (half zeros)", "framingham", "cigsPerDay", (0, 200)),
    ("Framingham, glucose, wide", "framingham", "glucose", (0, 1e6)),
    ("Bank, balance", "bank_marketing", "balance", (-1e5, 1e5)),
    ("Bank, balance, wide", "bank_marketing", "balance", (-1e9, 1e9)),
    ("Bank, duration", "bank_marketing", "duration", (0, 10_000)),
    ("Diabetes, medications", "diabetes130", "num_medications", (0, 200)),
    ("Diabetes, lab procedures", "diabetes130", "num_lab_procedures", (0, 1000)),
    ("California, house value", "california_housing", "MedHouseVal", (0, 10)),
    ("California, income, wide", "california_housing", "MedInc", (0, 1e6)),
    ("California, population", "california_housing", "Population", (0, 1e5)),
    ("one value for nine tenths", "atoms", "", (0, 1000)),
    ("Cauchy, wide", "cauchy", "", (-1e12, 1e12)),
    ("lognormal", "lognormal", "", (0, 1e4)),
)
METHODS = ("noisewise", "our curve", "diffprivlib", "OpenDP", "Google")


def records(source: str, column: str) -> np.ndarray:
    """Return the records of a case."""
    generator = np.random.default_rng(20)
    if source == "atoms":
        return np.where(generator.random(5000) < 0.9, 12.5, generator.random(5000) * 1000)
    if source == "cauchy":
        return generator.standard_cauchy(5000) * 3 + 100
    if source == "lognormal":
        return generator.lognormal(3.0, 1.5, 5000)
    import pandas as pd

    folder = Path(os.environ.get("NOISEWISE_DATA", "data"))
    values = pd.read_parquet(folder / f"{source}.parquet", columns=[column])[column]
    return values.dropna().to_numpy(np.float64)


CHANCE = 4.0  # standard errors


def missed(ordered: np.ndarray, q: np.ndarray, found: np.ndarray) -> float:
    """By how much ranks are wrong, as a part of n."""
    below = np.searchsorted(ordered, found, "left") / ordered.size
    upto = np.searchsorted(ordered, found, "right") / ordered.size
    return float(np.maximum(0, np.maximum(below - q, q - upto)).mean())


def better_than_chance(errors: list[float], ours: list[float]) -> bool:
    """Whether errors are smaller than ours by more than chance makes of equal ones."""
    if len(errors) < 2 or len(ours) < 2:
        return False
    deviation = np.sqrt(np.var(errors, ddof=1) / len(errors) + np.var(ours, ddof=1) / len(ours))
    return bool(np.mean(ours) - np.mean(errors) > CHANCE * deviation)


def difference(errors: list[float], ours: list[float]) -> tuple[float, float]:
    """Return limits (99 %) of by how much their mean error is larger than ours."""
    deviation = np.sqrt(np.var(errors, ddof=1) / len(errors) + np.var(ours, ddof=1) / len(ours))
    middle = float(np.mean(errors) - np.mean(ours))
    return middle - 2.576 * float(deviation), middle + 2.576 * float(deviation)


def evenly(number: int) -> np.ndarray:
    """Return so many quantiles."""
    return np.arange(1, number + 1) / (number + 1)


# --------------------------------------------------------------------------- run by peers

Ask = Callable[[np.ndarray, np.ndarray, tuple[float, float], float], np.ndarray]


def with_diffprivlib() -> Ask:
    """IBM's library."""
    import warnings

    from diffprivlib import tools

    def ask(x: np.ndarray, q: np.ndarray, bounds: tuple[float, float], epsilon: float) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.atleast_1d(tools.quantile(x, q.tolist(), epsilon=epsilon, bounds=bounds))

    return ask


def with_opendp() -> Ask:
    """Quantile scores of candidates, and report noisy max."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")

    def ask(x: np.ndarray, q: np.ndarray, bounds: tuple[float, float], epsilon: float) -> Any:
        candidates = np.linspace(*bounds, 1 << 10).tolist()
        found = []
        for one in q.tolist():
            space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

            def build(scale: float, one: float = one, space: Any = space) -> Any:
                return dp.m.make_private_quantile(
                    *space, dp.max_divergence(), candidates=candidates, alpha=one, scale=scale
                )

            scale = dp.binary_search_param(build, d_in=1, d_out=epsilon / q.size, T=float)
            found.append(build(scale)(x.tolist()))
        return np.array(found)

    return ask


def with_google() -> Ask:
    """Google's C++ library, as python-dp wraps it."""
    from pydp.algorithms.laplacian import Percentile

    def ask(x: np.ndarray, q: np.ndarray, bounds: tuple[float, float], epsilon: float) -> Any:
        found = []
        for one in q.tolist():
            tree = Percentile(
                epsilon=epsilon / q.size, percentile=one, lower_bound=float(bounds[0]),
                upper_bound=float(bounds[1]), dtype="float",
            )  # fmt: skip
            found.append(float(tree.quick_result(x.tolist())))
        return np.array(found)

    return ask


PEERS = {"diffprivlib": with_diffprivlib, "OpenDP": with_opendp, "Google": with_google}


def serve(
    path: Path, runs: int, only: str | None, epsilons: list[float], numbers: list[int]
) -> None:
    """Answer for the peers that are installed here; run by their own Python."""
    with np.load(path) as held:
        data = {name: held[name] for name in held.files}
    answers: dict[str, dict[str, list[list[float]]]] = {}
    for name, make in PEERS.items():
        if only is not None and name != only:
            continue
        try:
            ask = make()
        except ImportError as error:
            print(f"{name} is not installed: {error}", file=sys.stderr)
            continue
        answers[name] = {}
        for number, (_, _, _, bounds) in enumerate(CASES):
            for epsilon, many in settings(epsilons, numbers) if str(number) in data else ():
                key = f"{number} {epsilon} {many}"
                try:
                    answers[name][key] = [
                        ask(data[str(number)], evenly(many), bounds, epsilon).tolist()
                        for _ in range(runs)
                    ]
                except Exception as error:
                    print(f"{name}, case {number}: {error}"[:200], file=sys.stderr)
    print(json.dumps(answers))


def settings(epsilons: Sequence[float], numbers: Sequence[int]) -> Iterator[tuple[float, int]]:
    """Yield every epsilon with every number of quantiles."""
    for epsilon in epsilons:
        for number in numbers:
            yield epsilon, number


# ------------------------------------------------------------------------------ run by us


def ours(x: np.ndarray, q: np.ndarray, bounds: tuple[float, float], epsilon: float) -> Any:
    """Chosen by rank."""
    from noisewise.ecdf import dp_quantile

    return np.asarray(dp_quantile(x, q, bounds=bounds, epsilon=epsilon))


def curve(x: np.ndarray, q: np.ndarray, bounds: tuple[float, float], epsilon: float) -> Any:
    """Read from a curve."""
    from noisewise.ecdf import dp_ecdf

    return dp_ecdf(x, bounds=bounds, epsilon=epsilon).quantile(q)


def main() -> None:
    """Print one row for each case and number of quantiles: errors over all epsilons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--peers", help="a Python that has the other libraries")
    parser.add_argument("--only", choices=list(PEERS), help="one of the other libraries")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cases", default="", help="parts of their names, with commas")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--numbers", default=",".join(map(str, NUMBERS)))
    options, _ = parser.parse_known_args()
    epsilons = [float(text) for text in options.epsilons.split(",")]
    numbers = [int(text) for text in options.numbers.split(",")]
    if options.serve is not None:
        serve(options.serve, options.runs, options.only, epsilons, numbers)
        return
    words = options.cases.split(",")
    data = {
        number: records(source, column)
        for number, (name, source, column, _) in enumerate(CASES)
        if any(word in name for word in words)
    }
    answers: dict[str, Any] = {}
    if options.peers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "records.npz"
            np.savez(path, **{str(number): x for number, x in data.items()})
            command = [options.peers, "-m", "benchmarks.quantiles", "--serve", str(path)]
            command += ["--runs", str(options.runs), "--epsilons", options.epsilons]
            command += ["--numbers", options.numbers]
            command += ["--only", options.only] if options.only else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            answers = json.loads(done.stdout)
    rows, worse, beyond = [], 0, []
    for number, x in data.items():
        (name, _, _, bounds), ordered = CASES[number], np.sort(x)
        for epsilon, many in settings(epsilons, numbers):
            q = evenly(many)
            found = {
                method: [ask(x, q, bounds, epsilon) for _ in range(options.runs)]
                for method, ask in (("noisewise", ours), ("our curve", curve))
            }
            for method in PEERS:
                held = answers.get(method, {}).get(f"{number} {epsilon} {many}")
                if held is not None:
                    found[method] = [np.array(one) for one in held]
            errors = {
                method: [missed(ordered, q, one) for one in each] for method, each in found.items()
            }
            means = {method: float(np.mean(each)) for method, each in errors.items()}
            worse += means["noisewise"] > min(means.values())
            beyond += [
                f"{name}, epsilon {epsilon}, {many} quantiles: {method} {means[method]:.2g} "
                f"against {means['noisewise']:.2g}"
                for method, each in errors.items()
                if better_than_chance(each, errors["noisewise"])
            ]
            rows.append([name, epsilon, many, *(means.get(m, float("nan")) for m in METHODS)])
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            for method, each in errors.items():
                if method != "noisewise" and len(each) > 1:
                    low, high = difference(each, errors["noisewise"])
                    print(f"  {method} less noisewise: {low:.3g} to {high:.3g}", file=sys.stderr)
    cells = [tuple(f"{v:.2g}" if isinstance(v, float) else str(v) for v in row) for row in rows]
    table("ranks missed, as a part of n", ("case", "epsilon", "quantiles", *METHODS), cells)
    print(f"noisewise has not the least mean in {worse} of {len(rows)} rows")
    print(f"by more than {CHANCE:g} standard errors: {len(beyond)}", *beyond, sep="\n  ")
    for epsilon, many in settings(epsilons, numbers):
        chosen = [row[3:] for row in rows if row[1:3] == [epsilon, many]]
        held = {m: [row[i] for row in chosen if row[i] == row[i]] for i, m in enumerate(METHODS)}
        means = {m: np.mean(errors) for m, errors in held.items() if errors}
        best = sum(row[0] <= np.nanmin(row[1:]) for row in chosen)
        said = ", ".join(f"{m} {100 * mean:.2g} %" for m, mean in means.items())
        print(f"epsilon {epsilon}, {many} quantiles: {said}; noisewise best in {best}")


if __name__ == "__main__":
    main()
