"""PySpark in local mode: the same bits as arrays."""

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
from test_engines import GRIDS, on_edges

import noisewise as nw

pytestmark = pytest.mark.slow
pyspark = pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def frame_of(spark, columns):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the version of pandas
        return spark.createDataFrame(pd.DataFrame(columns))


@pytest.mark.parametrize(("bounds", "bins"), GRIDS)
def test_curves_of_a_spark_frame_are_those_of_its_columns_to_the_bit(spark, bounds, bins):
    x = on_edges(bounds, bins)
    y = np.random.default_rng(1).integers(0, 2, x.size)
    table = frame_of(spark, {"y": y, "x": x})
    options = {"bounds": bounds, "epsilon": 1.0, "bins": bins, "seed": 1}
    here, there = nw.ecdf.dp_ecdf(x, **options), nw.ecdf.dp_ecdf("x", data=table, **options)
    assert np.array_equal(here.noisy_counts, there.noisy_counts)
    here = nw.ecdf.private_roc(y, x, **options)
    there = nw.ecdf.private_roc("y", "x", data=table, **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)


def test_an_evaluation_of_a_spark_frame_is_that_of_its_columns(spark):
    rng = np.random.default_rng(2)
    ties = (np.arange(64) + 0.5) / 2**20
    p = np.concatenate([ties, 1 - ties, [0.0, 1.0], rng.random(400)])
    y = rng.random(p.size) < p
    table = frame_of(spark, {"y": y, "p": p})
    here = nw.ecdf.private_evaluation(y, p, epsilon=1.0, seed=3, bins=64)
    there = nw.ecdf.private_evaluation("y", "p", data=table, epsilon=1.0, seed=3, bins=64)
    assert here.summary() == there.summary()


def test_missing_values_of_a_spark_frame_are_refused(spark):
    for bad in (float("nan"), None):
        table = spark.createDataFrame([(0, 0.5), (1, bad)], "y int, p double")
        with pytest.raises(ValueError, match="NaN or missing"):
            nw.ecdf.dp_roc_curve("y", "p", data=table, epsilon=1.0)


@pytest.mark.parametrize("named", [False, True], ids=["numbers", "names"])
def test_units_of_a_spark_frame_are_bounded_as_those_of_arrays(spark, named):
    rng = np.random.default_rng(4)
    p = rng.integers(0, 65, 400) / 64
    y = (rng.random(400) < p).astype(int)
    whose = np.where(np.arange(400) % 2, 7, rng.integers(0, 90, 400))
    names = [f"{'Ada' if one % 2 else 'ada'} {one // 2}" for one in whose] if named else whose
    table = frame_of(spark, {"y": y, "p": p, "who": names})
    options = {"epsilon": 1.0, "seed": 1, "bins": 64, "max_per_unit": 3}
    here = nw.ecdf.private_roc(y, p, units=names, **options)
    there = nw.ecdf.private_roc("y", "p", data=table, units="who", **options)
    assert np.array_equal(here.release.noisy, there.release.noisy)


def test_names_that_spark_calls_the_same_are_refused(spark):
    frame = spark.createDataFrame([("Ada", 0.25), ("ada", 0.75)], "who string, p double")
    blurred = frame.selectExpr("collate(who, 'UTF8_LCASE') who", "p")
    with pytest.raises((ValueError, TypeError), match="units the same"):
        nw.ecdf.dp_ecdf("p", data=blurred, bounds=(0, 1), epsilon=1.0, units="who")
