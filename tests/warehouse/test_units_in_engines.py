"""Rows of units are bounded where they are, with the integers that arrays give."""

import json
import warnings
from contextlib import contextmanager, nullcontext
from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from test_engines import FORMS, duckdb, ibis, pl, promised

import noisewise as nw
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.sources import column_of, engine_units, places
from noisewise.ecdf.two_class import mirrored_grid
from noisewise.federated import LocalAggregator
from noisewise.privacy import Ledger, verify
from noisewise.privacy.randomness import resolve
from noisewise.release import Units, per_unit

ENGINES = ["polars lazy", "duckdb", "ibis duckdb", "ibis sqlite", "pyarrow dataset", "pandas"]
engines = pytest.mark.parametrize("form", ENGINES)


@contextmanager
def ignored():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def visits(seed=0, rows=600):
    """Units with one row, with several, one with half of the table; scores also on edges."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, 65, rows) / 64
    y = (rng.random(rows) < p).astype(int)
    whose = np.where(np.arange(rows) % 2, 7, rng.integers(0, 90, rows))
    return y, p, whose


def table_of(form, y, p, whose, kind=None):
    return FORMS[form](pa.table({"y": y, "p": p, "patient": pa.array(whose, kind)}))


@engines
@pytest.mark.parametrize("limit", [1, 3])
def test_curves_of_units_in_a_table_are_those_of_its_columns_to_the_bit(form, limit):
    y, p, whose = visits()
    table = table_of(form, y, p, whose)
    options = {"epsilon": 1.0, "seed": 1, "max_per_unit": limit}
    here = nw.ecdf.dp_ecdf(p, bounds=(0, 1), bins=77, units=whose, **options)
    there = nw.ecdf.dp_ecdf("p", data=table, bounds=(0, 1), bins=77, units="patient", **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)
    assert promised(here) == promised(there)
    assert there.statement().unit_rows == limit
    here = nw.ecdf.private_roc(y, p, bins=64, units=whose, **options)
    there = nw.ecdf.private_roc("y", "p", data=table, bins=64, units="patient", **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)
    here = nw.ecdf.dp_histogram(p, 20, (0, 1), units=whose, **options)
    there = nw.ecdf.dp_histogram("p", 20, (0, 1), data=table, units="patient", **options)
    assert np.array_equal(here.counts, there.counts)


@engines
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("limit", [1, 4])
def test_sums_of_units_in_a_table_are_those_of_its_columns_to_the_bit(form, relation, limit):
    y, p, whose = visits(1, 400)
    table = table_of(form, y, p, whose)
    options = {"epsilon": 1.0, "seed": 3, "relation": relation, "max_per_unit": limit}
    for how in ({"cuts": [0.25, 0.3, 0.7]}, {"strategy": "quantile", "n_bins": 4, "bins": 32}):
        here = nw.ecdf.private_calibration(y, p, units=whose, **options, **how)
        there = nw.ecdf.private_calibration("y", "p", data=table, units="patient", **options, **how)
        assert np.array_equal(here.edges, there.edges)
        for name, column in here.sums.columns.items():
            assert np.array_equal(column, there.sums.columns[name])
        assert here.records == there.records
        assert promised(here) == promised(there)
    here = nw.ecdf.private_evaluation(y, p, units=whose, bins=32, **options)
    there = nw.ecdf.private_evaluation("y", "p", data=table, units="patient", bins=32, **options)
    assert str(here.summary()) == str(there.summary())  # NaN where a class is lost in the noise
    assert verify(there.statement()).ok


@engines
def test_whole_rows_are_read_and_chosen_here(form):
    """Of tables in memory with the choice that arrays get; engines keep no order of rows."""
    y, p, whose = visits(2, 200)
    table = table_of(form, y, p, whose)
    options = {"epsilon": 1.0, "seed": 3, "max_per_unit": 2, "bins": 32, "draws": 10}
    here = nw.ecdf.dp_hosmer_lemeshow(y, p, units=whose, **options)
    there = nw.ecdf.dp_hosmer_lemeshow("y", "p", data=table, units="patient", **options)
    assert promised(there) == promised(here)
    if form in ("pandas", "pyarrow dataset"):
        assert here.statistic == there.statistic
    rule = Units("patient", name="one patient", rule="rows")
    roc = nw.ecdf.private_roc("y", "p", data=table, units=rule, epsilon=1.0, bins=16, seed=1)
    assert "are chosen at random" in "".join(roc.statement().assumptions) or (
        "is chosen at random" in "".join(roc.statement().assumptions)
    )


@engines
@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["Ada", "Emmy", "ada", "Ada "], None),
        ([date(2020, 1, 1), date(2021, 1, 1)], None),
        ([0, 1], pa.int8()),
        ([2**62, 2**62 + 1, -5], pa.int64()),
    ],
)
def test_identifiers_of_any_type_an_engine_groups_by(form, names, kind):
    if form == "ibis sqlite" and isinstance(names[0], date):
        pytest.skip("SQLite has no dates")
    rng = np.random.default_rng(0)
    whose = [names[index] for index in rng.integers(0, len(names), 60)]
    p = rng.integers(0, 9, 60) / 8
    table = table_of(form, np.zeros(60, int), p, whose, kind)
    options = {"bounds": (0, 1), "bins": 8, "epsilon": 1.0, "seed": 1, "max_per_unit": 2}
    with pytest.warns(UserWarning, match="capitals") if "Ada" in names else nullcontext():
        here = nw.ecdf.dp_ecdf(p, units=whose, **options)
    with ignored():
        there = nw.ecdf.dp_ecdf("p", data=table, units="patient", **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


def counted(form, y, p, whose, limit, labelled):
    """The histogram that is measured, in steps, without any noise."""
    bounded = per_unit(Units(whose), limit, resolve(1))
    column = column_of(
        table_of(form, y, p, whose), "p", "y" if labelled else None, None, "patient", bounded
    )
    if labelled:
        return column.counted_by_label(mirrored_grid((0, 1), 8), negated=True).histogram
    return column.counted(Grid.of((0, 1), 8)).histogram


@pytest.mark.parametrize("form", ["duckdb", "polars lazy", "ibis sqlite"])
@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("labelled", [False, True])
def test_no_unit_moves_the_counts_of_an_engine_by_more_than_its_bound(form, limit, labelled):
    """All units of drawn tables, left out one after the other."""
    rng = np.random.default_rng(limit)
    sizes = [1, 2, 3, 7, 40]
    whose = np.repeat(np.arange(len(sizes)), sizes)
    p, y = rng.integers(0, 9, whose.size) / 8, rng.integers(0, 2, whose.size)
    everybody = counted(form, y, p, whose, limit, labelled)
    grain = engine_units.WEIGHT_GRAIN
    for unit, size in enumerate(sizes):
        rest = whose != unit
        without = counted(form, y[rest], p[rest], whose[rest], limit, labelled)
        assert (everybody >= without).all()
        assert (everybody - without).sum() == min(size, limit) * grain


@pytest.mark.parametrize("form", ["duckdb", "polars lazy"])
def test_thousands_of_rows_and_large_numbers_are_exact(form):
    rng = np.random.default_rng(0)
    rows = 30_011
    whose = np.where(rng.random(rows) < 0.9, 1, rng.integers(2, 40, rows))
    p = rng.random(rows)
    table = table_of(form, np.zeros(rows, int), p, whose)
    options = {"bounds": (0, 1), "bins": 333, "epsilon": 1.0, "seed": 1}
    for limit in (7, 1 << 20):
        here = nw.ecdf.dp_ecdf(p, units=whose, max_per_unit=limit, **options)
        there = nw.ecdf.dp_ecdf("p", data=table, units="patient", max_per_unit=limit, **options)
        assert np.array_equal(here.noisy_counts, there.noisy_counts)


@engines
def test_no_rows_are_a_table_like_any_other(form):
    none = np.zeros(0)
    table = table_of(form, none.astype(int), none, none.astype(int))
    options = {"bounds": (0, 1), "bins": 8, "epsilon": 1.0, "seed": 1}
    here = nw.ecdf.dp_ecdf(none, units=[], **options)
    there = nw.ecdf.dp_ecdf("p", data=table, units="patient", **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


# ------------------------------------------------------------------------------------ refusals

SECRET = "Ada Lovelace"


@pytest.mark.parametrize("form", ["duckdb", "polars lazy", "ibis sqlite", "pandas", "pyarrow"])
@pytest.mark.parametrize("missing", [None, "", "  ", "nan", "<NA>"])
def test_missing_identifiers_cost_nothing_and_show_nothing(form, missing, tmp_path):
    table = table_of(form, [0, 1, 1], [0.1, 0.2, 0.3], [SECRET, missing, SECRET])
    ledger = tmp_path / "l"
    Ledger.create(ledger, epsilon=10.0, delta=1e-6, unit="one patient").close()
    units = Units("patient", name="one patient")
    for release in (
        lambda: nw.ecdf.dp_ecdf(
            "p", data=table, bounds=(0, 1), bins=8, epsilon=1.0, units=units, ledger=ledger
        ),
        lambda: nw.ecdf.private_evaluation(
            "y", "p", data=table, bins=8, epsilon=1.0, units=units, ledger=ledger
        ),
        lambda: nw.ecdf.dp_hosmer_lemeshow(
            "y", "p", data=table, bins=8, epsilon=1.0, units=units, ledger=ledger
        ),
    ):
        with pytest.raises(ValueError, match="missing identifiers") as caught:
            release()
        assert SECRET not in str(caught.value) + repr(caught.value.__context__)
    with Ledger.open(ledger) as book:
        assert book.charges == ()


def test_what_a_table_cannot_be_asked_is_said():
    y, p, whose = visits(0, 20)
    table = table_of("duckdb", y, p, whose)
    options = {"data": table, "bounds": (0, 1), "bins": 8, "epsilon": 1.0}
    with pytest.raises(TypeError, match="columns are given by name"):
        nw.ecdf.dp_ecdf("p", units=whose, **options)
    with pytest.raises(ValueError, match="'nobody' is not a column"):
        nw.ecdf.dp_ecdf("p", units="nobody", **options)
    with pytest.raises(ValueError, match="cast it to a whole number or to text"):
        nw.ecdf.dp_ecdf("p", units="p", **options)
    with pytest.raises(ValueError, match="several parties"):
        nw.ecdf.dp_ecdf("p", units="patient", aggregator=LocalAggregator(), **options)


def test_an_engine_that_divides_wrongly_is_refused(monkeypatch):
    y, p, whose = visits(0, 50)
    table = table_of("duckdb", y, p, whose)
    options = {"data": table, "bounds": (0, 1), "bins": 8, "epsilon": 1.0, "units": "patient"}
    right = engine_units._steps

    def rounded(source, found):
        """As if quotients were rounded to the nearest whole number."""
        made = right(source, found)
        left = source.nw.col("noisewise_left_upto") - source.nw.col("noisewise_size")
        return made._replace(frame=made.frame.with_columns(noisewise_left_upto=left))

    monkeypatch.setattr(engine_units, "_steps", rounded)
    with pytest.raises(ValueError, match="does not divide whole numbers exactly"):
        nw.ecdf.dp_ecdf("p", **options)

    def generous(source, found):
        made = right(source, found)
        more = source.nw.col("noisewise_upto") * source.number(2)
        return made._replace(frame=made.frame.with_columns(noisewise_upto=more))

    monkeypatch.setattr(engine_units, "_steps", generous)
    with pytest.raises(ValueError, match="does not divide whole numbers exactly"):
        nw.ecdf.dp_ecdf("p", **options)


def test_identifiers_do_not_leave_the_engine():
    """What comes back is one row for each cell, and no text."""
    y, p, whose = visits(0, 80)
    names = [f"{SECRET} {number}" for number in whose]
    table = table_of("duckdb", y, p, names)
    bounded = per_unit(Units(names), 2, resolve(1))
    column = column_of(table, "p", "y", None, "patient", bounded)
    seen = []
    collect = column.source._collected
    column.source._collected = lambda query: seen.append(collect(query)) or seen[-1]
    column.counted_by_label(mirrored_grid((0, 1), 8), negated=True)
    column.sums(np.array([0.5]), ("residual",))
    assert len(seen) == 2
    assert all(len(part) <= 16 for answer in seen for part in answer.values())
    assert SECRET not in json.dumps(seen, default=str)


SCORES = {"epsilon": 1.0, "seed": 5}
EVERY = {
    "dp_ecdf": (("p",), {"bounds": (0, 1), "bins": 32}),
    "dp_quantile": (("p", 0.3), {"bounds": (0, 1), "bins": 32}),
    "dp_median": (("p",), {"bounds": (0, 1), "bins": 32}),
    "dp_histogram": (("p", 8, (0, 1)), {}),
    "private_histogram": (("p", 8, (0, 1)), {"noise": "independent"}),
    "dp_roc_curve": (("y", "p"), {"bins": 32}),
    "private_roc": (("y", "p"), {"bins": 32, "delta": 1e-6}),
    "dp_roc_auc_score": (("y", "p"), {"bins": 32}),
    "dp_precision_recall_curve": (("y", "p"), {"bins": 32}),
    "dp_average_precision_score": (("y", "p"), {"bins": 32}),
    "dp_det_curve": (("y", "p"), {"bins": 32}),
    "private_calibration": (("y", "p"), {}),
    "dp_calibration_curve": (("y", "p"), {}),
    "dp_expected_calibration_error": (("y", "p"), {}),
    "dp_hosmer_lemeshow": (("y", "p"), {"bins": 32, "draws": 5}),
    "private_evaluation": (("y", "p"), {"bins": 32}),
}


@pytest.mark.parametrize("name", EVERY)
def test_everything_that_takes_a_table_takes_its_units(name):
    """With the statement of arrays; and, but for rows chosen at random, with their values."""
    y, p, whose = visits(3, 300)
    columns = {"y": y, "p": p}
    arguments, options = EVERY[name]
    release, common = getattr(nw.ecdf, name), {**SCORES, **options, "max_per_unit": 2}
    # What "auto" takes for a table.
    more = {"mechanism": "search"} if name in ("dp_quantile", "dp_median") else {}
    given = [columns.get(a, a) if isinstance(a, str) else a for a in arguments]
    with ignored():
        here = release(*given, units=whose, **common, **more)
        there = release(*arguments, data=table_of("duckdb", y, p, whose), units="patient", **common)
    assert promised(here) == promised(there)
    assert there.statement().unit_rows == 2
    if isinstance(here, (float, tuple, np.ndarray)):
        assert str(list(np.atleast_1d(here[0] if isinstance(here, tuple) else here))) == str(
            list(np.atleast_1d(there[0] if isinstance(there, tuple) else there))
        )


def test_no_name_that_takes_a_table_is_forgotten():
    takes = {
        name
        for name in nw.ecdf.__all__
        if name.startswith(("dp_", "private_"))
        and name not in ("private_confusion", "private_regression_errors")
    }
    assert takes == set(EVERY)


@pytest.mark.parametrize("engine", ["duckdb", "arrow"])
def test_zeros_in_front_tell_people_apart_in_a_file_of_text(engine, tmp_path, monkeypatch):
    """007 and 7 are two people, whatever reads the file; other columns are numbers as before."""
    if engine == "arrow":
        found = places.importlib.util.find_spec
        monkeypatch.setattr(
            places.importlib.util,
            "find_spec",
            lambda name: None if name == "duckdb" else found(name),
        )
    y, p, _ = visits(0, 60)
    whose = np.array(["7", "007", "12", "0", "00"])[np.arange(60) % 5]
    path = tmp_path / "visits.csv"
    lines = [f"{a},{b},{c}" for a, b, c in zip(y, p, whose, strict=True)]
    path.write_text("\n".join(["y,p,patient", *lines]))
    options = {"bounds": (0, 1), "bins": 8, "epsilon": 1.0, "seed": 1}
    with ignored():
        here = nw.ecdf.dp_ecdf(p, units=list(whose), **options)
        there = nw.ecdf.dp_ecdf("p", data=path, units="patient", **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)
    with ignored():
        nw.ecdf.private_roc("y", "p", data=path, epsilon=1.0, bins=8, units="patient", seed=1)
    # Without such zeros a column is one of whole numbers.
    path.write_text(
        "\n".join(["y,p,patient", *(f"{a},{b},{a}" for a, b in zip(y, p, strict=True))])
    )
    there = nw.ecdf.dp_ecdf("p", data=path, units="patient", **options)
    assert np.array_equal(
        there.noisy_counts, nw.ecdf.dp_ecdf(p, units=list(y), **options).noisy_counts
    )


NAMES = ["Ada", "ada", "ada", "ada", "Bob", "Bo\u00e9", "Boe", "x1", "x01", "n", "n "]


@pytest.mark.parametrize("collation", ["nocase", "noaccent", "default"])
def test_names_that_a_database_calls_the_same_are_refused_or_compared_by_bytes(collation, tmp_path):
    """Bounded as one, Ada and ada moved each other's rows: either twice as far as its bound."""
    x = np.arange(len(NAMES)) / len(NAMES)
    options = {"bounds": (0, 1), "bins": 32, "epsilon": 1.0, "seed": 1, "units": "who"}
    here = nw.ecdf.dp_ecdf(x, **{**options, "units": NAMES})
    connection = duckdb.connect()
    kind = "varchar" if collation == "default" else f"varchar collate {collation}"
    if collation == "default":
        connection.execute("pragma default_collation = nocase")
    connection.execute(f"create table t (who {kind}, x double)")
    connection.executemany("insert into t values (?, ?)", list(zip(NAMES, x.tolist(), strict=True)))
    ledger = tmp_path / "budget.ledger"
    Ledger.create(ledger, epsilon=10.0, delta=0.0).close()
    with pytest.raises(ValueError, match="different identifiers of units the same") as refused:
        nw.ecdf.dp_ecdf("x", data=connection.sql("from t"), ledger=ledger, **options)
    assert "Ada" not in str(refused.value)
    with Ledger.open(ledger) as book:
        assert book.charges == ()
    encoded = connection.sql("select encode(who) who, x from t")
    there = nw.ecdf.dp_ecdf("x", data=encoded, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


@pytest.mark.parametrize("collation", ["nocase", "rtrim", "binary"])
def test_sqlite_compares_names_by_bytes_whatever_the_column_says(collation):
    x = np.arange(len(NAMES)) / len(NAMES)
    options = {"bounds": (0, 1), "bins": 32, "epsilon": 1.0, "seed": 1}
    with ignored():
        connection = ibis.sqlite.connect()
        connection.raw_sql(f"create table t (who text collate {collation}, x real)")
        connection.con.executemany(
            "insert into t values (?, ?)", list(zip(NAMES, x.tolist(), strict=True))
        )
        there = nw.ecdf.dp_ecdf("x", data=connection.table("t"), units="who", **options)
    here = nw.ecdf.dp_ecdf(x, units=NAMES, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


@pytest.mark.parametrize("nothing", ["\u00a0", "\u00a0NULL", b"", b"NULL"])
@pytest.mark.parametrize("engine", ["duckdb", "polars", "sqlite"])
def test_engines_take_the_same_for_nothing_as_arrays(engine, nothing):
    names = [nothing, nothing, "Ada", "Emmy"]
    if isinstance(nothing, bytes):
        names[2:] = [b"Ada", b"Emmy"]
    table = pa.table({"who": names, "x": [0.1, 0.2, 0.3, 0.4]})
    with ignored():
        data = pl.from_arrow(table).lazy()
        if engine == "duckdb":
            data = duckdb.connect().from_arrow(table)
        elif engine == "sqlite":
            connection = ibis.sqlite.connect()
            kind = "text" if isinstance(nothing, str) else "blob"
            connection.raw_sql(f"create table t (who {kind}, x real)")
            rows = list(zip(names, table["x"].to_pylist(), strict=True))
            connection.con.executemany("insert into t values (?, ?)", rows)
            data = connection.table("t")
        with pytest.raises(ValueError, match="missing identifiers"):
            nw.ecdf.dp_ecdf("x", data=data, units="who", bounds=(0, 1), epsilon=1.0)
