"""Odd numbers in PySpark and PostgreSQL: counted as arrays count them, or refused at no cost.

Where these servers are: see test_units_in_servers.py.
"""

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from test_units_in_servers import postgres, spark, table  # noqa: F401

import noisewise as nw
from noisewise.privacy import Ledger

pytestmark = pytest.mark.slow
LEAST = 5e-324
#: Columns, and a grid whose edges they are on or near.
ODD = {
    "whole numbers above 2^53": (
        np.array([2**53 + k for k in range(-40, 41)]
            + [2**53 + k * 2**17 + d for k in range(-8, 9) for d in (-1, 0, 1)]
            + [2**63 - 1, -(2**63)],
            np.int64,
       ),
        (2.0**53 - 2.0**20, 2.0**53 + 2.0**20), 16,
    ),
    "both zeros, infinities, the smallest doubles": (
        [0.0, -0.0, np.inf, -np.inf, LEAST, -LEAST, 1e-310, -1e-310, 2.3e-308, 1.0], (-1.0, 1.0), 8,
    ),
    "bounds that are nearly nothing": ([0.0, -0.0, 1e-280, 5e-281, LEAST, 1.0], (0.0, 1e-280), 4),
    "bounds that are nearly everything": ([1e308, -1e308, np.inf, 0.5, -0.5], (-1e150, 1e150), 8),
    "float32 beside edges": (
        np.concatenate([
            edge := np.linspace(0, 1, 11, dtype=np.float32), np.nextafter(edge, np.float32(2)),
            np.nextafter(edge, np.float32(-2)), np.array([1e-45], np.float32),
        ]), (0.0, 1.0), 10,
    ),
    "truth values": (np.array([True, False, True]), (0.0, 1.0), 10),
    "decimals": ([Decimal("0.125"), Decimal("0.5"), Decimal("-7.25"), Decimal(3)], (0.0, 1.0), 8),
    "all alike": (np.full(30, 12.5), (0.0, 100.0), 8),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_numbers_of_a_server_are_counted_as_arrays_count_them(table, odd):  # noqa: F811
    column, bounds, bins = ODD[odd]
    given = np.asarray([float(one) for one in column])
    options = {"bounds": bounds, "bins": bins, "epsilon": 1.0, "seed": 1}
    here = nw.ecdf.dp_ecdf(given, **options)
    there = nw.ecdf.dp_ecdf("x", data=table({"x": column}), **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)


def test_a_search_in_a_server_takes_the_same_way_as_in_an_array(table):  # noqa: F811
    x = np.random.default_rng(0).lognormal(3, 1, 3000)
    options = {"bounds": (-1e12, 1e12), "epsilon": 1.0, "seed": 1}
    held = table({"x": x})
    here = nw.ecdf.dp_quantile(x, [0.25, 0.5, 0.9], mechanism="search", **options)
    there = nw.ecdf.dp_quantile("x", [0.25, 0.5, 0.9], data=held, **options)
    assert here.tolist() == there.tolist()
    assert here.statement().mechanism == there.statement().mechanism


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_numbers_cost_nothing(table, missing, tmp_path):  # noqa: F811
    held = table({"x": pd.Series([0.5, missing, 0.25], dtype="float64")})
    refused_at_no_cost(held, ValueError, "NaN or missing", tmp_path)


def test_what_postgres_itself_calls_not_a_number_costs_nothing(postgres, tmp_path):  # noqa: F811
    """There it equals itself and is larger than every number."""
    backend = postgres({"x": [0.0]}).get_backend()
    for kind in ("float8", "float4", "numeric"):
        held = backend.sql(f"select 'NaN'::{kind} as x union all select 0.5::{kind}")
        with pytest.raises((ValueError, TypeError)):
            nw.ecdf.dp_ecdf("x", data=held, bounds=(0, 1), bins=8, epsilon=1.0)
        refused_at_no_cost(held, ValueError, "", tmp_path / kind)


@pytest.mark.parametrize(
    "times",
    [
        [date(2020, 1, 1), date(1969, 12, 31)],
        [datetime(2020, 1, 1), datetime(1969, 12, 31, 23)],
    ],
    ids=["dates", "times"],
)
def test_times_are_no_numbers(table, times, tmp_path):  # noqa: F811
    refused_at_no_cost(table({"x": times}), TypeError, "must hold numbers", tmp_path)


def refused_at_no_cost(held, kind, says, folder):
    folder.mkdir(exist_ok=True)
    for number, release in enumerate((nw.ecdf.dp_ecdf, nw.ecdf.dp_median)):
        ledger = folder / f"{number}.ledger"
        Ledger.create(ledger, epsilon=9.0).close()
        with pytest.raises(kind, match=says):
            release("x", data=held, bounds=(0, 1), epsilon=1.0, ledger=ledger)
        with Ledger.open(ledger) as book:
            assert book.charges == ()
