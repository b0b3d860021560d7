"""Units in PySpark and PostgreSQL: the integers of arrays, and errors that name nobody.

Spark runs in local mode where it and Java are installed; PostgreSQL through Ibis where
``NOISEWISE_POSTGRES`` has the address of a database in which tables may be made, e.g.
``postgresql://postgres@127.0.0.1:5432/postgres``.
"""

import os
import shutil
import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest
from test_engines import GRIDS, on_edges, promised
from test_units_in_engines import EVERY, SCORES, visits

import noisewise as nw
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.sources import column_of, engine_units
from noisewise.privacy import Ledger
from noisewise.privacy.randomness import resolve
from noisewise.release import Units, per_unit

pytestmark = pytest.mark.slow
SECRET = "Ada Lovelace"


@pytest.fixture(scope="module")
def spark():
    pyspark = pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    builder = pyspark.sql.SparkSession.builder.master("local[1]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()

    def make(columns):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the version of pandas
            return session.createDataFrame(pd.DataFrame(columns))

    yield make
    session.stop()


@pytest.fixture(scope="module")
def postgres():
    address = os.environ.get("NOISEWISE_POSTGRES")
    if address is None:
        pytest.skip("NOISEWISE_POSTGRES says no database")
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(address)
    made = []

    def make(columns):
        name = f"noisewise_test_{os.getpid()}_{len(made)}"
        made.append(name)
        return connection.create_table(name, pd.DataFrame(columns))

    yield make
    for name in made:
        connection.drop_table(name)


@pytest.fixture(params=["spark", "postgres"])
def table(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", EVERY)
def test_everything_that_takes_a_table_takes_its_units_to_the_bit(table, name):
    y, p, whose = visits(3, 200)
    arguments, options = EVERY[name]
    release, common = getattr(nw.ecdf, name), {**SCORES, **options, "max_per_unit": 2}
    more = {"mechanism": "search"} if name in ("dp_quantile", "dp_median") else {}
    given = [{"y": y, "p": p}.get(a, a) if isinstance(a, str) else a for a in arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = release(*given, units=whose, **common, **more)
        there = release(
            *arguments, data=table({"y": y, "p": p, "patient": whose}), units="patient", **common
        )
    assert promised(here) == promised(there)
    assert there.statement().unit_rows == 2
    if isinstance(here, (float, tuple, np.ndarray)):
        first = [np.atleast_1d(one[0] if isinstance(one, tuple) else one) for one in (here, there)]
        assert str(first[0].tolist()) == str(first[1].tolist())


@pytest.mark.parametrize(("bounds", "bins"), GRIDS)
def test_values_on_the_edges_of_bins_are_placed_as_in_arrays(table, bounds, bins):
    x = on_edges(bounds, bins)
    y = np.random.default_rng(1).integers(0, 2, x.size)
    held = table({"y": y, "x": x})
    options = {"bounds": bounds, "epsilon": 1.0, "bins": bins, "seed": 1}
    here = nw.ecdf.dp_ecdf(x, **options)
    assert np.array_equal(
        here.noisy_counts, nw.ecdf.dp_ecdf("x", data=held, **options).noisy_counts
    )
    here = nw.ecdf.private_roc(y, x, **options)
    there = nw.ecdf.private_roc("y", "x", data=held, **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)


@pytest.mark.parametrize("limit", [1, 3])
def test_counts_and_sums_of_a_server_are_those_of_arrays_to_the_bit(table, limit):
    y, p, whose = visits()
    held = table({"y": y, "p": p, "patient": whose})
    options = {"epsilon": 1.0, "seed": 1, "max_per_unit": limit}
    here = nw.ecdf.private_roc(y, p, bins=64, units=whose, **options)
    there = nw.ecdf.private_roc("y", "p", data=held, bins=64, units="patient", **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)
    here = nw.ecdf.private_calibration(y, p, cuts=[0.25, 0.7], units=whose, **options)
    there = nw.ecdf.private_calibration(
        "y", "p", data=held, cuts=[0.25, 0.7], units="patient", **options
    )
    for name, column in here.sums.columns.items():
        assert np.array_equal(column, there.sums.columns[name])


@pytest.mark.parametrize(
    "names",
    [
        ["Ada", "Emmy", "ada", "Ada ", "Zoë", "Zoe\u0308"],
        [date(2020, 1, 1), date(2021, 1, 1)],
        [2**62, 2**62 + 1, -5],
        ["007", "7", "07"],
    ],
    ids=["text", "dates", "large numbers", "leading zeros"],
)
def test_identifiers_are_told_apart_as_python_does(table, names):
    rng = np.random.default_rng(0)
    whose = [names[index] for index in rng.integers(0, len(names), 60)]
    p = rng.integers(0, 9, 60) / 8
    options = {"bounds": (0, 1), "bins": 8, "epsilon": 1.0, "seed": 1, "max_per_unit": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = nw.ecdf.dp_ecdf(p, units=whose, **options)
        there = nw.ecdf.dp_ecdf(
            "p", data=table({"p": p, "patient": whose}), units="patient", **options
        )
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


def test_no_unit_moves_the_counts_of_a_server_by_more_than_its_bound(table):
    rng = np.random.default_rng(1)
    sizes, limit = [1, 3, 40], 2
    whose = np.repeat(np.arange(len(sizes)), sizes)
    p = rng.integers(0, 9, whose.size) / 8

    def counted(rows):
        bounded = per_unit(Units(whose[rows]), limit, resolve(1))
        held = table({"p": p[rows], "patient": whose[rows]})
        return column_of(held, "p", None, None, "patient", bounded).counted(Grid.of((0, 1), 8))

    everybody = counted(np.ones(whose.size, bool)).histogram
    for unit, size in enumerate(sizes):
        without = counted(whose != unit).histogram
        assert (everybody >= without).all()
        assert (everybody - without).sum() == min(size, limit) * engine_units.WEIGHT_GRAIN


def test_missing_identifiers_cost_nothing_and_show_nothing(table, tmp_path):
    for number, missing in enumerate([None, "", "  ", "nan"]):
        held = table({"p": [0.1, 0.2, 0.3], "patient": [SECRET, missing, SECRET]})
        ledger = tmp_path / str(number)
        Ledger.create(ledger, epsilon=9.0, unit="one patient").close()
        with pytest.raises(ValueError, match="missing identifiers") as caught:
            nw.ecdf.dp_ecdf(
                "p", data=held, bounds=(0, 1), bins=8, epsilon=1.0,
                units=Units("patient", name="one patient"), ledger=ledger,
            )  # fmt: skip
        assert SECRET not in str(caught.value) + repr(caught.value.__context__)
        with Ledger.open(ledger) as book:
            assert book.charges == ()
