"""Tables of every engine give the same bits as arrays, also for values on the edges of bins."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

import noisewise as nw
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.sources import pushed
from noisewise.ecdf.sources.placement import Placement
from noisewise.ecdf.two_class import mirrored_grid

duckdb = pytest.importorskip("duckdb")
ibis = pytest.importorskip("ibis")
pl = pytest.importorskip("polars")

GRIDS = [((0.0, 1.0), 1024), ((0.0, 1.0), 1000), ((0.1, 0.9), 77), ((-3.0, 120.0), 333)]


def promised(curve):
    """What is stated, but for the sentence about rows of a query."""
    statement = curve.statement()
    said = [one for one in statement.assumptions if one != pushed.ROW_BY_ROW]
    return statement.epsilon, statement.delta, statement.history, statement.unit, said


def on_edges(bounds, bins, seed=0):
    """Values on the edges of bins, beside them, outside the bounds, and anywhere."""
    rng = np.random.default_rng(seed)
    edges = Grid.of(bounds, bins).edges
    special = [-np.inf, np.inf, -0.0, 0.0, 5e-324, -5e-324, 1e308, -1e308, *bounds]
    near = [edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)]
    everywhere = rng.uniform(bounds[0] - 1, bounds[1] + 1, 500)
    return np.concatenate([*near, everywhere, special])


def duckdb_relation(table):
    return duckdb.connect().from_arrow(table)


def ibis_of(kind):
    def make(table):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(ibis, kind).connect().create_table("records", table)

    return make


#: Every form in which a table may be given.
FORMS = {
    "pandas": lambda table: table.to_pandas(),
    "pandas with arrow types": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "polars lazy": lambda table: pl.from_arrow(table).lazy(),
    "pyarrow": lambda table: table,
    "pyarrow dataset": dataset.dataset,
    "duckdb": duckdb_relation,
    "ibis duckdb": ibis_of("duckdb"),
    "ibis sqlite": ibis_of("sqlite"),
    "ibis polars": ibis_of("polars"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bounds", "bins"),
    [
        *GRIDS[1:2],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (*GRIDS[:1], *GRIDS[2:])),
    ],
)
def test_curves_of_a_table_are_those_of_its_columns_to_the_bit(form, bounds, bins):
    x = on_edges(bounds, bins)
    y = np.random.default_rng(1).integers(0, 2, x.size)
    table = FORMS[form](pa.table({"y": y, "x": x}))
    options = {"bounds": bounds, "epsilon": 1.0, "bins": bins, "seed": 1}
    here = nw.ecdf.dp_ecdf(x, **options)
    there = nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)
    assert promised(here) == promised(there)
    here = nw.ecdf.private_roc(y, x, **options)
    there = nw.ecdf.private_roc("y", "x", data=table, **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)
    here = nw.ecdf.dp_histogram(x, bins, bounds, epsilon=1.0, seed=1)
    there = nw.ecdf.dp_histogram("x", bins, bounds, data=table, epsilon=1.0, seed=1)
    assert np.array_equal(here.counts, there.counts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "relation", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)]
)
def test_sums_over_groups_of_a_table_are_those_of_its_columns_to_the_bit(form, relation):
    cuts = np.array([0.1, 0.3, 0.5, 0.9])
    rng = np.random.default_rng(2)
    ties = (np.arange(64) + 0.5) / 2**20  # residuals halfway between two grid units
    p = np.concatenate([cuts, np.nextafter(cuts, 1), ties, 1 - ties, [0.0, 1.0], rng.random(400)])
    y = rng.random(p.size) < p
    bins = {"bins": 64}
    table = FORMS[form](pa.table({"y": y.astype(int), "p": p}))
    options = {"epsilon": 1.0, "seed": 3, "relation": relation}
    for how in ({"cuts": cuts}, {"strategy": "quantile", "n_bins": 4, **bins}):
        here = nw.ecdf.private_calibration(y, p, **options, **how)
        there = nw.ecdf.private_calibration("y", "p", data=table, **options, **how)
        assert np.array_equal(here.edges, there.edges)
        for name, column in here.sums.columns.items():
            assert np.array_equal(column, there.sums.columns[name])
        assert here.records == there.records
    for method in ("residual", "thesis", "statistic"):
        for points in (None, cuts):
            how = {"method": method, "cuts": points, "draws": 10, **bins}
            here = nw.ecdf.dp_hosmer_lemeshow(y, p, **options, **how)
            there = nw.ecdf.dp_hosmer_lemeshow("y", "p", data=table, **options, **how)
            assert here.statistic == there.statistic
            assert promised(here) == promised(there)
    here = nw.ecdf.private_evaluation(y, p, **options, **bins)
    there = nw.ecdf.private_evaluation("y", "p", data=table, **options, **bins)
    assert here.summary() == there.summary()


@pytest.mark.parametrize("form", FORMS)
def test_thresholds_of_any_distance_are_compared_one_by_one(form):
    points = np.array([0.1, 0.2, 0.7, 1.3, 9.0, 10.0])
    x = np.concatenate([points, np.nextafter(points, 99), np.nextafter(points, -1), [-1.0, 99.0]])
    table = FORMS[form](pa.table({"x": x}))
    options = {"bounds": (0, 10), "thresholds": points, "epsilon": 1.0, "seed": 1}
    here = nw.ecdf.dp_ecdf(x, **options)
    there = nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)
    options |= {"bounds": (0.01, 10), "thresholds": "log", "bins": 37}
    here, there = nw.ecdf.dp_ecdf(x, **options), nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


@pytest.mark.parametrize("form", ["pandas", "polars lazy", "duckdb", "ibis sqlite", "pyarrow"])
@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.int32(), pa.int64(), pa.uint8(), pa.bool_(), pa.decimal128(18, 3)]
)
def test_columns_of_other_types_are_counted_as_their_doubles(form, kind):
    rng = np.random.default_rng(5)
    whole = rng.integers(0, 2 if pa.types.is_boolean(kind) else 120, 600)
    x = whole / 8 if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else whole
    column = pa.array(x).cast(kind)
    if form == "ibis sqlite" and kind in (pa.decimal128(18, 3), pa.uint8()):
        pytest.skip("SQLite has no such type")
    table = FORMS[form](pa.table({"x": column}))
    options = {"bounds": (0, 60), "bins": 100, "epsilon": 1.0, "seed": 1}
    here, there = nw.ecdf.dp_ecdf(x, **options), nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


#: Numbers of other types at their limits, and a grid whose edges they are on or near.
EXTREMES = {
    "whole numbers above 2^53": (
        pa.array([2**53 + k for k in range(-130, 131)] + [2**63 - 1, -(2**63)], pa.int64()),
        (2.0**53 - 128, 2.0**53 + 128), 16,
    ),
    "whole numbers without a sign": (
        pa.array([0, 1, 2**53 + 1, 2**63 + 1025, 2**64 - 1], pa.uint64()), (0.0, 2.0**64), 64,
    ),
    "float32 on and beside edges": (
        pa.array(
            np.concatenate([
                edge := np.linspace(0, 1, 11, dtype=np.float32), np.nextafter(edge, np.float32(2)),
                np.nextafter(edge, np.float32(-2)),
                np.array([-0.0, np.inf, -np.inf, 1e-45], np.float32),
            ])
        ),
        (0.0, 1.0), 10,
    ),
    "truth values": (pa.array([True, False, True]), (0.0, 1.0), 10),
    "both zeros, infinities, the smallest doubles": (
        pa.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1e-310, -1e-310, 2.3e-308]),
        (-1.0, 1.0), 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_numbers_at_the_limits_of_their_types_are_counted_as_arrays_count_them(form, extreme):
    column, bounds, bins = EXTREMES[extreme]
    if form == "ibis sqlite" and pa.types.is_unsigned_integer(column.type):
        pytest.skip("SQLite has no such type")
    table = FORMS[form](pa.table({"x": column}))
    options = {"bounds": bounds, "bins": bins, "epsilon": 1.0, "seed": 1}
    here = nw.ecdf.dp_ecdf(column.to_numpy(zero_copy_only=False), **options)
    there = nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


@pytest.mark.parametrize("form", FORMS)
def test_times_are_no_numbers(form):
    column = pa.array([0, 10**15, None], pa.timestamp("us"))
    if form == "ibis sqlite":
        pytest.skip("SQLite has no such type")
    table = FORMS[form](pa.table({"x": column}))
    with pytest.raises(TypeError, match="must hold numbers"):
        nw.ecdf.dp_ecdf("x", data=table, bounds=(0, 1), epsilon=1.0)


@pytest.mark.parametrize(("words", "positive"), [("yes no", "no"), ("t f", "T"), ("true false", 1)])
def test_words_that_an_engine_reads_as_truth_values_can_be_named(tmp_path, words, positive):
    """DuckDB does so with CSV files, pandas does not."""
    one, other = words.split()
    rng = np.random.default_rng(3)
    y, p = rng.choice([one, other], 200), rng.random(200)
    pd.DataFrame({"y": y, "p": p}).to_csv(tmp_path / "rows.csv", index=False)
    options = {"epsilon": 1.0, "seed": 1, "bins": 64, "bounds": (0, 1)}
    name = one if positive == 1 else str(positive).lower()
    here = nw.ecdf.private_roc(y, p, pos_label=name, **options)
    there = nw.ecdf.private_roc("y", "p", data=tmp_path / "rows.csv", pos_label=positive, **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("labels", "pos_label"),
    [
        (["yes", "no", "perhaps"], "yes"),
        ([-1, 1], None),
        ([0.0, 1.0], None),
        ([True, False], None),
        ([True, False], False),
        ([3, 7, 9], 7),
        ([0.5, 0.25], 0.25),
    ],
)
def test_labels_are_positive_by_the_same_rule(form, labels, pos_label):
    rng = np.random.default_rng(7)
    y, p = rng.choice(labels, 300), rng.random(300)
    table = FORMS[form](pa.table({"y": y, "p": p}))
    options = {"epsilon": 1.0, "seed": 1, "bins": 64, "pos_label": pos_label}
    here = nw.ecdf.private_roc(y, p, **options)
    there = nw.ecdf.private_roc("y", "p", data=table, **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)


def test_a_proven_calculation_is_right_for_any_double_and_a_wrong_one_is_not_chosen():
    rng = np.random.default_rng(11)
    kinds = set()
    for bounds, bins in [*GRIDS, ((0, 120), 2**12), ((1e9, 1e9 + 1), 2**12), ((-4, 4), 64)]:
        for grid, negated in ((Grid.of(bounds, bins), False), (mirrored_grid(bounds, bins), True)):
            placement = Placement.of(grid, negated=negated)
            kinds.add(placement.kind)
            x = np.concatenate([on_edges(bounds, bins), rng.uniform(*bounds, 20_000)])
            found = placement.place(np.clip(x, placement.lower, placement.upper)).astype(int)
            counts = placement.in_order(np.bincount(found, minlength=bins))
            assert np.array_equal(counts, grid.count(-x if negated else x))
    assert {"scaled", "stepped"} <= kinds
    wrong = Placement("scaled", Grid.of((0, 120), 1000).edges, "above")
    assert not wrong.is_right_at_thresholds()


def test_thousands_of_uneven_thresholds_are_refused_for_engines():
    table = duckdb_relation(pa.table({"x": np.arange(9.0)}))
    with pytest.raises(ValueError, match="not evenly spaced"):
        nw.ecdf.dp_ecdf("x", data=table, bounds=(1, 10), thresholds="log", bins=5000, epsilon=1.0)


@pytest.mark.parametrize("form", ["duckdb", "polars lazy", "ibis sqlite"])
@pytest.mark.parametrize("mechanism", ["search", "curve"])
def test_quantiles_of_a_table_are_those_of_its_column(form, mechanism):
    x = np.random.default_rng(2).normal(40, 10, 2000)
    table = FORMS[form](pa.table({"x": x}))
    options = {"bounds": (0, 120), "epsilon": 1.0, "bins": 512, "seed": 1, "mechanism": mechanism}
    here = nw.ecdf.dp_quantile(x, [0.25, 0.5], **options)
    there = nw.ecdf.dp_quantile("x", [0.25, 0.5], data=table, **options)
    assert np.array_equal(here, there)
    assert promised(here) == promised(there)
    if mechanism == "curve":
        assert float(nw.ecdf.dp_median("x", data=table, **options)) == there[1]
    with pytest.raises(ValueError, match="no grouped query"):
        nw.ecdf.dp_quantile("x", 0.5, data=table, **{**options, "mechanism": "exponential"})


CURVES = {
    "ecdf": lambda data, **o: nw.ecdf.dp_ecdf("p", data=data, bounds=(0, 1), **o),
    "median": lambda data, **o: nw.ecdf.dp_median("p", data=data, bounds=(0, 1), **o),
    "histogram": lambda data, **o: nw.ecdf.dp_histogram("p", data=data, bins=8, range=(0, 1), **o),
    "roc": lambda data, **o: nw.ecdf.dp_roc_curve("y", "p", data=data, **o),
    "average precision": lambda data, **o: nw.ecdf.dp_average_precision_score(
        "y", "p", data=data, **o
    ),
    "calibration": lambda data, **o: nw.ecdf.dp_calibration_curve("y", "p", data=data, **o),
    "residual": lambda data, **o: nw.ecdf.dp_hosmer_lemeshow("y", "p", data=data, **o),
    "thesis": lambda data, **o: nw.ecdf.dp_hosmer_lemeshow(
        "y", "p", data=data, method="thesis", **o
    ),
    "statistic": lambda data, **o: nw.ecdf.dp_hosmer_lemeshow(
        "y", "p", data=data, method="statistic", **o
    ),
}


@pytest.mark.parametrize("curve", CURVES)
def test_the_statement_says_that_a_query_looks_at_one_record_at_a_time(curve):
    """A window function can mix records, of which nothing is seen in its result."""
    connection = duckdb.connect()
    connection.execute("create table t as select i % 2 y, i / 200 p from range(200) r(i)")
    rows = connection.sql("select y, p from t")
    said, unsaid = (
        CURVES[curve](data, epsilon=1.0, seed=1).statement().assumptions
        for data in (rows, rows.df())
    )
    assert pushed.ROW_BY_ROW in said
    assert pushed.ROW_BY_ROW not in unsaid
