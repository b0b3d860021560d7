"""One query for a release, and of its answer no more than the bins: counted, not believed."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

import noisewise as nw
from noisewise.ecdf.search import CELLS, MOST_LOOKS

duckdb = pytest.importorskip("duckdb")
ibis = pytest.importorskip("ibis")
narwhals = pytest.importorskip("narwhals")
pl = pytest.importorskip("polars")

ROWS, BINS = 20_000, 64
#: Releases, how many queries each may send, and by how many rows each may be answered.
RELEASES = {
    "ecdf": (lambda **o: nw.ecdf.dp_ecdf("p", bounds=(0, 1), bins=BINS, **o), 1, 2 * BINS),
    "histogram": (lambda **o: nw.ecdf.dp_histogram("p", BINS, (0, 1), **o), 1, 2 * BINS),
    "median of a curve": (
        lambda **o: nw.ecdf.dp_median("p", bounds=(0, 1), mechanism="curve", bins=BINS, **o),
        1, 2 * BINS,
    ),
    "roc": (lambda **o: nw.ecdf.dp_roc_curve("y", "p", bins=BINS, **o), 1, 2 * BINS),
    "calibration": (lambda **o: nw.ecdf.dp_calibration_curve("y", "p", **o), 1, 2 * BINS),
    "hosmer-lemeshow": (
        lambda **o: nw.ecdf.dp_hosmer_lemeshow("y", "p", bins=BINS, **o), 2, 4 * BINS
    ),
    "evaluation": (lambda **o: nw.ecdf.private_evaluation("y", "p", bins=BINS, **o), 2, 4 * BINS),
    "units": (
        lambda **o: nw.ecdf.dp_ecdf(
            "p", bounds=(0, 1), bins=BINS, units="who", max_per_unit=2, **o
        ), 1, 8 * BINS,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    p = rng.random(ROWS)
    y = (rng.random(ROWS) < p).astype(int)
    return pa.table({"y": y, "p": p, "who": rng.integers(0, ROWS // 3, ROWS)})


@pytest.fixture
def fetched(monkeypatch):
    """How many rows every answer of an engine had; all of them come through this door."""
    seen = []
    collect = narwhals.LazyFrame.collect

    def watched(self, *args, **options):
        found = collect(self, *args, **options)
        seen.append(found.shape[0])
        return found

    monkeypatch.setattr(narwhals.LazyFrame, "collect", watched)
    return seen


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_asks_an_engine_once_and_gets_no_more_than_its_bins(release, table, fetched):
    ask, queries, rows = RELEASES[release]
    for data in (duckdb.connect().from_arrow(table), pl.from_arrow(table).lazy()):
        fetched.clear()
        ask(data=data, epsilon=1.0, seed=1)
        assert len(fetched) == queries
        assert sum(fetched) <= rows < ROWS / 10


@pytest.mark.parametrize("release", [name for name in RELEASES if name != "units"])
def test_a_database_reads_its_table_as_often_as_there_are_queries(release, table):
    """SQLite itself says which statements it was given."""
    ask, queries, _ = RELEASES[release]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        connection = ibis.sqlite.connect()
        data = connection.create_table("records", table)
    statements = []
    connection.con.set_trace_callback(statements.append)
    ask(data=data, epsilon=1.0, seed=1)
    read = [text for text in statements if "from" in text.lower() and '"records"' in text]
    assert len(read) == queries
    assert all("group by" in text.lower() for text in read)


def test_a_search_for_quantiles_asks_few_times_whatever_the_bounds_are(table, fetched):
    """As often as it says, and with no more cells than its thresholds make."""
    for power in (0, 9):
        for data in (duckdb.connect().from_arrow(table), pl.from_arrow(table).lazy()):
            fetched.clear()
            found = nw.ecdf.dp_median(
                "p", data=data, bounds=(-(10.0**power), 10.0**power), epsilon=1.0, seed=1
            )
            assert f"in {len(fetched)} looks" in found.mechanism
            assert 1 < len(fetched) <= MOST_LOOKS
            assert max(fetched) <= 2 * CELLS < ROWS / 100
            assert abs(found - 0.5) < 0.02
