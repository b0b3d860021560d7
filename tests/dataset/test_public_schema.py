"""Schemas: encoding by public rules, the norm bound, and the refusal of data's own ranges."""

from __future__ import annotations

import copy
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

import noisewise.datasets as nd
from noisewise.datasets import Binary, Categorical, CodeRanges, Drop, Numeric, Ordinal, Schema
from noisewise.datasets.places import find_file
from noisewise.errors import DatasetError, NoisewiseError, UnsoundError

TABLES = [name for name in nd.list_datasets() if nd.info(name).kind == "table"]
SMALL = Schema(
    {
        "age": Numeric(18, 100),
        "income": Numeric(0, 1e6, transform="log1p", missing="indicator"),
        "job": Categorical(["clerk", "farmer"], missing=True),
        "grade": Ordinal([1, 2, 3]),
        "member": Binary(("no", "yes")),
        "id": Drop("a row number"),
    },
    target="paid",
    classes=["no", "yes"],
    source="the form",
)


def small(**cells: Any) -> pd.DataFrame:
    row = {"age": 40, "income": 1.0, "job": "clerk", "grade": 2, "member": "no", "id": 1} | cells
    return pd.DataFrame({name: [cell] for name, cell in row.items()})


def exact_square(row: np.ndarray) -> Fraction:
    """Squared norm without rounding: what a guarantee is about."""
    return sum((Fraction(float(value)) ** 2 for value in row), Fraction(0))


# The rules, cell by cell


@pytest.mark.parametrize(
    ("value", "expected"),
    [(18, -1), (59, 0), (100, 1), (-5, -1), (1e300, 1), (math.inf, 1), (-math.inf, -1)],
)
def test_numbers_are_scaled_and_clamped(value: float, expected: float) -> None:
    matrix, names = SMALL.encode(small(age=value))
    assert matrix.dtype == np.float32
    assert matrix[0, names.index("age")] == expected


def test_the_unit_scale_goes_from_zero_to_one() -> None:
    schema = Schema(
        {"a": Numeric(0, 10), "b": Binary(), "c": Ordinal(["x", "y", "z"])}, scale="unit"
    )
    frame = pd.DataFrame({"a": [0, 5, 10], "b": [0, 1, 7], "c": ["x", "y", "z"]})
    np.testing.assert_allclose(schema.encode(frame)[0], [[0, 0, 0], [0.5, 1, 0.5], [1, 0, 1]])


def test_missing_numbers_become_zero_and_the_indicator_says_so() -> None:
    matrix, names = SMALL.encode(small(income=math.nan, age=math.nan))
    assert matrix[0, names.index("income")] == 0
    assert matrix[0, names.index("income=<missing>")] == 1
    assert matrix[0, names.index("age")] == 0


@pytest.mark.parametrize(
    ("job", "hot"),
    [("clerk", "clerk"), ("farmer", "farmer"), ("spy", "<other>"), (None, "<missing>")],
)
def test_categories_are_one_hot_with_other_and_missing(job: str | None, hot: str) -> None:
    frame = pd.concat([small(job=job), small(job="clerk")], ignore_index=True)
    matrix, names = SMALL.encode(frame)
    for name in names:
        if name.startswith("job="):
            assert matrix[0, names.index(name)] == (name == f"job={hot}")


def test_without_other_an_unknown_category_is_all_zeros() -> None:
    schema = Schema({"a": Categorical(["x", "y"], other=False)})
    np.testing.assert_array_equal(
        schema.encode(pd.DataFrame({"a": ["x", "z", None]}))[0], [[1, 0], [0, 0], [0, 0]]
    )


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "Int64", "object", "category"])
def test_equal_codes_match_whatever_their_storage(dtype: str) -> None:
    schema = Schema({"a": Categorical([0, 1], other=False)})
    frame = pd.DataFrame({"a": pd.Series([0, 1, 1]).astype(dtype)})
    np.testing.assert_array_equal(schema.encode(frame)[0], [[1, 0], [0, 1], [0, 1]])


def test_codes_of_diagnoses_are_grouped_by_ranges() -> None:
    column = CodeRanges((("heart", ((390, 459), (785, 785))), ("sugar", ((250, 250),))))
    frame = pd.DataFrame({"d": ["250.83", "428", "785", "V45", "E849", "999", None, "inf", "-1"]})
    matrix, names = Schema({"d": column}).encode(frame)
    hot = [names[i].removeprefix("d=") for i in matrix.argmax(axis=1)]
    other, missing = "<other>", "<missing>"
    assert hot == ["sugar", "heart", "heart", other, other, other, missing, other, other]
    assert (matrix.sum(axis=1) == 1).all()


def test_transforms_are_monotone_and_keep_the_ends() -> None:
    values = np.linspace(0, 1000, 500)
    for transform in (None, "log1p", "sqrt", "signed_log1p"):
        schema = Schema({"x": Numeric(0, 1000, transform=transform)})
        column = schema.encode(pd.DataFrame({"x": values}))[0][:, 0]
        assert column[0] == -1
        assert column[-1] == 1
        assert (np.diff(column) >= 0).all()


# The bound


def adversarial(column: nd.Column) -> st.SearchStrategy[Any]:
    """Cells that try to leave the range: extremes, unknown, missing, infinite."""
    if isinstance(column, Numeric):
        edge = st.sampled_from(
            [column.low, column.high, np.nextafter(column.high, np.inf), math.inf, -math.inf]
        )
        return st.one_of(edge, st.floats(allow_nan=True, allow_infinity=True))
    if isinstance(column, CodeRanges):
        return st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["250.1", "inf", "nan"]))
    values: tuple[Any, ...] = getattr(column, "values", ("dropped",))
    if all(isinstance(value, str) for value in values):
        return st.one_of(st.sampled_from(values), st.none(), st.text(max_size=3))
    return st.one_of(st.sampled_from(values), st.floats(allow_nan=True, allow_infinity=True)).map(
        float
    )


def frame_of(schema: Schema, data: st.DataObject, rows: int) -> pd.DataFrame:
    cells = {}
    for name, column in schema.columns.items():
        drawn = data.draw(st.lists(adversarial(column), min_size=rows, max_size=rows))
        numeric = all(isinstance(cell, float) for cell in drawn)
        cells[name] = pd.Series(drawn, dtype="float64" if numeric else "object")
    return pd.DataFrame(cells)


def columns() -> st.SearchStrategy[nd.Column]:
    ends = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda e: (e[0], e[0] + e[1]))
    missing = st.sampled_from(["zero", "indicator"])
    linear = st.builds(
        lambda e, t, m: Numeric(*e, transform=t, missing=m),
        ends,
        st.sampled_from([None, "signed_log1p"]),
        missing,
    )
    positive = st.builds(
        lambda a, b, t, m: Numeric(a, a + b, transform=t, missing=m),
        st.floats(0, 1e6),
        st.floats(1e-3, 1e6),
        st.sampled_from(["log1p", "sqrt"]),
        missing,
    )
    words = st.lists(st.text(max_size=3), min_size=2, max_size=5, unique=True).map(tuple)
    codes = st.lists(st.integers(-9, 9), min_size=2, max_size=5, unique=True).map(tuple)
    return st.one_of(
        linear,
        positive,
        st.builds(Categorical, st.one_of(words, codes), st.booleans(), st.booleans()),
        st.builds(Ordinal, st.one_of(words, codes), missing),
        st.builds(Binary, st.one_of(words, codes).map(lambda values: values[:2])),
        st.just(CodeRanges((("sugar", ((250, 250),)),))),
        st.just(Drop("unused")),
    )


def schemas() -> st.SearchStrategy[Schema]:
    kinds = st.lists(columns(), min_size=1, max_size=6).filter(
        lambda chosen: any(not isinstance(column, Drop) for column in chosen)
    )
    return st.builds(
        lambda chosen, scale: Schema({f"c{i}": c for i, c in enumerate(chosen)}, scale=scale),
        kinds,
        st.sampled_from(["symmetric", "unit"]),
    )


@given(schemas(), st.data())
@settings(max_examples=150, deadline=None)
def test_no_row_can_be_pushed_over_the_bound(schema: Schema, data: st.DataObject) -> None:
    frame = frame_of(schema, data, 3)
    matrix, names = schema.encode(frame)
    unit, _ = schema.encode(frame, unit_norm=True)
    assert matrix.shape == (3, len(names)) == (3, schema.width)
    assert np.isfinite(matrix).all()
    for row, scaled in zip(matrix, unit, strict=True):
        assert exact_square(row) <= Fraction(schema.norm_bound) ** 2
        assert exact_square(scaled) <= 1


@given(schemas(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_is_encoded_alike_alone_and_among_others(schema: Schema, data: st.DataObject) -> None:
    frame = frame_of(schema, data, 4)
    together, _ = schema.encode(frame)
    for row in range(4):
        np.testing.assert_array_equal(schema.encode(frame.iloc[[row]])[0][0], together[row])
    turned, _ = schema.encode(frame.iloc[::-1, ::-1])
    np.testing.assert_array_equal(turned[::-1], together)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 11, 86, 1000])
def test_the_bound_is_tight_and_the_unit_bound_nearly_so(count: int) -> None:
    schema = Schema({f"c{i}": Binary() for i in range(count)})
    frame = pd.DataFrame(np.ones((1, count), dtype=int), columns=list(schema.columns))
    matrix, _ = schema.encode(frame)
    unit, _ = schema.encode(frame, unit_norm=True)
    assert exact_square(matrix[0]) == count <= Fraction(schema.norm_bound) ** 2
    assert schema.norm_bound <= math.sqrt(count) * (1 + 1e-15)
    assert 1 - 1e-6 < exact_square(unit[0]) <= 1


def test_dropped_columns_do_not_count_in_the_bound() -> None:
    assert SMALL.norm_bound == math.sqrt(5) or SMALL.norm_bound == np.nextafter(math.sqrt(5), 3)
    assert SMALL.drop("age", "job").norm_bound ** 2 == pytest.approx(3)


# The shipped schemas


@pytest.mark.parametrize("name", TABLES)
def test_every_table_encodes_without_gaps_and_within_the_bound(name: str) -> None:
    if find_file(nd.info(name)) is None and name != "breast_cancer_wdbc":
        pytest.skip(f"the file {nd.info(name).filename} is in no folder of this machine")
    table = nd.load_table(name, download=False)
    assert table.schema is not None
    matrix, target = table.encode()
    assert np.isfinite(matrix).all()
    squares = np.square(matrix, dtype=np.float64).sum(axis=1)
    assert squares.max() <= table.schema.norm_bound**2 * (1 + 1e-12)
    unit, _ = table.encode(unit_norm=True)
    assert exact_square(unit[int(squares.argmax())]) <= 1
    assert len(target) == len(table.frame)
    if table.schema.classes is not None:
        assert list(table.schema.decode_target(target[:50])) == list(
            table.frame[table.target].iloc[:50]
        )
    # Wrong units or misspelt categories would show as whole columns that are changed.
    # "Other" is a group of its own by design where a published grouping is coarse.
    coarse = {"medical_specialty", "diag_1", "diag_2", "diag_3"}
    report = table.schema.check(table.frame)
    for column in report.columns:
        if column.name not in coarse:
            assert report.share_changed(column.name) < 0.03, column


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_no_row_of_any_table_can_leave_the_bound(name: str, data: st.DataObject) -> None:
    schema = nd.schema_for(name)
    frame = frame_of(schema, data, 2)
    for row in schema.encode(frame, unit_norm=True)[0]:
        assert np.isfinite(row).all()
        assert exact_square(row) <= 1


@pytest.mark.parametrize("name", TABLES)
def test_every_schema_is_sound_names_its_source_and_survives_json(name: str) -> None:
    schema = nd.schema_for(name)
    schema.require_sound()
    assert schema.source in " ".join(schema.assumptions)
    assert "not taken from the data" in " ".join(schema.assumptions)
    assert Schema.from_json(schema.to_json()) == schema
    assert len(schema.feature_names) == schema.width


def test_an_unknown_table_has_no_schema() -> None:
    with pytest.raises(DatasetError, match="no schema for 'mnist'"):
        nd.schema_for("mnist")


# Targets


def test_classes_are_numbered_in_their_public_order_even_if_absent() -> None:
    frame = pd.DataFrame({"paid": ["yes", "yes"]})
    target = SMALL.encode_target(frame)
    assert target.tolist() == [1, 1]
    assert target.dtype == np.int64
    assert SMALL.decode_target(target).tolist() == ["yes", "yes"]


@pytest.mark.parametrize("label", ["maybe", None])
def test_a_label_outside_the_classes_is_an_error_that_does_not_show_it(label: str | None) -> None:
    with pytest.raises(nd.SchemaError, match="labels in 'paid' are not among") as caught:
        SMALL.encode_target(pd.DataFrame({"paid": pd.Series(["no", label], dtype=object)}))
    assert "maybe" not in str(caught.value)


@pytest.mark.parametrize("transform", [None, "log1p", "sqrt", "signed_log1p"])
@pytest.mark.parametrize("scale", ["symmetric", "unit"])
def test_the_target_of_a_regression_is_clamped_scaled_and_returned(
    transform: str | None, scale: str
) -> None:
    schema = Schema(
        {"a": Numeric(0, 1)},
        target="y",
        target_range=Numeric(0, 50, transform=transform),
        scale=scale,
    )
    frame = pd.DataFrame({"y": [0.0, 10.0, 50.0, 90.0]})
    encoded = schema.encode_target(frame)
    assert encoded.dtype == np.float32
    assert encoded.min() == (-1 if scale == "symmetric" else 0)
    assert encoded.max() == 1
    np.testing.assert_allclose(schema.decode_target(encoded), [0, 10, 50, 50], atol=1e-4)
    with pytest.raises(nd.SchemaError, match="missing values"):
        schema.encode_target(pd.DataFrame({"y": [1.0, math.nan]}))


# Errors


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (small().drop(columns="age"), "lacks 1 column.*'age'"),
        (small().rename(columns={"income": "Income"}), "did you mean 'Income'"),
        (small(extra=1), r"does not know: 'extra'.*Drop\(\)"),
        (small(age="forty"), "'age' is declared a number.*to_numeric"),
        (small(member=1), "declared categories are text"),
        (small(grade="2"), "declared categories are numbers"),
        (small(job=[["a"]]), "'job' holds values that are no categories"),
        (pd.concat([small(), small()[["age"]]], axis=1), "two columns named 'age'"),
        (np.zeros((2, 2)), "expected a pandas DataFrame"),
    ],
)
def test_a_table_that_does_not_fit_is_told_what_and_where(frame: Any, message: str) -> None:
    if isinstance(frame, pd.DataFrame) and "grade" in frame and isinstance(frame["grade"][0], str):
        frame = frame.astype({"grade": "string"})
    with pytest.raises(nd.SchemaError, match=message) as caught:
        SMALL.encode(frame)
    assert isinstance(caught.value, (NoisewiseError, ValueError))


def test_extra_columns_can_be_ignored_and_dropped_ones_may_be_absent() -> None:
    frame = small(extra=1).drop(columns="id")
    assert SMALL.encode(frame, extra="ignore")[0].shape == (1, SMALL.width)
    assert SMALL.encode(small().iloc[:0])[0].shape == (0, SMALL.width)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Numeric(1, 1),
        lambda: Numeric(2, 1),
        lambda: Numeric(-1, 1, transform="log1p"),
        lambda: Numeric(0, math.inf),
        lambda: Numeric(-1e308, 1e308),
        lambda: Numeric(0, 1, transform="cube"),
        lambda: Numeric(0, 1, missing="mean"),
        lambda: Categorical([]),
        lambda: Categorical("abc"),
        lambda: Categorical(["a", "a"]),
        lambda: Categorical([1, True]),
        lambda: Categorical([1.5]),
        lambda: Binary((1, 2, 3)),
        lambda: Ordinal([1]),
        lambda: CodeRanges((("a", ((5, 1),)),)),
        lambda: Schema({}),
        lambda: Schema({"a": Drop()}),
        lambda: Schema({"a": "numeric"}),
        lambda: Schema({1: Binary()}),
        lambda: Schema({"a": Binary()}, target="a"),
        lambda: Schema({"a": Binary()}, classes=[0, 1]),
        lambda: Schema({"a": Binary()}, target="y", classes=[0], target_range=Numeric(0, 1)),
        lambda: Schema({"a": Binary()}, scale="standard"),
        lambda: Schema({"a": Binary()}, sound=False),
        lambda: Schema({"a": Categorical(["x"]), "a=x": Binary()}),
        lambda: SMALL.drop("nothing"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make()


# JSON, copies, reports


@given(schemas())
@settings(max_examples=60, deadline=None)
def test_json_gives_the_same_schema_back(schema: Schema) -> None:
    back = Schema.from_json(schema.to_json())
    assert back == schema
    assert hash(back) == hash(schema)
    assert back.norm_bound == schema.norm_bound


def test_a_schema_can_be_pickled_and_copied_and_not_changed() -> None:
    for twin in (pickle.loads(pickle.dumps(SMALL)), copy.deepcopy(SMALL)):
        assert twin == SMALL
    with pytest.raises(TypeError):
        SMALL.columns["age"] = Numeric(0, 1)  # type: ignore[index]
    with pytest.raises(AttributeError):
        SMALL.sound = False  # type: ignore[misc]


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(SMALL.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "noisewise_schema"),
        (_changed(noisewise_schema=2), "version 2"),
        (_changed(surprise=1), "surprise"),
        (_changed(sound="yes"), "sound"),
        (_changed(columns={}), "must be a list"),
        (_changed(columns=[{"name": "a", "kind": "magic"}]), "needs a kind"),
        (_changed(columns=[{"name": "a", "kind": "binary", "x": 1}]), "no 'x'"),
        (_changed(columns=[{"name": "a", "kind": "numeric", "low": 0}]), "'a'.*high"),
        (_changed(columns=[{"name": "a", "kind": "binary"}] * 2), "twice"),
        (_changed(columns=[3]), "object with a name"),
        (_changed(target_range={"kind": "binary"}), "kind numeric"),
    ],
)
def test_json_that_is_not_a_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(nd.SchemaError, match=message):
        Schema.from_json(text)


def test_the_report_counts_and_says_that_it_is_not_private() -> None:
    frame = pd.concat(
        [small(age=5), small(age=500, job="spy"), small(income=math.nan), small(job=None)],
        ignore_index=True,
    )
    report = SMALL.check(frame)
    counts = {c.name: (c.clamped, c.unknown, c.missing) for c in report.columns}
    assert counts["age"] == (2, 0, 0)
    assert counts["job"] == (0, 1, 1)
    assert counts["income"] == (0, 0, 1)
    assert "id" not in counts
    assert report.share_changed("age") == report.largest_share == 0.5
    assert report.private is False
    assert "NOT PRIVATE" in str(report)
    assert max(map(len, str(report).splitlines())) <= 80


# Schemas from the data


def test_ranges_from_the_data_need_the_word_study_and_never_give_an_epsilon() -> None:
    frame = pd.DataFrame({"pay": [1.0, 9.0, 5.0], "job": ["a", "b", None], "y": [0, 1, 1]})
    with pytest.raises(UnsoundError, match="study=True"):
        Schema.from_data(frame, "y")
    with pytest.raises(UnsoundError):
        Schema.from_data(frame, "y", study=1)  # type: ignore[arg-type]
    schema = Schema.from_data(frame, "y", study=True)
    assert not schema.sound
    with pytest.raises(UnsoundError, match="private records"):
        schema.require_sound()
    assert schema.assumptions[0].startswith("NOT SOUND")
    for twin in (Schema.from_json(schema.to_json()), pickle.loads(pickle.dumps(schema))):
        assert not twin.sound
    assert not schema.drop("pay").sound
    matrix, names = schema.encode(frame)
    assert matrix[:, names.index("pay")].tolist() == [-1, 1, 0]
    assert schema.encode_target(frame).tolist() == [0, 1, 1]


def test_one_record_moves_everybody_elses_encoding_under_a_schema_from_the_data() -> None:
    frame = pd.DataFrame({"pay": [1.0, 2.0, 3.0]})
    richer = pd.concat([frame, pd.DataFrame({"pay": [1e6]})], ignore_index=True)
    for method in ("min-max", "mean-std"):
        one = Schema.from_data(frame, study=True, method=method).encode(frame)[0]
        two = Schema.from_data(richer, study=True, method=method).encode(frame)[0]
        assert np.abs(one - two).max() > 0.1
    public = Schema({"pay": Numeric(0, 100)})
    np.testing.assert_array_equal(public.encode(frame)[0], public.encode(richer)[0][:3])


def test_odd_columns_of_the_data_are_handled() -> None:
    frame = pd.DataFrame(
        {
            "constant": [3, 3, 3],
            "empty": [math.nan] * 3,
            "names": ["a", "b", "c"],
            "y": [0.5, 1.5, 2.5],
        }
    )
    schema = Schema.from_data(frame, "y", study=True, max_categories=2)
    assert isinstance(schema.columns["names"], Drop)
    assert schema.target_range is not None
    assert np.isfinite(schema.encode(frame)[0]).all()
    with pytest.raises(nd.SchemaError, match="no target column"):
        Schema.from_data(frame, "z", study=True)


def test_a_target_range_that_is_a_pair_is_told_what_to_write():
    with pytest.raises(ValueError, match=r"Numeric\(low, high\)"):
        Schema({"a": Numeric(0, 1)}, target="y", target_range=(0, 100))
