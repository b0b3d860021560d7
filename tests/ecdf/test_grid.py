"""Records are counted where the thresholds say, whatever arithmetic would say."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given, strategies as st

from noisewise import ecdf, federated
from noisewise.ecdf import Grid
from noisewise.ecdf.group_sums import checked_cuts, separate
from noisewise.federated.calibration_question import GroupSumsQuestion
from noisewise.release import noise as noising

ends = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).filter(lambda p: p[0] + p[1] > p[0])


@given(ends, st.integers(2, 5000), st.integers(0, 2**32 - 1), st.sampled_from(["linear", "given"]))
def test_counting_is_searching_among_the_thresholds(pair, bins, seed, kind):
    lower, upper = pair[0], pair[0] + pair[1]
    rng = np.random.default_rng(seed)
    try:
        grid = Grid.of((lower, upper), bins)
    except ValueError:
        return  # too fine for double precision, which it says
    if kind == "given":
        kept = np.sort(rng.choice(grid.thresholds, max(2, bins // 3), replace=False))
        grid = Grid.of((lower, upper), bins, kept)
    # Records on the thresholds, one rounding beside them, at random, and outside the bounds.
    near = rng.choice(grid.edges, 200)
    beside = [np.nextafter(near, np.inf), np.nextafter(near, -np.inf)]
    anywhere = rng.uniform(lower - pair[1], upper + pair[1], 200)
    records = np.concatenate([near, *beside, anywhere, [lower, upper]])
    inside = np.clip(records, lower, upper)
    expected = np.bincount(
        np.searchsorted(grid.thresholds, inside, side="left"), minlength=grid.bins
    )
    assert (grid.count(records) == expected).all()


@pytest.mark.parametrize("bins", [2, 3, 2**15])
def test_every_threshold_belongs_to_the_bin_that_it_ends(bins):
    grid = Grid.of((0.1, 0.7), bins)
    assert (grid.count(grid.thresholds) == 1).all()


# ------------------------------------------------------- finer than the numbers can tell apart

TOO_FINE = [
    (0.0, [5e-324, 1.0]),
    (0.0, [1e-310, 1.0]),
    (0.0, [0.5, 0.5 + 2.0**-52, 1.0]),
    (0.0, [1 - 2.0**-52, 1.0]),
    (0.0, [np.nextafter(1.0, 0.0), 1.0]),
    (1e16, [1e16 + 2, 1e16 + 4]),
    (-5e-324, [0.0, 5e-324]),
    (-1e308, [0.0, 1e308]),  # the range overflows
    (0.0, [0.5, 0.5, 1.0]),
    (0.0, [0.5, np.nan]),
    (0.0, [np.inf]),
    (0.0, []),
]


@pytest.mark.parametrize(("lower", "thresholds"), TOO_FINE, ids=str)
def test_no_grid_exists_that_is_finer_than_numbers_tell_apart(lower, thresholds):
    with pytest.raises(ValueError, match=r"apart|increase|finite"):
        Grid(lower, np.array(thresholds))


def test_a_grid_cannot_be_changed_after_it_was_checked():
    points = np.array([0.5, 1.0])
    grid = Grid(0.0, points)
    points[0] = 5e-324
    assert grid.thresholds[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        grid.thresholds[0] = 5e-324


def _curves():
    y, p = np.array([0, 1, 1, 0]), np.array([0.0, 5e-324, 0.5, 1.0])
    rest = {"epsilon": 1.0, "rng": 1, "relation": "replace-one"}
    tiny, close = [5e-324], [0.5, 0.5 + 2.0**-52]
    for cuts in (tiny, close, [1 - 2.0**-53]):
        yield lambda c=cuts: ecdf.private_calibration(y, p, cuts=c, **rest)
        yield lambda c=cuts: ecdf.dp_calibration_curve(y, p, cuts=c, **rest)
        yield lambda c=cuts: ecdf.dp_expected_calibration_error(y, p, cuts=c, **rest)
        for method in ("residual", "thesis", "statistic"):
            yield lambda c=cuts, m=method: ecdf.dp_hosmer_lemeshow(y, p, cuts=c, method=m, **rest)
        yield lambda c=cuts: ecdf.dp_ecdf(p, bounds=(0, 1), thresholds=c, **rest)
        yield lambda c=cuts: ecdf.private_histogram(p, [0, *c, 1], **rest)
        yield lambda c=cuts: federated.Domain(0.0, 1.0, 2, thresholds=tuple(c))
        yield lambda c=cuts: GroupSumsQuestion(
            federated.Domain(0.0, 1.0, 8, labelled=True), 1.0, cuts=tuple(c)
        )
    for bounds in ((0, 5e-324), (0, 1e-310), (1e300, np.nextafter(1e300, 2e300)), (-1e308, 1e308)):
        yield lambda b=bounds: ecdf.dp_ecdf(p, bounds=b, bins=4, **rest)
        yield lambda b=bounds: ecdf.private_histogram(p, 4, b, **rest)
        yield lambda b=bounds: ecdf.private_roc(y, p, bounds=b, bins=4, **rest)
        yield lambda b=bounds: ecdf.private_evaluation(y, p, bounds=b, bins=4, **rest)
        yield lambda b=bounds: ecdf.dp_histogram(p, 4, b, **rest)
        yield lambda b=bounds: ecdf.dp_roc_curve(y, p, bounds=b, **rest)
        yield lambda b=bounds: ecdf.dp_precision_recall_curve(y, p, bounds=b, **rest)
        yield lambda b=bounds: ecdf.private_regression_errors(y, p, bounds=b, **rest)
        yield lambda b=bounds: ecdf.dp_median(p, bounds=b, **rest)
        for mechanism in ("exponential", "curve"):
            yield lambda b=bounds, m=mechanism: ecdf.dp_quantile(
                p, [0.1, 0.5], bounds=b, mechanism=m, **rest
            )
        yield lambda b=bounds: federated.Domain(*b, 4)


def test_every_public_function_with_a_range_is_among_them():
    tried = inspect.getsource(_curves)
    taking = ("bounds", "range", "cuts")
    for name in ecdf.__all__:
        function = getattr(ecdf, name)
        if inspect.isfunction(function) and {*taking} & {*inspect.signature(function).parameters}:
            assert f"ecdf.{name}(" in tried, name


@pytest.mark.parametrize("make", _curves())
def test_every_curve_refuses_a_grid_that_is_too_fine(make, monkeypatch):
    drawn = []
    monkeypatch.setattr(noising, "add", lambda exact, noise: drawn.append(1) or exact + noise)
    with pytest.raises(ValueError, match=r"apart|inside|finite"):
        make()
    assert not drawn  # before anything was spent


@given(st.floats(allow_nan=False), st.lists(st.floats(allow_nan=False), min_size=1, max_size=6))
def test_in_every_grid_that_exists_every_record_has_one_place(lower, points):
    try:
        grid = Grid(lower, np.unique(points))
    except ValueError:
        return
    near = [np.nextafter(edge, to) for edge in grid.edges for to in (-np.inf, np.inf)]
    records = np.array([*grid.edges, *near, -1e308, 1e308, 0.0, 5e-324, np.inf, -np.inf])
    counts = [grid.count(records[i : i + 1]) for i in range(records.size)]
    assert all(count.sum() == 1 for count in counts)
    inside = np.clip(records, grid.lower, grid.upper)
    assert [int(c.argmax()) for c in counts] == np.searchsorted(grid.thresholds, inside).tolist()


def test_cut_points_that_were_computed_are_made_usable_instead_of_refused():
    awkward = np.array([0.0, 5e-324, 0.2, 0.2, 0.2 + 1e-16, 0.9, 1 - 2.0**-53, 1.0])
    assert separate(awkward).tolist() == [0.2, 0.9]
    assert checked_cuts(separate(awkward)).tolist() == [0.2, 0.9]
