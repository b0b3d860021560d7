"""Schemas as files that people write: drafted without the data's values, checked as a whole."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

import noisewise.datasets as nd
from noisewise.cli import app
from noisewise.datasets import (
    Categorical,
    Date,
    FileFormat,
    Identifier,
    Numeric,
    Schema,
    SchemaError,
    YesNo,
    draft_schema,
    read_table,
)
from noisewise.datasets.preflight import look_at

TABLES = [name for name in nd.list_datasets() if nd.info(name).kind == "table"]


def messy(path, rows=300, seed=0):
    """Write a table as people have them; return its cells."""
    rng = np.random.default_rng(seed)
    smoker = ["yes", "Yes", " Y", "no", "No", "", "n/a"]
    frame = pd.DataFrame(
        {
            "patient_id": rng.integers(70000, 70100, rows),
            " age": rng.integers(21, 83, rows),
            "blood pressure": [f"{v:.1f}".replace(".", ",") for v in rng.normal(133, 15, rows)],
            "admitted": pd.date_range("2021-03-17", periods=rows).strftime("%d.%m.%Y"),
            "smoker": rng.choice(smoker, rows),
            "region": rng.choice(["Northumbria", "Southsea", "Westmorland"], rows),
            "comment": [f"patient {i} said something long and free" for i in range(rows)],
            "outcome": rng.choice(["yes", "No", "Y", "n"], rows),
        }
    )
    path.write_bytes(b"\xef\xbb\xbf" + frame.to_csv(index=False, sep=";").encode())
    return frame


FINISHED = """
noisewise_schema = 1
source = "admission form"
unit = "patient_id"
[target]
name = "outcome"
kind = "yes/no"
[file]
separator = ";"
decimal = ","
[columns]
"patient_id" = { kind = "identifier" }
"age" = { kind = "number", range = [0, 120] }
"blood pressure" = { kind = "number", range = [40, 300], fill = 120 }
"admitted" = { kind = "date", range = [2015-01-01, 2030-12-31], format = "%d.%m.%Y" }
"smoker" = { kind = "yes/no" }
"region" = { kind = "category", values = ["northumbria", "southsea"] }
"comment" = { kind = "drop", reason = "free text" }
"""


def test_a_draft_has_names_and_kinds_and_no_value_of_the_rows(tmp_path):
    frame = messy(tmp_path / "patients.csv")
    text = draft_schema(str(tmp_path / "patients.csv"), target="outcome", unit="patient_id")
    kinds = dict(re.findall(r'^"(.+?)" = \{ kind = "(.+?)"', text, re.M))
    assert kinds == {
        "patient_id": "identifier", "age": "number", "blood pressure": "number",
        "admitted": "date", "smoker": "yes/no", "region": "category", "comment": "drop",
    }  # fmt: skip
    assert 'separator = ";"' in text
    assert 'decimal = ","' in text
    for name in ("patient_id", "blood pressure", "admitted", "region", "comment"):
        assert not any(str(cell) in text for cell in frame[name].unique())
    assert max(map(len, text.splitlines())) <= 80


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_draft_depends_on_the_kinds_of_cells_alone(tmp_path_factory, data):
    """Other numbers, other words, other days: the same draft."""
    folder = tmp_path_factory.mktemp("draft")
    drafts = []
    for _ in range(2):
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        scale = data.draw(st.floats(1.0, 1e6))
        words = data.draw(st.lists(st.from_regex("[d-m]{4,8}", fullmatch=True), min_size=3,
                                   max_size=5, unique=True))  # fmt: skip
        pd.DataFrame(
            {
                "amount": np.round(rng.normal(size=60) * scale, 3),
                "word": rng.choice(words, 60),
                "day": pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.integers(0, 9999, 60), "D"),
                "told": rng.choice(["yes", "no"], 60),
            }
        ).to_csv(folder / "t.csv", index=False)
        drafts.append(draft_schema(str(folder / "t.csv"), target="told"))
    assert drafts[0] == drafts[1]


def test_every_waiting_line_is_told_at_once(tmp_path):
    messy(tmp_path / "patients.csv")
    text = draft_schema(str(tmp_path / "patients.csv"), target="outcome")
    with pytest.raises(SchemaError) as error:
        Schema.from_toml(text, "patients.toml")
    said = str(error.value)
    for part in ("'age': range", "'blood pressure': range", "'admitted'", "'region': values",
                 "source", "5 problems"):  # fmt: skip
        assert part in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("range = [0, 120]", "range = [120, 0]"), "low < high"),
        (("range = [0, 120]", "range = 120"), r"\[lowest, highest\]"),
        (("range = [0, 120]", 'range = ["a", 120]'), "two numbers"),
        (("fill = 120", "fill = 12"), "fill must lie in the range"),
        (("fill = 120", 'fill = 120, missing = "indicator"'), "exclude each other"),
        (('kind = "number", range = [40', 'kind = "float", range = [40'), "'float' is not known"),
        (("fill = 120", "filling = 120"), "'filling' is no key"),
        (("2015-01-01, 2030-12-31", "2030-12-31, 2015-01-01"), "range of days"),
        (("2015-01-01, 2030-12-31", "2015, 2030"), "two days"),
        (('values = ["northumbria", "southsea"]', "values = []"), "must be a list"),
        (('values = ["northumbria", "southsea"]', 'values = ["a", "A"]'), "capital letters"),
        (('"comment" = { kind = "drop"', '"outcome" = { kind = "drop"'), "also the"),
        (('"patient_id" = { kind = "identifier" }', '"patient_id" = { kind = "number", range = '
          "[0, 9] }"), "names the unit"),
        (("noisewise_schema = 1", "noisewise_schema = 9"), "version"),
        (("noisewise_schema = 1", "noisewise_schema = 1\nrows = 3"), "'rows' is no part"),
        (('decimal = ","', 'decimal = ";"'), "decimal"),
        (('kind = "yes/no"\n[file]', 'kind = "date"\n[file]'), "kind must be one of"),
        (("[columns]", "[columns"), "not TOML"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file_are_told(change, said):
    with pytest.raises(SchemaError, match=said):
        Schema.from_toml(FINISHED.replace(*change))


def test_all_mistakes_come_together():
    text = FINISHED.replace("[0, 120]", "[120, 0]").replace("fill = 120", "fill = 9")
    with pytest.raises(SchemaError) as error:
        Schema.from_toml(text.replace('"yes/no" }', '"yes or no" }'))
    assert str(error.value).count("\n  - ") == 3


def test_a_messy_file_is_read_by_the_schemas_rules(tmp_path):
    frame = messy(tmp_path / "patients.csv")
    schema = Schema.from_toml(FINISHED)
    read = read_table(tmp_path / "patients.csv", schema)
    assert set(read["outcome"]) == {"no", "yes"}
    assert read["blood pressure"].iloc[0] == float(frame["blood pressure"][0].replace(",", "."))
    matrix, names = schema.encode(read, extra="ignore")
    smoker = dict(zip(names, matrix.T, strict=True))
    told = frame["smoker"].str.strip().str.lower()
    assert np.array_equal(smoker["smoker"] == 1, told.isin(["yes", "y"]))
    assert np.array_equal(smoker["smoker=<missing>"] == 1, told.isin(["", "n/a"]))
    assert np.array_equal(smoker["region=<other>"] == 1, frame["region"] == "Westmorland")
    day = matrix[:, names.index("admitted")]
    assert np.all(np.diff(day) > 0)
    assert np.linalg.norm(matrix.astype(np.float64), axis=1).max() <= schema.norm_bound


def test_missing_numbers_get_an_indicator_or_a_public_fill():
    cells = pd.DataFrame({"a": [np.nan, 10.0], "b": [np.nan, 10.0]})
    schema = Schema({"a": Numeric(0, 10, missing="indicator"), "b": Numeric(0, 10, fill=7.5)})
    matrix, names = schema.encode(cells)
    assert names == ("a", "a=<missing>", "b")
    assert matrix.tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 1.0]]


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(
        st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["Yes", "no", "2020-02-30"])),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_whatever_a_cell_holds_its_block_is_short_and_its_own(cells):
    column = pd.Series(cells, dtype=object)
    for kind in (YesNo(missing="indicator"), Date("2000-01-01", "2030-01-01", missing="indicator"),
                 Categorical(["a", "yes"], ignore_case=True, missing=True)):  # fmt: skip
        block = kind.encode("x", column, True)
        assert (np.square(block).sum(1) <= 1).all()
        for index in range(len(cells)):
            alone = kind.encode("x", column.iloc[[index]], True)
            assert np.array_equal(alone[0], block[index])
    assert Identifier().encode("x", column, True).shape == (len(cells), 0)


@pytest.mark.parametrize("name", TABLES)
def test_registered_schemas_survive_toml_and_json(name):
    schema = nd.schema_for(name)
    again = Schema.from_toml(schema.to_toml())
    assert (again.feature_names, again.norm_bound) == (schema.feature_names, schema.norm_bound)
    assert again.classes == schema.classes
    assert Schema.from_json(again.to_json()) == again


def test_a_finished_file_survives_both_forms(tmp_path):
    schema = Schema.from_toml(FINISHED)
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_json(schema.to_json()) == schema
    (tmp_path / "s.json").write_text(schema.to_json())
    (tmp_path / "s.toml").write_text(schema.to_toml())
    assert Schema.read(tmp_path / "s.json") == Schema.read(tmp_path / "s.toml") == schema
    assert schema.file == FileFormat(separator=";", decimal=",")


def test_the_commands_lead_from_a_table_to_a_checked_schema(tmp_path):
    messy(tmp_path / "patients.csv")

    def run(*arguments):
        return CliRunner().invoke(app, ["schema", *map(str, arguments)])

    table, file = tmp_path / "patients.csv", tmp_path / "patients.toml"
    drafted = run("draft", table, "--target", "outcome", "--unit", "patient_id")
    assert drafted.exit_code == 0, drafted.output
    assert "5 entries are left for you" in drafted.output
    assert run("check", file, table).exit_code == 1
    assert "exists" in str(run("draft", table).exception)
    file.write_text(FINISHED)
    checked = run("check", file, table)
    assert checked.exit_code == 0, checked.output
    assert "NOT private" in checked.output
    shown = run("show", "adult")
    assert Schema.from_toml(shown.output).target == "income"
    assert "yes/no" in run("kinds").output
    file.write_text(FINISHED.replace('"age"', '"ages"'))
    wrong = run("check", file, table)
    assert wrong.exit_code == 1
    assert "no column 'ages'" in wrong.output


def test_a_look_tells_rows_that_are_not_people(tmp_path):
    messy(tmp_path / "patients.csv")
    schema = Schema.from_toml(FINISHED.replace('unit = "patient_id"', ""))
    assert "rows are not people" in str(look_at(tmp_path / "patients.csv", schema))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"a,b\n1,2\n3,4,5,6\n", "cannot read .* as a table"),
        (b"\xff\xfeno text of sixteen bits", "encoded|encoding"),
    ],
)
def test_files_that_cannot_be_read_are_told_without_their_cells(tmp_path, content, said):
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    schema = Schema({"a": Numeric(0, 1)})
    with pytest.raises(SchemaError, match=said) as error:
        read_table(path, schema)
    assert "3,4" not in str(error.value)


def test_a_file_of_two_encodings_and_repeated_names_is_read_cell_by_cell(tmp_path):
    """Each cell by itself: one cell of another program changes no other one."""
    path = tmp_path / "mixed.csv"
    lines = ["\ufefftown;a; a;a".encode(), "Köln;1;2;3".encode(), "Köln;4;5;6".encode("cp1252")]
    path.write_bytes(b"\n".join(lines))
    schema = Schema({"town": Categorical(["Köln"]), "a.2": Numeric(0, 9)},
                    file=FileFormat(separator=";"))  # fmt: skip
    frame = read_table(path, schema)
    assert list(frame.columns) == ["town", "a", "a.1", "a.2"]
    assert frame["town"].tolist() == ["Köln", "Köln"]
    assert frame["a.2"].tolist() == [3.0, 6.0]
    assert 'the file calls "a"' in draft_schema(str(path))
    wide = tmp_path / "excel.csv"
    wide.write_bytes("town\ta\nKöln\t1\n".encode("utf-16"))
    assert 'encoding = "utf-16"' in draft_schema(str(wide))
    assert 'separator = "\\t"' in draft_schema(str(wide))


@pytest.mark.parametrize(
    ("cells", "decimal", "thousands"),
    [
        (["1.234,50", "12,5", "7"], ",", "."),
        (["$1,234.50", "12.5", "7"], ".", ","),
        (["1'234.50", "12.5", "7"], ".", "'"),
        (["1 234,50", "12,5", "7"], ",", " "),
        (["1,234", "2,5", "7"], ",", None),
        (["1234.5 €", "12.5", "7 %"], ".", None),
        (["1.234,50 EUR", "CHF 12,5", "7 kr"], ",", "."),
    ],
)
def test_a_draft_finds_how_numbers_are_written(tmp_path, cells, decimal, thousands):
    path = tmp_path / "salary.csv"
    path.write_text("salary;sick\n" + "\n".join(f"{cell};yes" for cell in cells))
    text = draft_schema(str(path), target="sick")
    assert '"salary" = { kind = "number", range = "?" }' in text
    form = FileFormat(separator=";", decimal=decimal, thousands=thousands)
    assert (f'thousands = "{thousands}"' in text) == (thousands is not None)
    assert ('decimal = ","' in text) == (decimal == ",")
    read = read_table(path, Schema({"salary": Numeric(0, 9999)}, file=form))["salary"]
    assert read.notna().all()
    assert read[2] == 7.0


def test_marks_of_numbers_may_be_the_separator_where_cells_stand_in_quotes(tmp_path):
    path = tmp_path / "rents.csv"
    path.write_text('rent,flat\n"1,234.50",a\n700.00,b\n"12,000.00",c\n')
    text = draft_schema(str(path))
    assert 'thousands = ","' in text
    form = FileFormat(thousands=",")
    assert read_table(path, Schema({"rent": Numeric(0, 1e5)}, file=form))["rent"].tolist() == [
        1234.5, 700.0, 12000.0,
    ]  # fmt: skip
    path.write_text('height,flat\n"1,5",a\n"2,25",b\n')
    assert 'decimal = ","' in draft_schema(str(path))


def test_lines_above_the_names_are_found_by_the_target_and_skipped(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("Export of the ward; 3 May\n\nage;sick\n41;yes\n52;no\n")
    text = draft_schema(str(path), target="sick")
    assert "skip = 2" in text
    text = text.replace('values = "?"', 'values = ["a"]').replace('range = "?"', "range = [0, 120]")
    schema = Schema.from_toml(text.replace('source = "?"', 'source = "a form"'))
    assert Schema.from_toml(schema.to_toml()) == schema == Schema.from_json(schema.to_json())
    assert read_table(path, schema)["age"].tolist() == [41.0, 52.0]
    assert "skip = 2" in draft_schema(str(path), skip=2)
    with pytest.raises(SchemaError, match="lines to skip"):
        draft_schema(str(path), target="ill")
    with pytest.raises(SchemaError, match="skip must be"):
        FileFormat(skip=-1)
    wide = tmp_path / "wide.csv"
    wide.write_bytes(path.read_text().encode("utf-16"))
    assert "skip = 2" in draft_schema(str(wide), target="sick")


@pytest.mark.parametrize("cells", ["41,yes,twice\n52,no,once\n", "41,yes,\n52,no,once\n"])
def test_no_cell_is_lost_beyond_the_last_name(tmp_path, cells):
    path = tmp_path / "long.csv"
    path.write_text("age,sick\n" + cells)
    with pytest.raises(SchemaError, match=r"more cells than there are names.*in quotes") as error:
        draft_schema(str(path))
    assert "once" not in str(error.value)


@pytest.mark.filterwarnings("error")
def test_separators_at_the_ends_of_lines_are_no_cells(tmp_path):
    path = tmp_path / "ends.csv"
    path.write_text("age,sick\n41,yes,\n052,no,\n")
    frame = read_table(path, Schema({"age": Categorical(["41", "052"])}))
    assert frame.to_dict("list") == {"age": ["41", "052"], "sick": ["yes", "no"]}


def test_a_number_in_another_notation_is_missing_and_not_another_number(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a\n1.500\n1.5\n1,5\n1.2.2024\n")
    form = FileFormat(separator=";", decimal=",", thousands=".")
    read = read_table(path, Schema({"a": Numeric(0, 9999)}, file=form))["a"]
    assert read[0] == 1500.0
    assert read[2] == 1.5
    assert read[[1, 3]].isna().all()


def test_a_note_among_the_answers_leaves_them_yes_or_no_and_a_count_is_a_number(tmp_path):
    path = tmp_path / "a.csv"
    answers = ["Y", "TRUE", "nein", "0", "yes"] * 20 + ["asked twice"]
    children = ["0", "1", "1", "0", "0"] * 20 + ["3"]
    path.write_text(
        "smoker,children\n" + "\n".join(map(",".join, zip(answers, children, strict=True)))
    )
    text = draft_schema(str(path))
    assert '"smoker" = { kind = "yes/no" }' in text
    assert '"children" = { kind = "number"' in text


def test_days_written_in_two_ways_are_days(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("began\n" + "17 Mar 2024\n" * 9)
    assert 'format = "%d %b %Y"' in draft_schema(str(path))
    days = ["17.03.2024", "2024-03-18", "5.1.2024"] * 20 + ["soon"]
    path.write_text("began\n" + "\n".join(days))
    text = draft_schema(str(path))
    assert 'kind = "date", range = "?", format = ["%d.%m.%Y", "ISO8601"]' in text
    text = text.replace('range = "?"', "range = [2024-01-01, 2024-12-31]")
    text = text.replace('source = "?"', 'source = "a form"')
    schema = Schema.from_toml(text)
    assert Schema.from_toml(schema.to_toml()) == schema == Schema.from_json(schema.to_json())
    column = schema.columns["began"]
    found = column.encode("began", pd.Series(days), symmetric=False)
    assert found[:3, 0] == pytest.approx([76 / 365, 77 / 365, 4 / 365])
    assert found[-1].tolist() == [0.0, 1.0]  # said to be missing
    with pytest.raises(SchemaError, match="list of such"):
        Date("2024-01-01", "2024-12-31", format=())


def test_codes_times_of_day_and_notes_among_numbers_are_drafted_as_what_they_are(tmp_path):
    path = tmp_path / "a.csv"
    rows = []
    for i in range(200):
        note = "n. best." if i % 10 == 0 else f"{1000 + 7 * i},{i % 100:02d}"
        result = f"{i % 60},5" if i % 3 == 0 else f"<{i % 60}"
        rows.append(f"{i:06d};{i % 150:05d};0{1067 + i % 3};17.03.2024 0{i % 9}:30;{note};{result}")
    rows += rows[:4]  # copied rows do not hide an identifier
    path.write_text("case;person;postcode;arrived;costs;result\n" + "\n".join(rows))
    kinds = dict(re.findall(r'^"(.+?)" = (\{.+\})', draft_schema(str(path)), re.M))
    assert kinds["case"] == kinds["person"] == '{ kind = "identifier" }'
    assert kinds["postcode"] == '{ kind = "category", values = "?" }'
    assert kinds["arrived"] == '{ kind = "date", range = "?", format = "%d.%m.%Y %H:%M" }'
    assert kinds["costs"] == '{ kind = "number", range = "?" }'
    assert kinds["result"] == '{ kind = "drop", reason = "too many values" }'
    form = FileFormat(separator=";", decimal=",")
    columns = {"costs": Numeric(0, 9999), "result": Numeric(0, 500)}
    said = str(look_at(path, Schema(columns, file=form)))
    assert "10% of the cells of costs hold something that is not a number" in said
    assert "66% of the cells of result hold something that is not a number" in said


def test_a_column_that_says_the_same_everywhere_is_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,town\n" + "\n".join(f"{30 + i},x" for i in range(30)))
    said = str(look_at(path, Schema({"age": Numeric(0, 99), "town": Categorical(["x", "y"])})))
    assert "town says the same in every row" in said
    assert "age says" not in said


def test_a_date_that_could_be_read_in_two_ways_is_read_in_the_commoner_one(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("began\n" + "\n".join(["3/4/2025", "12/31/2024", "1/30/2025"] * 9))
    assert 'format = "%m/%d/%Y"' in draft_schema(str(path))


def test_words_for_nothing_are_added_to_the_usual_ones_and_a_listed_value_is_a_value(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,loan,country\n40,none,NA\n-999,car,FR\nNA,-,-\n")
    schema = Schema(
        {"age": Numeric(0, 99), "loan": Categorical(["none", "car"], missing=True),
         "country": Categorical(["FR", "NA"], missing=True)},
        file=FileFormat(missing=("-999", "NA")),
    )  # fmt: skip
    frame = read_table(path, schema)
    assert frame["age"].isna().tolist() == [False, True, True]
    assert frame["loan"].tolist() == ["none", "car", None]
    assert frame["country"].tolist() == ["NA", "FR", None]
    assert Schema.from_json(schema.to_json()).file.missing == ("-999",)


def test_a_look_says_what_to_write_for_other_days_and_for_codes_of_nothing(tmp_path):
    path = tmp_path / "a.csv"
    rows = ["2024-03-18,40,x", "18.03.2024,-999,x", "2024-03-18,200,z"] * 10
    path.write_text("day,age,town\n" + "\n".join(rows))
    schema = Schema({"day": Date("2024-01-01", "2024-12-31"), "age": Numeric(0, 99),
                     "town": Categorical(["x", "y"])})  # fmt: skip
    said = str(look_at(path, schema))
    assert "33% of the cells of day cannot be read as a day" in said
    assert '[file] missing = ["-999"]' in said
    assert "67% of the cells of age lie outside its range" in said
    assert "33% of the cells of town are not in its list" in said
