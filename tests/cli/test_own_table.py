"""A messy table that nobody prepared: model, statement, report and a second analysis.

Semicolons, decimal commas, a byte order mark, blanks in names, an identifier that repeats, dates,
missing values in several spellings, mixed words for yes, seven percent of positives.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.datasets import Schema, read_table
from noisewise.estimators import PrivateClassifier, load_estimator
from noisewise.privacy import Ledger, Statement, verify

ROWS = 3000


def write_table(path, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, ROWS)
    pressure = rng.normal(125, 18, ROWS)
    risk = 0.09 * (age - 60) + 0.05 * (pressure - 125) - 3.2
    sick = rng.logistic(size=ROWS) < risk

    def spelt(value, words):
        return [words[1][rng.integers(4)] if one else words[0][rng.integers(4)] for one in value]

    words = (["no", "No", "N", " no"], ["yes", "Yes", "Y", "YES "])
    frame = pd.DataFrame(
        {
            "patient_id": rng.integers(10**6, 10**6 + ROWS // 2, ROWS),
            " age": np.where(rng.random(ROWS) < 0.05, "n/a", age.astype(str)),
            "blood pressure ": [f"{v:.1f}".replace(".", ",") for v in pressure],
            "admitted": (
                pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1500, ROWS), "D")
            ).strftime("%d.%m.%Y"),
            "smoker": spelt(rng.random(ROWS) < 0.3, words),
            "ward": rng.choice(["A", "B", "c", "", "?"], ROWS),
            "remarks": [f"seen by doctor {i} on a long and rainy day" for i in range(ROWS)],
            "outcome": spelt(sick, words),
        }
    )
    frame.loc[::97, "outcome"] = ""
    frame.loc[5, "blood pressure "] = "a lot"
    path.write_bytes(b"\xef\xbb\xbf" + frame.to_csv(index=False, sep=";").encode())
    return frame


ANSWERS = {
    '"age" = { kind = "number", range = "?"': '"age" = { kind = "number", range = [0, 120]',
    'pressure" = { kind = "number", range = "?"': 'pressure" = { kind = "number", range = [9, 250]',
    'kind = "date", range = "?"': 'kind = "date", range = [2010-01-01, 2030-12-31]',
    'values = "?"': 'values = ["a", "b", "c"]',
    'source = "?"': 'source = "admission form"',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The table, and the drafted schema as a person finished it."""
    place = tmp_path_factory.mktemp("own")
    write_table(place / "patients.csv")
    done = run(place, "schema", "draft", "patients.csv", "--target", "outcome")
    assert done.exit_code == 0, done.output
    text = (place / "patients.toml").read_text()
    for waiting, answer in ANSWERS.items():
        assert waiting in text, text
        text = text.replace(waiting, answer)
    (place / "patients.toml").write_text(text)
    return place


def run(place, *arguments):
    before = os.getcwd()
    os.chdir(place)
    try:
        return CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    finally:
        os.chdir(before)


def test_from_a_csv_to_a_model_and_a_second_analysis_with_the_command_alone(folder):
    checked = run(folder, "schema", "check", "patients.toml", "patients.csv")
    assert checked.exit_code == 0, checked.output
    assert "rows are not people" in checked.output
    assert "without a readable target" in checked.output
    run(folder, "ledger", "create", "hospital.ledger", "--epsilon", 4, "--delta", "1e-6")
    trained = run(
        folder, "train", "patients.csv", "--schema", "patients.toml", "--epsilon", 2,
        "--delta", "1e-6", "--evaluate", 0.25, "--ledger", "hospital.ledger", "--out", "model",
        "--report", "run.html", "--steps", 40, "--threshold", 0.1,
    )  # fmt: skip
    assert trained.exit_code == 0, trained.output
    assert "NOT private" in trained.output
    for word in ("AUC", "base rate", "recall"):
        assert word in trained.output
    statement = Statement.from_json((folder / "model" / "statement.json").read_text())
    assert statement.epsilon <= 2.0
    assert verify(statement).ok
    kinds = [event.kind for event in statement.history]
    assert len(kinds) >= 3  # training, counts for calibration, the evaluation
    measured = json.loads((folder / "model" / "evaluation.json").read_text())
    assert {"auc", "base_rate", "recall"} <= measured.keys()
    assert measured["threshold"] == 0.1
    page = (folder / "run.html").read_text()
    assert "Private measures: may be published" in page
    assert "evaluation.json too: the same epsilon covers it" in page
    # The answer on top is the one that may be published.
    assert f"AUC {measured['auc']:.3f}" in page or "lost in the noise" in page
    # The released curve with its slider, or, of some forty positives, that noise hides them.
    assert "Private ROC curve, area" in page or "The noise hides one of the two classes" in page
    with Ledger.open(folder / "hospital.ledger") as ledger:
        first = ledger.spent()
    assert first == pytest.approx(statement.epsilon, rel=1e-3)
    second = run(
        folder, "evaluate", "patients.csv", "--model", "model", "--epsilon", 0.5,
        "--ledger", "hospital.ledger", "--json",
    )  # fmt: skip
    assert second.exit_code == 0, second.output
    # Of some forty positives nothing may be left above the noise: then it is null, not NaN.
    auc = json.loads(second.stdout, parse_constant=pytest.fail)["auc"]
    assert auc is None or 0.0 <= auc <= 1.0
    shown = run(folder, "ledger", "show", "hospital.ledger", "--json")
    found = json.loads(shown.stdout)
    assert first < found["spent"] <= 4.0
    assert found["charges"][0]["releases"] == 40
    assert found["charges"][0]["what"].startswith("train patients.csv")
    table = run(folder, "ledger", "show", "hospital.ledger")
    assert max(map(len, table.output.splitlines())) <= 80
    refused = CliRunner().invoke(
        app, ["evaluate", str(folder / "patients.csv"), "--model", str(folder / "model"),
              "--epsilon", "9", "--ledger", str(folder / "hospital.ledger")],
    )  # fmt: skip
    assert refused.exit_code != 0
    assert "hospital.ledger" in str(refused.exception)


def test_the_same_in_python(folder, tmp_path):
    schema = Schema.read(folder / "patients.toml")
    frame = read_table(folder / "patients.csv", schema)
    x, y = frame.drop(columns="outcome"), frame["outcome"]
    book = tmp_path / "python.ledger"
    model = PrivateClassifier(2.0, delta=1e-6, schema=str(folder / "patients.toml"), ledger=book,
                              steps=40)  # fmt: skip
    with pytest.warns(UserWarning, match="rows are not people"):
        model.fit(x, y)
    assert set(model.classes_) == {"no", "yes"}
    assert verify(model.statement_).ok
    from noisewise.ecdf import private_evaluation

    score = model.predict_proba(x)[:, 1]
    found = private_evaluation(y == "yes", score, epsilon=0.5, ledger=book)
    assert 0.02 < found.base_rate < 0.25
    with Ledger.open(book) as ledger:
        assert ledger.spent(delta=1e-6) > model.statement_.epsilon


def test_a_model_of_whole_patients_is_measured_within_its_budget_and_again_later(folder):
    run(folder, "ledger", "create", "units.ledger", "--epsilon", 4, "--delta", "1e-6",
        "--unit", "one patient")  # fmt: skip
    trained = run(
        folder, "train", "patients.csv", "--schema", "patients.toml", "--unit", "patient_id",
        "--epsilon", 2, "--delta", "1e-6", "--evaluate", 0.25, "--ledger", "units.ledger",
        "--out", "of units", "--steps", 20, "--json",
    )  # fmt: skip
    content = json.loads(trained.stdout)
    statement = Statement.from_json((folder / "of units" / "statement.json").read_text())
    assert content["statement"]["unit"] == statement.unit == "one patient"
    assert statement.epsilon <= 2.0
    assert verify(statement).ok
    assert "base_rate" in content["evaluation"]
    again = run(
        folder, "evaluate", "patients.csv", "--model", "of units", "--epsilon", 0.5,
        "--ledger", "units.ledger", "--json",
    )  # fmt: skip
    assert json.loads(again.stdout)["statement"]["unit"] == "one patient"
    charges = json.loads(run(folder, "ledger", "show", "units.ledger", "--json").stdout)["charges"]
    assert any(row["what"].startswith("evaluate patients.csv: ") for row in charges)
    with Ledger.open(folder / "units.ledger") as ledger:
        assert statement.epsilon < ledger.spent() <= 2.51
    model = PrivateClassifier(
        0.5, delta=1e-6, schema=Schema.read(folder / "patients.toml"), steps=5,
        ledger=folder / "units.ledger", preflight=False,
    )  # fmt: skip
    frame = read_table(folder / "patients.csv", model._schema)
    model.fit(frame.drop(columns="outcome"), frame["outcome"], units=frame["patient_id"])
    assert model.statement_.unit == "one patient"


@pytest.mark.parametrize(("kind", "more"), [("number", "range = [50, 250]"),
                                            ("category", 'values = ["a", "b", "c"]')])  # fmt: skip
def test_numbers_and_several_classes_of_whole_patients_are_measured(folder, kind, more):
    column = {"number": "blood pressure", "category": "ward"}[kind]
    text = (folder / "patients.toml").read_text()
    target = f'[target]\nname = "{column}"\nkind = "{kind}"\n{more}\n\n'
    text = re.sub(r"\[target\][\s\S]*?\n\n", target, text, count=1)
    text = re.sub(rf'"{column}" = .*\n', '"outcome" = { kind = "yes/no" }\n', text)
    text = text.replace("[target]", 'unit = "patient_id"\n\n[target]', 1)
    (folder / f"{kind}.toml").write_text(text)
    done = run(
        folder, "train", "patients.csv", "--schema", f"{kind}.toml", "--epsilon", 2, "--steps", 5,
        "--evaluate", 0.3, "--out", f"{kind} of units", "--json",
    )  # fmt: skip
    content = json.loads(done.stdout)
    assert content["statement"]["epsilon"] <= 2
    assert content["statement"]["unit"].startswith("one patient_id")
    again = run(folder, "evaluate", "patients.csv", "--model", f"{kind} of units", "--epsilon", 1)
    assert again.exit_code == 0, again.output
    assert ("mean absolute error" if kind == "number" else "recall of") in again.output


def test_a_ledger_of_records_refuses_units_and_says_which_to_begin(folder):
    run(folder, "ledger", "create", "rows.ledger", "--epsilon", 4, "--delta", "1e-6")
    refused = CliRunner().invoke(
        app, ["train", str(folder / "patients.csv"), "--schema", str(folder / "patients.toml"),
              "--unit", "patient_id", "--epsilon", "1", "--delta", "1e-6", "--ledger",
              str(folder / "rows.ledger"), "--out", str(folder / "refused")],
    )  # fmt: skip
    assert refused.exit_code != 0
    assert "noisewise ledger create FILE --unit" in str(refused.exception)


def test_json_is_all_that_is_on_standard_output(folder, tmp_path):
    done = run(
        folder, "train", "patients.csv", "--schema", "patients.toml", "--epsilon", 1, "--steps", 5,
        "--json",
    )  # fmt: skip
    content = json.loads(done.stdout)
    assert content["statement"]["epsilon"] <= 1
    assert "AUC" in content["not_private"]


@pytest.mark.parametrize("word", ["clipped", "layerwise", "automatic", "factored", "propagated",
                                  "input-scaled"])  # fmt: skip
def test_every_word_for_gradients_trains(folder, word):
    done = run(
        folder, "train", "patients.csv", "--schema", "patients.toml", "--epsilon", 1, "--steps", 3,
        "--gradients", word, "--json", "--no-preflight",
    )  # fmt: skip
    assert json.loads(done.stdout)["statement"]["epsilon"] <= 1


def test_a_regression_is_measured_by_r2_and_mae_within_the_budget(folder):
    text = (folder / "patients.toml").read_text()
    text = re.sub(r'\[target\][\s\S]*?\n\n', '[target]\nname = "blood pressure"\nkind = "number"\n'
                  "range = [50, 250]\n\n", text, count=1)  # fmt: skip
    text = re.sub(r'"blood pressure" = .*\n', '"outcome" = { kind = "yes/no" }\n', text)
    (folder / "pressure.toml").write_text(text)
    done = run(
        folder, "train", "patients.csv", "--schema", "pressure.toml", "--epsilon", 2, "--steps", 5,
        "--evaluate", 0.3, "--out", "pressure", "--json",
    )  # fmt: skip
    content = json.loads(done.stdout)
    assert content["statement"]["epsilon"] <= 2
    assert {"r2", "mean_absolute_error"} <= content["evaluation"].keys()
    assert {"R2", "MAE"} <= content["not_private"].keys()
    again = run(folder, "evaluate", "patients.csv", "--model", "pressure", "--epsilon", 1, "--json",
                "--report", "pressure.html")  # fmt: skip
    page = (folder / "pressure.html").read_text()
    assert "mean absolute error" in page
    assert "R²" in page
    assert json.loads(again.stdout)["mean_absolute_error"] < 100


def test_a_model_that_hardly_ever_says_yes_is_told_from_one_that_does():
    from noisewise.cli.evaluation_report import says_no

    assert "--threshold 0.08" in says_no(base_rate=0.08, recall=0.01, threshold=0.5)
    assert says_no(base_rate=0.08, recall=0.6, threshold=0.5) == ""
    assert says_no(base_rate=0.4, recall=0.01, threshold=0.5) == ""
    assert says_no(base_rate=0.08, recall=0.01, threshold=0.1) == ""
    assert says_no(base_rate=float("nan"), recall=float("nan"), threshold=0.5) == ""


def test_where_a_row_goes_depends_on_that_row_alone():
    from noisewise.cli.training_job import split

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": rng.integers(0, 200, 1000), "x": rng.random(1000)})
    _, test = split(frame, 0.3, 0, None)
    _, fewer = split(frame.drop(index=range(0, 1000, 7)), 0.3, 0, None)
    assert 200 < len(test) < 400
    assert set(fewer["x"]) <= set(test["x"])
    train, test = split(frame, 0.3, 0, "who")
    assert not set(train["who"]) & set(test["who"])


def stopped_run(folder, out, sign):
    """Start training in a process of its own and stop it after the first checkpoint."""
    command = [
        sys.executable, "-m", "noisewise", "train", "patients.csv", "--schema", "patients.toml",
        "--epsilon", "1", "--delta", "1e-6", "--steps", "400", "--out", out, "--ledger", "k.ledger",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True,
        # A shell that runs tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    ledger = folder / "k.ledger"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if ledger.exists() and ledger.read_bytes().count(b"\n") > 15:
            break
        time.sleep(0.05)
    process.send_signal(sign)
    _, errors = process.communicate(timeout=100)
    return process.returncode, errors, command


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on_and_pays_every_step_once(folder, sign):
    out = f"stopped-{int(sign)}"
    (folder / "k.ledger").unlink(missing_ok=True)
    (folder / "k.ledger.seen").unlink(missing_ok=True)
    code, errors, command = stopped_run(folder, out, sign)
    if sign == signal.SIGINT:
        assert code == 130, errors
        resumed = errors.split("noisewise ")[-1].split()
        assert resumed == [*command[3:], "--resume"]  # to be copied as it stands
        assert "stay charged" in errors
    else:
        assert code == -signal.SIGKILL
    with Ledger.open(folder / "k.ledger") as ledger:
        taken = len(ledger.charges)
    assert 15 <= taken < 400
    assert "--resume" in subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr
    done = subprocess.run([*command, "--resume"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    statement = Statement.from_json((folder / out / "statement.json").read_text())
    assert verify(statement).ok
    assert statement.epsilon <= 1.0
    with Ledger.open(folder / "k.ledger") as ledger:
        steps = [charge for charge in ledger.charges if ": step " in charge.note]
        assert len(steps) == 400
        assert ledger.spent() == pytest.approx(statement.epsilon, rel=1e-3)
    assert load_estimator(folder / out).n_iter_ == 400


@pytest.mark.parametrize(
    "moment",
    [
        "noisewise.estimators.save_estimator",
        *(
            pytest.param(f"noisewise.cli.{name}", marks=pytest.mark.slow)
            for name in (
                "training_quality.private_measures",
                "training_quality.summary_of",
                "training_run.Kept.finished",
            )
        ),
    ],
)
def test_a_death_after_the_last_step_pays_for_no_measurement_again(folder, monkeypatch, moment):
    """Between any two of: calibration, evaluation, saving, cleaning up."""
    out = f"dead-{moment.split('.')[-1]}"
    book = folder / f"{out}.ledger"
    arguments = [
        "train", "patients.csv", "--schema", "patients.toml", "--epsilon", "1", "--delta", "1e-6",
        "--steps", "12", "--evaluate", "0.3", "--out", out, "--ledger", str(book),
    ]  # fmt: skip

    class PowerCutError(BaseException):
        pass

    def dies(*_):
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(moment, dies)
        with pytest.raises(PowerCutError):
            run(folder, *arguments)
    with Ledger.open(book) as ledger:
        before = ledger.charges
    if moment.endswith("finished"):  # the model is whole already
        with pytest.raises(ValueError, match="holds a finished model"):
            run(folder, *arguments, "--resume")
    else:
        done = run(folder, *arguments, "--resume", "--report", folder / f"{out}.html")
        assert done.exit_code == 0
        assert "stopped and resumed" in (folder / f"{out}.html").read_text()
        assert not list((folder / out).glob("*.sealed"))
    with Ledger.open(book) as ledger:
        assert len(ledger.charges) == 12 + 3
        assert ledger.charges[: len(before)] == before
        assert all(charge.note.startswith("train patients.csv ") for charge in ledger.charges)
        statement = Statement.from_json((folder / out / "statement.json").read_text())
        assert ledger.spent() == pytest.approx(statement.epsilon, rel=1e-3)
        assert statement.epsilon <= 1.0
    assert load_estimator(folder / out).n_iter_ == 12


def test_other_settings_do_not_resume_a_run(folder, monkeypatch):
    from noisewise.cli.training_run import begin

    begin(folder / "begun", None, False, "train x", {"epsilon": 1.0})
    kept = begin(folder / "begun", None, False, "train x", {"epsilon": 1.0})  # nothing was charged
    kept.checkpoint.write_bytes(b"")
    with pytest.raises(ValueError, match=r"other settings \(epsilon"):
        begin(folder / "begun", None, True, "train x", {"epsilon": 2.0})
    with pytest.raises(ValueError, match="--resume"):
        begin(folder / "begun", None, False, "train x", {"epsilon": 1.0})
    assert begin(folder / "begun", None, True, "train x", {"epsilon": 1.0}).name == kept.name


def test_ctrl_c_stops_training_but_waits_once_all_steps_are_paid():
    from noisewise.cli.training_run import finishing

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), finishing():
            os.kill(os.getpid(), signal.SIGINT)
        with finishing() as watch:
            watch.on_end(None)
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
