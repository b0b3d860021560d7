"""What a curve shows depends on its noisy sums and on what is public, and on nothing else.

Each curve is made twice. The first time the answers of the one line in which exact sums and noise
meet (:mod:`noisewise.release.noise`) are kept; the second time all records are others, and that
line gives the same answers. Then every attribute, frame, method, statement, warning, exception
and the state of the generator must be equal to the bit. Curves are found by their names, and
their attributes by looking: a new one without a case fails.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noisewise.ecdf
import noisewise.release
from common.observing import assert_same, attempt
from noisewise import ecdf
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.release import noise as noising
from noisewise.release.rank_choice import RankChoice

CHOSEN = RankChoice.applied

# ------------------------------------------------------------------------------- records

PUBLIC = 400


def scores(seed: int, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of one kind or another; every kind has other atoms, holes and ends."""
    generator = np.random.default_rng(seed)
    kind = seed % 5
    if kind == 0:
        p = generator.random(records)
    elif kind == 1:
        p = np.full(records, 0.5)
    elif kind == 2:
        p = generator.choice([0.0, 1.0, 5e-324, 1 - 2.0**-53, 0.25], records)
    elif kind == 3:
        p = generator.beta(0.2, 5.0, records)
    else:
        p = np.linspace(0, 1, records)
    y = {0: generator.random(records) < p, 1: np.ones(records), 2: np.zeros(records)}
    return np.asarray(y.get(seed % 4, generator.integers(0, 2, records)), int), p


Case = Callable[[np.ndarray, np.ndarray, str, Randomness], Any]


def on_scores(function: Callable[..., Any], **options: Any) -> Case:
    return lambda y, p, relation, rng: function(y, p, relation=relation, rng=rng, **options)


def on_values(function: Callable[..., Any], *rest: Any, **options: Any) -> Case:
    # Values outside the bounds, too.
    return lambda y, p, relation, rng: function(
        p * 3 - 1 + 0.1 * y, *rest, relation=relation, rng=rng, **options
    )


def of_units(function: Callable[..., Any], rule: str) -> Callable[..., Any]:
    """Units of which some have one row and some have many; their number is that of x[::10]."""

    def run(x: Any, **options: Any) -> Any:
        seed = int(np.abs(x).sum()) % 97
        ids = np.random.default_rng(seed).integers(0, PUBLIC // 4, len(x))
        ids[: PUBLIC // 4] = np.arange(PUBLIC // 4)
        return function(x, units=ecdf.Units(ids, rule=rule), max_per_unit=1, **options)

    return run


def seen(function: Callable[..., Any]) -> Callable[..., Any]:
    """A number or an array, with what else can be asked of it."""

    def run(*values: Any, **options: Any) -> Any:
        found = function(*values, **options)
        return [found, found.statement(), found.confidence_interval(0.8), found.mechanism]

    return run


def stream(**options: Any) -> Case:
    def run(y: np.ndarray, p: np.ndarray, relation: str, rng: Randomness) -> Any:
        if relation == "add-remove":
            y = y[:PUBLIC]  # the length of a stream is public
        counter = ecdf.StreamingCounter(rng=rng, **options)
        first = counter.extend(y[:7])
        return [first, counter.update(int(y[7])), counter.extend(y[8:PUBLIC]), counter]

    return run


CASES: dict[str, list[Case]] = {
    "dp_ecdf": [
        on_values(ecdf.dp_ecdf, bounds=(0, 1), epsilon=0.7, bins=32),
        on_values(ecdf.dp_ecdf, bounds=(0, 1), epsilon=0.7, bins=27, mechanism="thesis"),
        on_values(ecdf.dp_ecdf, bounds=(0, 1), epsilon=0.7, delta=1e-6, bins=32, mechanism="sqrt"),
        on_values(ecdf.dp_ecdf, bounds=(0, 1), rho=0.1, bins=32, smooth=None),
        on_values(ecdf.dp_ecdf, bounds=(0, 1), epsilon=9.0, bins=2048, mechanism="adaptive"),
        on_values(ecdf.dp_ecdf, bounds=(0, 1), epsilon=0.7, bins=4, thresholds=[0.1, 0.5]),
        on_values(of_units(ecdf.dp_ecdf, "weights"), bounds=(0, 1), epsilon=0.7, bins=16),
        on_values(of_units(ecdf.dp_ecdf, "rows"), bounds=(0, 1), epsilon=0.7, bins=16),
    ],
    "dp_quantile": [
        on_values(seen(ecdf.dp_quantile), [0.1, 0.5], bounds=(0, 1), epsilon=0.7, interval=0.9),
        on_values(
            seen(ecdf.dp_quantile),
            [0.1, 0.5],
            bounds=(0, 1),
            epsilon=0.7,
            bins=32,
            mechanism="curve",
        ),
    ],
    "dp_median": [on_values(seen(ecdf.dp_median), bounds=(0, 1), epsilon=0.7)],
    "private_histogram": [
        on_values(ecdf.private_histogram, 16, (0, 1), epsilon=0.7),
        on_values(ecdf.private_histogram, [0, 0.1, 0.7, 1], epsilon=0.7, noise="independent"),
        on_values(ecdf.private_histogram, 8, (0, 1), epsilon=0.7, consistent=False),
    ],
    "dp_histogram": [on_values(ecdf.dp_histogram, 16, (0, 1), epsilon=0.7)],
    "private_roc": [
        on_scores(ecdf.private_roc, epsilon=0.7, bins=32),
        on_scores(ecdf.private_roc, epsilon=0.7, delta=1e-6, bins=32),
    ],
    "dp_roc_curve": [on_scores(ecdf.dp_roc_curve, epsilon=0.7, bins=32)],
    "dp_roc_auc_score": [on_scores(ecdf.dp_roc_auc_score, epsilon=0.7, bins=32)],
    "dp_precision_recall_curve": [on_scores(ecdf.dp_precision_recall_curve, epsilon=0.7, bins=32)],
    "dp_average_precision_score": [
        on_scores(ecdf.dp_average_precision_score, epsilon=0.7, bins=32)
    ],
    "dp_det_curve": [on_scores(ecdf.dp_det_curve, epsilon=0.7, bins=32)],
    "private_calibration": [
        on_scores(ecdf.private_calibration, epsilon=0.7),
        on_scores(ecdf.private_calibration, epsilon=0.7, strategy="quantile", bins=32),
        on_scores(ecdf.private_calibration, epsilon=0.7, cuts=[2.0**-900, 0.5]),
    ],
    "dp_calibration_curve": [on_scores(ecdf.dp_calibration_curve, epsilon=0.7)],
    "dp_expected_calibration_error": [on_scores(ecdf.dp_expected_calibration_error, epsilon=0.7)],
    "dp_hosmer_lemeshow": [
        on_scores(ecdf.dp_hosmer_lemeshow, epsilon=0.7, bins=32, draws=50, method=method)
        for method in ("residual", "thesis", "statistic")
    ]
    + [on_scores(ecdf.dp_hosmer_lemeshow, epsilon=0.7, cuts=[0.3], draws=50, method="statistic")],
    "private_evaluation": [
        on_scores(ecdf.private_evaluation, epsilon=0.7, bins=32),
        on_scores(ecdf.private_evaluation, epsilon=0.7, bins=32, bounds=(0.2, 0.9)),
    ],
    "private_confusion": [
        lambda y, p, relation, rng: ecdf.private_confusion(
            y, (p > 0.5).astype(int), classes=[0, 1], epsilon=0.7, relation=relation, rng=rng
        )
    ],
    "private_regression_errors": [
        lambda y, p, relation, rng: ecdf.private_regression_errors(
            y + p, 2 * p, bounds=(0.1, 1.7), epsilon=0.7, relation=relation, rng=rng
        )
    ],
    "StreamingCounter": [
        stream(epsilon=0.7),
        stream(epsilon=0.7, mechanism="thesis", horizon=500),
        stream(epsilon=0.7, delta=1e-6),
    ],
}
#: Public names that release nothing from records.
NO_RELEASE = {
    "open_table",
    "Aggregator", "Band", "Budget", "CalibrationCurve", "DETCurve", "Evaluation", "Grid",
    "Histogram", "HosmerLemeshow", "Mechanism", "PrecisionRecallCurve", "PrivateCalibration",
    "PrivateConfusion", "PrivateECDF", "PrivateHistogram", "PrivateQuantile", "PrivateQuantiles",
    "PrivateROC", "PrivateRegressionErrors",
    "ROCCurve", "Setting", "StatedAggregator",
    "Steps", "Units", "plan", "shrink_families", "smooth_isotonic", "smooth_tree",
}  # fmt: skip


def test_every_public_name_that_releases_has_a_case() -> None:
    assert set(noisewise.ecdf.__all__) == set(CASES) | NO_RELEASE


def test_exact_sums_and_noise_meet_in_one_line_only() -> None:
    """Nobody adds what was drawn, except noise to noise, but the kernel's `add`."""
    draws = {"discrete_laplace", "discrete_gaussian", "draw", "taken"}
    for package in (noisewise.ecdf, noisewise.release):
        assert_no_sum_with(draws, Path(package.__file__).parent)


def assert_no_sum_with(draws: set[str], root: Path) -> None:
    for path in root.rglob("*.py"):
        if path.name == "stream_noise.py":  # sums noise along the paths of a tree
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(getattr(node, "op", None), (ast.Add, ast.Sub)):
                names = {
                    getattr(inner.func, "attr", getattr(inner.func, "id", ""))
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Call)
                }
                assert not names & draws, f"{path.name}:{node.lineno}"


class Fixed:
    """Keeps what exact sums plus noise gave, or gives it again whatever the sums are."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.different = 0
        self._again: Iterator[Any] | None = None

    def replay(self) -> None:
        self._again, self.different = iter(self.answers), 0

    def add(self, exact: Any, noise: Any) -> Any:
        if self._again is None:
            self.answers.append(exact + noise)
            return self.answers[-1]
        answer = next(self._again)
        assert np.shape(answer) == np.shape(exact), "the shape of a sum depends on records"
        self.different += int(np.any(answer != exact + noise))
        return answer.copy() if isinstance(answer, np.ndarray) else answer

    def applied(self, choice: Any, exact: Any, rng: Randomness) -> Any:
        """Points that were chosen by their rank, in place of a sum."""
        found = np.array(CHOSEN(choice, exact, rng))
        return self.add(found, np.zeros_like(found)).tolist()

    def exhausted(self) -> bool:
        assert self._again is not None
        return next(self._again, None) is None


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))]
)
def test_with_the_noisy_sums_fixed_all_records_may_change(
    name: str, number: int, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, fixed = CASES[name][number], Fixed()
    monkeypatch.setattr(noising, "add", fixed.add)
    monkeypatch.setattr(RankChoice, "applied", lambda *given: fixed.applied(*given))

    def run(seed: int, records: int) -> Any:
        source = resolve(11)
        seen = attempt(lambda: case(*scores(seed, records), relation, source))
        return seen, source.below(1 << 60, 1).tolist()

    first = run(0, PUBLIC)
    assert fixed.answers, "nothing was released through noising.add"
    different = 0
    for seed in (1, 2, 3, 4):
        fixed.replay()
        # Their number is public only if records are replaced.
        again = run(seed, PUBLIC + (37 * seed if relation == "add-remove" else 0))
        assert fixed.exhausted()
        assert_same(first, again, f"{name}[{number}]")
        different += fixed.different
    assert different, "other records gave the same sums: the test shows nothing"


def test_a_leak_of_one_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: an attribute that remembers the largest record."""
    from noisewise.ecdf import estimate

    whole = estimate.dp_ecdf

    def leaky(x: Any, **options: Any) -> Any:
        curve = whole(x, **options)
        object.__setattr__(curve, "smoothing", f"auto, up to {float(np.max(x))!r}")
        return curve

    fixed = Fixed()
    monkeypatch.setattr(noising, "add", fixed.add)
    case = on_values(leaky, bounds=(0, 1), epsilon=0.7, bins=8)
    first = attempt(lambda: case(*scores(0, PUBLIC), "replace-one", resolve(1)))
    fixed.replay()
    second = attempt(lambda: case(*scores(3, PUBLIC), "replace-one", resolve(1)))
    with pytest.raises(AssertionError):
        assert_same(first, second, "leaky")


# ------------------------------------------------------------------------------ exceptions

BAD_SCORES = [
    {"p": {3: np.nan}}, {"p": {390: np.nan, 5: np.nan}}, {"p": {0: np.nan}},
]  # fmt: skip
BAD_PREDICTIONS = [{"p": {3: 1.5}}, {"p": {390: -1e300}}, {"p": {0: np.inf, 1: 2.0}}]
BAD_LABELS = [{"y": {3: 7}}, {"y": {390: -3, 4: 12}}, {"y": {0: 2}}]


@pytest.mark.parametrize("bad", [BAD_SCORES, BAD_PREDICTIONS, BAD_LABELS])
@pytest.mark.parametrize("name", sorted(CASES))
def test_an_exception_is_the_same_whichever_record_caused_it(
    name: str, bad: list[dict[str, dict[int, float]]]
) -> None:
    outcomes = []
    for seed, change in enumerate(bad):
        y, p = scores(seed, PUBLIC)
        y, p = y.astype(float), p.copy()
        for place, value in change.get("p", {}).items():
            p[place] = value
        for place, value in change.get("y", {}).items():
            y[place] = value
        try:
            CASES[name][0](y, p, "replace-one", resolve(1))
            outcomes.append("no exception")
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    assert all(one == outcomes[0] for one in outcomes), outcomes


def test_the_kinds_of_records_differ() -> None:
    made = [scores(seed, PUBLIC) for seed in range(5)]
    for (_, p), (_, q) in itertools.combinations(made, 2):
        assert not np.array_equal(p, q)
