"""The estimators and the command line protect patients, not visits, if they are told who is who."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.datasets import Numeric, Schema
from noisewise.datasets.identifiers import holds_codes_again, looks_like_unit
from noisewise.estimators import PrivateClassifier, PrivateRegressor
from noisewise.privacy import Ledger, PoissonGaussian, verify

UNIT = "one unit (all rows with one identifier)"


def visits(patients=150, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"P-{i:05d}" for i in range(patients)], rng.integers(1, 6, patients))
    x = rng.uniform(-1, 1, (len(ids), 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(patient_nbr=ids)
    return frame, np.where(x[:, 0] > 0, "yes", "no")


def schema(unit=None):
    columns = dict.fromkeys(("a", "b", "c"), Numeric(-1, 1))
    return Schema(columns, target="y", classes=("no", "yes"), unit=unit)


def classifier(**changes):
    options = {"epsilon": 2.0, "steps": 6, "random_state": 0, "hidden_layer_sizes": (), **changes}
    return PrivateClassifier(classes=["no", "yes"], **options)


def test_units_of_a_fit_and_of_a_schema_are_the_same():
    frame, y = visits()
    given = classifier(schema=schema()).fit(frame, y, units=frame["patient_nbr"])
    named = classifier(schema=schema("patient_nbr")).fit(frame, y)
    for model in (given, named):
        statement = model.statement_
        assert statement.unit == UNIT
        assert statement.epsilon <= 2.0
        assert verify(statement).ok
        assert "The number of units, 150" in str(statement)
        assert "P-0" not in statement.to_json() + repr(model.__dict__)
    np.testing.assert_array_equal(given.weights_[0][0], named.weights_[0][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = classifier(schema=schema()).fit(frame, y)
    assert rows.statement_.unit == "one record"
    assert not np.array_equal(rows.weights_[0][0], given.weights_[0][0])


def test_arrays_lists_and_a_regressor_take_units():
    frame, y = visits()
    x, ids = frame[["a", "b", "c"]].to_numpy(), frame["patient_nbr"].tolist()
    assert classifier().fit(x, y, units=ids).statement_.unit == UNIT
    regressor = PrivateRegressor(target_range=(-1, 1), epsilon=2.0, steps=6, random_state=0)
    found = regressor.fit(x, x[:, 0], units=np.array(ids)).statement_
    assert (found.unit, verify(found).ok) == (UNIT, True)


def test_other_units_draw_other_noise():
    # One seed serves many fits; two that differ in who is who must not share their noise.
    frame, y = visits()
    x = frame[["a", "b", "c"]].to_numpy()
    one = classifier(sample_rate=1.0).fit(x, y, units=list(range(len(x))))
    two = classifier(sample_rate=1.0).fit(x, y, units=[0, 0, *range(2, len(x))])
    moved = np.abs(one.weights_[0][0] - two.weights_[0][0]).max()
    assert moved > 1e-3  # of the size of the noise, not of one record


def test_calibration_counts_a_patient_once():
    frame, y = visits()
    model = classifier(calibration_share=0.3).fit(
        frame[["a", "b", "c"]].to_numpy(), y, units=frame["patient_nbr"]
    )
    assert len(model.statement_.history) == 2
    assert model.statement_.unit == UNIT
    assert model.statement_.epsilon <= 2.0


def test_a_ledger_charges_patients(tmp_path):
    frame, y = visits()
    x = frame[["a", "b", "c"]].to_numpy()
    model = classifier(ledger=tmp_path / "l", calibration_share=0.0)
    model.fit(x, y, units=frame["patient_nbr"])
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.unit == UNIT
        assert isinstance(ledger.history[0], PoissonGaussian)
    with pytest.raises(ValueError, match="one record"):
        classifier(ledger=tmp_path / "l").fit(x, y)


def test_missing_identifiers_and_wrong_lengths_stop_before_anything_is_charged(tmp_path):
    frame, y = visits()
    x = frame[["a", "b", "c"]].to_numpy()
    for wrong in ([None, *frame["patient_nbr"][1:]], ["P-1"]):
        with pytest.raises(ValueError, match="identifier") as caught:
            classifier(ledger=tmp_path / "l").fit(x, y, units=wrong)
        assert "P-" not in str(caught.value)
    assert not (tmp_path / "l").exists()


def test_a_table_with_patients_in_it_says_that_rows_are_not_people():
    frame, y = visits()
    with pytest.warns(UserWarning, match="rows are not people"):
        classifier(schema=schema()).fit(frame, y)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        classifier(schema=schema()).fit(frame, y, units=frame["patient_nbr"])
        classifier(schema=schema("patient_nbr")).fit(frame, y)
    assert not any("rows are not people" in str(w.message) for w in said)
    assert [n for n in ("customer_id", "user", "UserID", "id", "age") if looks_like_unit(n)] == [
        "customer_id",
        "UserID",
    ]


def test_the_command_line_protects_the_unit_of_a_column(tmp_path):
    frame, y = visits()
    frame.assign(y=y).to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.json").write_text(schema().to_json())
    words = ["train", str(tmp_path / "visits.csv"), "--schema", str(tmp_path / "schema.json")]
    words += ["--epsilon", "2", "--steps", "5", "--seed", "1", "--hidden", "none"]
    out = tmp_path / "out"
    found = CliRunner().invoke(app, [*words, "--unit", "patient_nbr", "--out", str(out)])
    assert found.exit_code == 0, found.output
    statement = json.loads((out / "statement.json").read_text())
    assert statement["unit"] == UNIT.replace("one unit", "one patient_nbr")
    assert "P-0" not in found.output + json.dumps(statement)
    for path in out.rglob("*"):
        assert path.is_dir() or b"P-000" not in path.read_bytes()
    wrong = CliRunner().invoke(app, [*words, "--unit", "patient"])
    assert wrong.exit_code != 0


def test_a_schema_names_its_unit():
    named = schema("patient_nbr")
    assert Schema.from_json(named.to_json()) == named
    assert named.units(visits()[0]).iloc[0] == "P-00000"
    assert schema().units(visits()[0]) is None


def test_codes_that_come_again_say_that_rows_are_not_people_whatever_their_name():
    frame, y = visits()
    renamed = frame.rename(columns={"patient_nbr": "reference"})
    with pytest.warns(UserWarning, match=r"'reference' holds codes that come again.*not\s+people"):
        classifier(schema=schema()).fit(renamed, y)


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([100_000 + row // 3 for row in range(60)], True),
        ([float(100_000 + row // 3) for row in range(60)], True),
        ([f"P-{1000 + row // 3}" for row in range(60)], True),
        (list(range(1000, 1060)), False),  # one row each
        ([f"2020-01-{1 + row % 28:02}" for row in range(60)], False),
        (["north", "south", "west"] * 20, False),
        ([0.125 * row for row in range(30)] * 2, False),
        ([100, 200] * 30, False),  # too few to be people
    ],
)
def test_which_values_look_like_numbers_of_people(values, codes):
    assert holds_codes_again(pd.Series(values)) == codes


# ------------------------------------------------------------------------------------- tuning


def test_settings_are_tuned_on_whole_units(tmp_path):
    frame, y = visits()
    options = {"epsilon": 3.0, "random_state": 0, "hidden_layer_sizes": (), "schema": None}
    options |= {"tune": [{"learning_rate": 0.1}, {"learning_rate": 1.0, "steps": 4}], "steps": 6}
    options["ledger"] = str(tmp_path / "l")
    Ledger.create(tmp_path / "l", delta=1e-6, unit="one patient").close()
    x, ids = frame[["a", "b", "c"]].to_numpy(), frame["patient_nbr"]
    model = PrivateClassifier(classes=["no", "yes"], **options).fit(x, y, units=ids)
    statement = model.statement_
    assert statement.unit == "one patient"
    assert statement.epsilon <= 3.0
    assert verify(statement).ok
    assert "each unit, with all its rows," in str(statement).lower()
    assert "The number of units, 150" in str(statement)
    assert "P-0" not in statement.to_json() + repr(model.__dict__)
    assert model.best_params_ in options["tune"]
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.history == statement.history
    assert set(model.predict(x)) <= {"no", "yes"}


def test_a_seeded_tuned_fit_on_other_units_draws_other_noise():
    frame, y = visits()
    x, ids = frame[["a", "b", "c"]].to_numpy(), frame["patient_nbr"].to_numpy()
    tune = [{"learning_rate": 0.1}]
    first, again, other = (
        classifier(tune=tune, epsilon=3.0).fit(x, y, units=units)
        for units in (ids, ids, np.roll(ids, 7))
    )
    np.testing.assert_array_equal(first.weights_[0][0], again.weights_[0][0])
    assert not np.array_equal(first.weights_[0][0], other.weights_[0][0])
