"""Ten realistic mistakes per kind of user, and the message that each gets.

A message says what is wrong and what to do, shows no cell of a table and never advises to fit
an imputer on the records.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import noisewise as nw
from noisewise import ecdf
from noisewise.cli import app
from noisewise.datasets import Categorical, Numeric, Schema
from noisewise.estimators import PrivateClassifier, PrivateRegressor
from noisewise.privacy import Ledger

SECRET = 73912.25  # a cell that no message may show

SCHEMA = """
noisewise_schema = 1
source = "a form"
[target]
name = "paid"
kind = "yes/no"
[columns]
age = { kind = "number", range = [18, 90] }
job = { kind = "category", values = ["clerk", "smith"] }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, 400), "job": rng.choice(["clerk", "smith"], 400)}
    )
    frame["paid"] = np.where(frame["age"] > 50, "yes", "no")
    frame["salary"] = SECRET
    frame.to_csv(place / "people.csv", index=False)
    frame.assign(paid="no").to_csv(place / "nobody.csv", index=False)
    frame.assign(age=SECRET, job="Alice").to_csv(place / "units.csv", index=False)
    frame.rename(columns={"age": "Age"}).to_csv(place / "renamed.csv", index=False)
    (place / "people.toml").write_text(SCHEMA)
    (place / "waiting.toml").write_text(SCHEMA.replace("[18, 90]", '"?"'))
    (place / "kinds.toml").write_text(SCHEMA.replace('"number"', '"float"'))
    (place / "no_target.toml").write_text(
        SCHEMA.split("[target]")[0] + SCHEMA[SCHEMA.index("[col") :]
    )
    scores = pd.DataFrame({"y": rng.integers(0, 2, 300), "p": rng.random(300)})
    scores["logit"] = np.log(scores.p / (1 - scores.p)) * 8
    scores["word"] = np.where(scores.y == 1, "sick", "well")
    scores["gap"] = scores.p.where(scores.index != 5)
    scores["number"] = 100 * scores.p
    scores.to_csv(place / "scores.csv", index=False)
    Ledger.create(place / "small.ledger", epsilon=0.01, delta=1e-6).close()
    (place / "notes.txt").write_text("hello")
    return place


def told(*arguments):
    """Run a command that must fail; return what the user reads."""
    found = CliRunner().invoke(app, [str(part) for part in arguments])
    assert found.exit_code not in (0, None), found.output
    text = f"{found.output} {found.exception}"
    return " ".join(text.replace("│", " ").split())


TABLE_COMMAND = {
    "no schema": (["train", "people.csv", "--epsilon", 1], "noisewise schema draft"),
    "misspelt file": (["train", "poeple.csv", "--epsilon", 1], "no file at"),
    "misspelt dataset": (["train", "adlut", "--epsilon", 1], "did you mean 'adult'"),
    "schema not finished": (
        ["train", "people.csv", "--schema", "waiting.toml", "--epsilon", 1], "range waits for you"),
    "kind that is none": (
        ["train", "people.csv", "--schema", "kinds.toml", "--epsilon", 1], "kind 'float' is not"),
    "no target": (
        ["train", "people.csv", "--schema", "no_target.toml", "--epsilon", 1],
        "names no target"),
    "renamed column": (
        ["train", "renamed.csv", "--schema", "people.toml", "--epsilon", 1],
        "did you mean 'Age' for 'age'"),
    "one class": (
        ["train", "nobody.csv", "--schema", "people.toml", "--epsilon", 1], "only 'no'"),
    "another unit": (
        ["train", "units.csv", "--schema", "people.toml", "--epsilon", 1], "another unit"),
    "negative epsilon": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", -1], "epsilon must be"),
    "gradients misspelt": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--gradients", "cliped"],
        "gradients must be"),
    "ledger without a folder for the model": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--ledger", "x.ledger"],
        "need --out"),
    "resume of nothing": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--out", "new",
         "--resume"], "no stopped run"),
    "budget is spent": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--out", "never",
         "--ledger", "small.ledger", "--delta", 1e-6], "does not fit the budget"),
}  # fmt: skip

EVALUATION_COMMAND = {
    "no such file": (["gone.csv", "--label", "y", "--score", "p"], "no file at"),
    "no such label": (["scores.csv", "--label", "Y", "--score", "p"], "--label 'Y' is not a"),
    "no such score": (["scores.csv", "--label", "y", "--score", "q"], "--score 'q' is not a"),
    "words as labels": (["scores.csv", "--label", "word", "--score", "p"], "--pos-label"),
    "wrong positive label": (
        ["scores.csv", "--label", "word", "--score", "p", "--pos-label", "Sick"], "no record has"),
    "positive label is no number": (
        ["scores.csv", "--label", "y", "--score", "p", "--pos-label", "yes"], "not a number"),
    "logits under bounds of probabilities": (
        ["scores.csv", "--label", "y", "--score", "logit"], "--lower"),
    "missing scores": (["scores.csv", "--label", "y", "--score", "gap"], "missing values"),
    "text as scores": (["scores.csv", "--label", "y", "--score", "word"], "must hold numbers"),
    "a text file": (["notes.txt", "--label", "y", "--score", "p"], "only .csv"),
    "regression without a range": (
        ["scores.csv", "--label", "number", "--score", "number", "--regression"], "--lower"),
    "budget is spent": (
        ["scores.csv", "--label", "y", "--score", "p", "--ledger", "small.ledger"], "small.ledger"),
    "report into nowhere": (
        ["scores.csv", "--label", "y", "--score", "p", "--report", "no/where/x.html"], "no folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE_COMMAND)
def test_whoever_trains_with_the_command_is_told(case, folder, monkeypatch):
    arguments, said = TABLE_COMMAND[case]
    monkeypatch.chdir(folder)
    text = told(*arguments)
    assert said in text
    assert str(SECRET) not in text
    assert "Alice" not in text
    assert not (folder / "never" / "estimator.json").exists()


@pytest.mark.parametrize("case", EVALUATION_COMMAND)
def test_whoever_evaluates_with_the_command_is_told(case, folder, monkeypatch):
    arguments, said = EVALUATION_COMMAND[case]
    monkeypatch.chdir(folder)
    text = told("evaluate", *arguments, "--epsilon", 1)
    assert said in text
    assert "impute" not in text


X = pd.DataFrame({"age": np.linspace(18, 90, 200), "job": ["clerk", "smith"] * 100})
Y = np.where(X["age"] > 50, "yes", "no")
FORM = Schema({"age": Numeric(18, 90), "job": Categorical(["clerk", "smith"])}, target="paid",
              classes=["no", "yes"], source="a form")  # fmt: skip
NUMBERS = np.random.default_rng(0).uniform(-1, 1, (200, 3))


def model(**changes):
    return PrivateClassifier(**{"schema": FORM, "steps": 2, **changes})


IN_PYTHON = {
    "missing values": (
        lambda: PrivateClassifier().fit(np.where(NUMBERS > 0.9, np.nan, NUMBERS), Y), "schema"),
    "text without a schema": (lambda: PrivateClassifier().fit(X, Y), "Declare such columns"),
    "an array with a schema": (lambda: model().fit(NUMBERS, Y), "DataFrame"),
    "natural units": (lambda: PrivateClassifier().fit(1e4 * NUMBERS, Y), "natural units"),
    "a label that is not public": (
        lambda: model().fit(X, np.where(Y == "no", "No", "yes")), "not among the public classes"),
    "one class": (lambda: model().fit(X, np.full(200, "no")), "only 'no'"),
    "no schema file": (lambda: model(schema="gone.toml").fit(X, Y), "schema draft"),
    "a schema from the data": (
        lambda: model(schema=Schema.from_data(X.assign(paid=Y), "paid", study=True)).fit(X, Y),
        "no epsilon can be given"),
    "negative epsilon": (lambda: model(epsilon=-1).fit(X, Y), "epsilon must be"),
    "delta of one": (lambda: model(delta=1.0).fit(X, Y), "delta must"),
    "predict before fit": (lambda: model().predict(X), "not fitted"),
    "a column is gone": (lambda: model().fit(X.drop(columns="age"), Y), "lacks 1 column"),
    "regression without a range": (
        lambda: PrivateRegressor(steps=2).fit(NUMBERS, 1e3 * NUMBERS[:, 0]), "target_range="),
    "share of calibration": (lambda: model(calibration_share=2).fit(X, Y), "calibration_share"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_PYTHON)
def test_whoever_fits_in_python_is_told(case):
    action, said = IN_PYTHON[case]
    with pytest.raises((ValueError, TypeError, nw.NoisewiseError)) as error:
        action()
    assert said in str(error.value)


def plan(**changes):
    settings = {"epsilon": 1.0, "delta": 1e-5, "epochs": 1, "batch_size": 20}
    return nw.Plan(**{**settings, **changes})


DATA = (torch.randn(100, 4), torch.randint(0, 2, (100,)))


def private(net, **changes):
    return nw.make_private(
        net, torch.optim.SGD(net.parameters(), 0.1), torch.nn.CrossEntropyLoss(), DATA,
        plan(**changes),
    )  # fmt: skip


def step(net):
    run = private(net)
    run.step(*next(iter(run.loader)))


WITH_TORCH = {
    "batch norm": (
        lambda: step(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4),
                                         torch.nn.Linear(4, 2))), "BatchNorm"),
    "both epsilon and noise": (lambda: plan(noise_multiplier=1.0), "exactly one of epsilon"),
    "neither steps nor epochs": (lambda: plan(epochs=None), "exactly one of epochs and steps"),
    "shuffled batches": (lambda: plan(sampling="shuffle"), "sampling='shuffle' is refused"),
    "no batch size": (lambda: plan(batch_size=None), "batch_size=1024"),
    "batch larger than the data": (
        lambda: private(torch.nn.Linear(4, 2), batch_size=500), "cannot exceed"),
    "delta of zero": (lambda: plan(delta=0.0), "delta"),
    "gradients as a word": (lambda: plan(gradients="clipped"), "noisewise.Clipped(1.0)"),
    "a paper's claim": (
        lambda: private(torch.nn.Linear(4, 2), gradients=nw.BatchMaxScaled(study=True))
        .statement(), "no epsilon"),
    "bounds for a model without bounds": (
        lambda: step_with(nw.Propagated()), "noisewise.nn.BoundedInput"),
    "a negative clip": (lambda: nw.Clipped(-1.0), "clip"),
}  # fmt: skip


def step_with(gradients):
    run = private(torch.nn.Linear(4, 2), gradients=gradients)
    run.step(*next(iter(run.loader)))


@pytest.mark.parametrize("case", WITH_TORCH)
def test_whoever_trains_a_network_is_told(case):
    action, said = WITH_TORCH[case]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        action()
    assert said in str(error.value)


P = np.random.default_rng(1).random(50)
CURVES = {
    "no bounds": (lambda: ecdf.dp_ecdf(P, epsilon=1.0), "bounds"),
    "bounds the wrong way round": (lambda: ecdf.dp_ecdf(P, bounds=(1, 0), epsilon=1.0), "bounds"),
    "missing values": (
        lambda: ecdf.dp_ecdf([0.1, np.nan], bounds=(0, 1), epsilon=1.0), "public constant"),
    "missing labels": (
        lambda: ecdf.dp_roc_curve([0.0, np.nan], [0.1, 0.2], epsilon=1.0), "leave"),
    "words as labels": (
        lambda: ecdf.dp_roc_curve(["a", "b"], [0.1, 0.2], epsilon=1.0), "pos_label="),
    "three classes": (
        lambda: ecdf.dp_roc_curve([0, 1, 2], [0.1, 0.2, 0.3], epsilon=1.0), "pos_label"),
    "lengths": (lambda: ecdf.dp_roc_curve([0, 1], [0.1], epsilon=1.0), "one entry for each"),
    "no epsilon": (lambda: ecdf.dp_roc_curve([0, 1], [0.1, 0.2], epsilon=0), "epsilon"),
    "a relation that is none": (
        lambda: ecdf.dp_ecdf(P, bounds=(0, 1), epsilon=1.0, relation="bounded"), "relation"),
    "an older word": (
        lambda: ecdf.dp_ecdf(P, bounds=(0, 1), epsilon=1.0, neighbors="replace-one"), "relation"),
    "range of a regression": (
        lambda: ecdf.private_regression_errors(P, P, bounds=(1, 1), epsilon=1.0), "low < high"),
}  # fmt: skip


@pytest.mark.parametrize("case", CURVES)
def test_whoever_publishes_curves_is_told(case):
    action, said = CURVES[case]
    with pytest.raises((ValueError, TypeError)) as error:
        action()
    assert said in str(error.value)
    assert "impute" not in str(error.value)


PUBLISHING = {
    "no such statement": (["verify", "gone.json"], "no file at"),
    "another JSON file": (["verify", "other.json"], "not a noisewise privacy statement"),
    "half of a statement": (["verify", "cut.json"], "not JSON"),
    "a smaller epsilon typed in": (["verify", "forged.json"], "the digest does not match"),
    "a signature without a signer": (
        ["verify", "statement.json", "--signature", "x.sig"], "belong together"),
    "a ledger twice": (["ledger", "create", "small.ledger", "--epsilon", 2], "exists"),
    "a negative budget": (["ledger", "create", "new.ledger", "--epsilon", -1], "epsilon must be"),
    "a delta of two": (
        ["ledger", "create", "new.ledger", "--epsilon", 1, "--delta", 2], "delta must lie"),
    "a relation that is none": (
        ["ledger", "create", "new.ledger", "--relation", "bounded"], "relation must be one of"),
    "a ledger into nowhere": (["ledger", "create", "no/where.ledger"], "no folder"),
    "no such ledger": (["ledger", "show", "gone.ledger"], "no ledger at"),
    "a statement as a ledger": (["ledger", "show", "statement.json"], "not a noisewise ledger"),
    "units in a ledger of records": (
        ["train", "people.csv", "--schema", "people.toml", "--unit", "salary", "--epsilon", 1,
         "--delta", 1e-6, "--out", "never", "--ledger", "small.ledger"], "create FILE --unit"),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHING)
def test_whoever_answers_for_what_is_published_is_told(case, folder, monkeypatch):
    arguments, said = PUBLISHING[case]
    monkeypatch.chdir(folder)
    text = ecdf.dp_ecdf(P, bounds=(0, 1), epsilon=1.0).statement().to_json()
    (folder / "statement.json").write_text(text)
    (folder / "cut.json").write_text(text[: len(text) // 2])
    forged = {**json.loads(text), "epsilon": 0.1}
    (folder / "forged.json").write_text(json.dumps(forged))
    (folder / "other.json").write_text('{"epsilon": 1}')
    assert said in told(*arguments)
    assert not (folder / "new.ledger").exists()


@pytest.mark.parametrize(
    "cases", [TABLE_COMMAND, EVALUATION_COMMAND, IN_PYTHON, WITH_TORCH, CURVES, PUBLISHING]
)
def test_there_are_ten_of_each_kind(cases):
    assert len(cases) >= 10
