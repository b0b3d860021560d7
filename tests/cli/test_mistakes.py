"""Ten realistic mistakes per kind of user, and the message that each gets.

A message says what is wrong and what to do, shows no cell of a table and never advises to fit
an imputer on the records.
"""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.utils import parametrizations
from typer.testing import CliRunner

import noisewise as nw
from noisewise import debugging, ecdf, federated
from noisewise.auditing import audit
from noisewise.cli import app
from noisewise.cli.predictions import look_at_contribution
from noisewise.datasets import Categorical, Numeric, Schema
from noisewise.errors import PreflightWarning
from noisewise.estimators import PrivateClassifier, PrivateRegressor, load_estimator
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
    frame.assign(paid=frame["paid"].map({"yes": "gut", "no": "schlecht"})).to_csv(
        place / "german.csv", index=False
    )
    frame.to_csv(place / "semicolons.csv", index=False, sep=";")
    (place / "unit.toml").write_text(SCHEMA.replace("[target]", 'unit = "pid"\n[target]'))
    (place / "twice.toml").write_text(SCHEMA + 'age = { kind = "drop", reason = "x" }\n')
    (place / "waiting.toml").write_text(SCHEMA.replace("[18, 90]", '"?"'))
    (place / "kinds.toml").write_text(SCHEMA.replace('"number"', '"float"'))
    (place / "payed.toml").write_text(SCHEMA.replace('"paid"', '"payed"'))
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
    (place / "people.xlsx").write_bytes(b"PK")
    return place


def told(*arguments):
    """Run a command that must fail; return what the user reads."""
    found = CliRunner().invoke(app, [str(part) for part in arguments])
    assert found.exit_code not in (0, None), found.output
    text = f"{found.output} {found.exception}"
    return " ".join(text.replace("│", " ").split())


TABLE_COMMAND = {
    "no schema": (["train", "people.csv", "--epsilon", 1], "noisewise schema draft"),
    "misspelt file": (["train", "poeple.csv", "--epsilon", 1], "did you mean 'people.csv'"),
    "misspelt dataset": (["train", "adlut", "--epsilon", 1], "did you mean 'adult'"),
    "schema not finished": (
        ["train", "people.csv", "--schema", "waiting.toml", "--epsilon", 1],
        "range still to be filled in"),
    "kind that is none": (
        ["train", "people.csv", "--schema", "kinds.toml", "--epsilon", 1], "kind 'float' is not"),
    "no target": (
        ["train", "people.csv", "--schema", "no_target.toml", "--epsilon", 1],
        "Add to it: [target]"),
    "target misspelt in the schema": (
        ["train", "people.csv", "--schema", "payed.toml", "--epsilon", 1], "did you mean 'paid'"),
    "unit misspelt": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--unit", "jobs"],
        "did you mean 'job'"),
    "a spreadsheet": (
        ["train", "people.xlsx", "--schema", "people.toml", "--epsilon", 1], "as CSV"),
    "table and schema exchanged": (
        ["train", "people.csv", "--schema", "people.csv", "--epsilon", 1],
        "a schema file is needed here"),
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
    "a report in place of a folder": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--report", "."],
        "is a folder: name a file"),
    "a file in place of a folder": (
        ["train", "people.csv", "--schema", "people.toml", "--epsilon", 1, "--out", "notes.txt"],
        "a folder is needed"),
    "another separator than the schema's": (
        ["train", "semicolons.csv", "--schema", "people.toml", "--epsilon", 1],
        "[file] separator = ';'"),
    "a unit that the table lacks": (
        ["schema", "check", "unit.toml", "people.csv"], "the table has no column 'pid'"),
    "words of another language": (
        ["schema", "check", "people.toml", "german.csv"], 'yes = ["ja"], no = ["nein"]'),
    "a column twice in the schema": (["schema", "check", "twice.toml"], "stands above already"),
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
    "one column twice": (["scores.csv", "--label", "y", "--score", "y"], "are both 'y'"),
    "a text file": (["notes.txt", "--label", "y", "--score", "p"], "only .csv"),
    "regression without a range": (
        ["scores.csv", "--label", "number", "--score", "logit", "--regression"], "--lower"),
    "budget is spent": (
        ["scores.csv", "--label", "y", "--score", "p", "--ledger", "small.ledger"], "small.ledger"),
    "a threshold in per cent": (
        ["scores.csv", "--label", "y", "--score", "p", "--threshold", 50], "outside the range"),
    "a folder that holds no model": (["scores.csv", "--model", "."], "holds no model"),
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


def warns(action):
    with pytest.warns(PreflightWarning) as given:
        action()
    raise ValueError("; ".join(str(one.message) for one in given))


IN_PYTHON = {
    "missing values": (
        lambda: PrivateClassifier().fit(np.where(NUMBERS > 0.9, np.nan, NUMBERS), Y), "schema"),
    "text without a schema": (lambda: PrivateClassifier().fit(X, Y), "Declare such columns"),
    "an array with a schema": (lambda: model().fit(NUMBERS, Y), "DataFrame"),
    "natural units": (lambda: PrivateClassifier().fit(1e4 * NUMBERS, Y), "natural units"),
    "a label that is not public": (
        lambda: model().fit(X, np.where(Y == "no", "No", "yes")), "not among the public classes"),
    "labels are missing": (
        lambda: model().fit(X, pd.Series(Y).where(X["age"] > 20)), "noisewise.datasets.read_table"),
    "one class": (lambda: model().fit(X, np.full(200, "no")), "only 'no'"),
    "no schema file": (lambda: model(schema="gone.toml").fit(X, Y), "schema draft"),
    "a schema from the data": (
        lambda: model(schema=Schema.from_data(X.assign(paid=Y), "paid", study=True)).fit(X, Y),
        "no epsilon can be given"),
    "negative epsilon": (lambda: model(epsilon=-1).fit(X, Y), "epsilon must be"),
    "delta of one": (lambda: model(delta=1.0).fit(X, Y), "delta must"),
    "a table in place of labels": (
        lambda: model().fit(X, pd.DataFrame({"paid": Y, "when": 1})), "several columns"),
    "a model from nowhere": (lambda: load_estimator("gone"), "holds no model"),
    "an epsilon that promises nothing": (
        lambda: warns(lambda: model(epsilon=50.0, steps=2).fit(X, Y)), "next to nothing"),
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


def build():
    return torch.nn.Linear(4, 2)


def finds(train=None, model=build, loss=torch.nn.functional.cross_entropy, example=None, **more):
    """What the bug finder says of a training that it cannot judge."""
    given = (torch.zeros(2, 4), torch.tensor([0, 1])) if example is None else example
    found = debugging.check(train or returns(None), model, loss, example=given, effort="quick",
                            **more)  # fmt: skip
    raise ValueError(str(found))


def returns(what):
    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        return what(init) if callable(what) else what

    return train


def script(*options):
    return told("debug", *options)


FINDING_BUGS = {
    "a training without a batch size": (
        lambda: finds(lambda *, clip, data, init: init), "batch_size is missing"),
    "no state dict comes back": (lambda: finds(returns(None)), "return model.state_dict()"),
    "a model comes back": (lambda: finds(returns(lambda init: build())), "got Linear"),
    "the training fails": (lambda: finds(returns(lambda init: init["w"])), "failed with KeyError"),
    "nothing is trained": (lambda: finds(returns(lambda init: init)), "nothing-trained"),
    "a model in place of its builder": (
        lambda: finds(model=build()), "build a fresh model each time"),
    "the class of a loss": (lambda: finds(loss=torch.nn.CrossEntropyLoss), "CrossEntropyLoss()"),
    "the name of a script": (lambda: finds("train.py"), "noisewise debug --command"),
    "an example without targets": (
        lambda: finds(example=torch.zeros(2, 4)), "a pair of tensors (x, y)"),
    "an example of one record": (
        lambda: finds(example=(torch.zeros(4), torch.tensor(0))), "must be a batch"),
    "an example of another shape": (
        lambda: finds(example=(torch.zeros(2, 9), torch.tensor([0, 1]))), "(2, 9)"),
    "an older name of a test": (lambda: finds(tests=("E3",)), "'separation'"),
    "no such effort": (
        lambda: debugging.check(returns(None), build, None, example=None, effort="fast"),
        "'thorough'"),
}  # fmt: skip

FINDING_BUGS_COMMAND = {
    "a script in place of a function": (["good.py", "--model", "good.py:build"], "--command"),
    "a model in place of its builder": (
        ["good.py:build", "--model", "good.py:model", "--input-shape", "4"], "a fresh one"),
    "an example that is none": (
        ["good.py:build", "--model", "good.py:build", "--example", "good.py:build"],
        "a pair of tensors (x, y)"),
    "a function twice": (
        ["good.py:build", "--train", "good.py:build", "--model", "good.py:build"], "leave one out"),
    "neither script nor function": ([], "--command"),
    "no such file": (["--model", "gone.py:build", "--train", "gone.py:train"], "gone.py"),
    "no placeholders": (
        ["--model", "good.py:build", "--command", "python good.py", "--input-shape", "4"],
        "{clip}"),
}  # fmt: skip


@pytest.mark.parametrize("case", FINDING_BUGS)
def test_whoever_looks_for_bugs_is_told(case):
    action, said = FINDING_BUGS[case]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        action()
    assert said in str(error.value)


@pytest.mark.parametrize("case", FINDING_BUGS_COMMAND)
def test_whoever_looks_for_bugs_with_the_command_is_told(case, tmp_path, monkeypatch):
    arguments, said = FINDING_BUGS_COMMAND[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(
        "import torch\ndef build(): return torch.nn.Linear(4, 2)\nmodel = build()\n"
    )
    assert said in told("debug", *arguments)


def hospital(count, seed=0):
    rng = np.random.default_rng(seed)
    sick = rng.random(count) < 0.3
    return sick, rng.beta(2 + 2 * sick, 4)


HOSPITALS = [hospital(20, 0), hospital(30, 1)]


def joint(parties=HOSPITALS, aggregator=None, **more):
    return federated.roc(parties, aggregator or federated.FunctionSharing(),
                         **{"epsilon": 1.0, "bins": 16, **more})  # fmt: skip


ACROSS_PARTIES = {
    "no hospital": (lambda: joint([]), "there are no parties"),
    "scores without labels": (lambda: joint([h[1] for h in HOSPITALS]), "(labels, values)"),
    "a table": (lambda: joint([pd.DataFrame({"y": y, "p": p}) for y, p in HOSPITALS]),
                "choose the columns"),
    "a score is missing": (lambda: joint([([1, 0], [0.5, np.nan]), *HOSPITALS]), "public constant"),
    "a label is missing": (lambda: joint([([1, np.nan], [0.5, 0.5]), *HOSPITALS]), "leave"),
    "words as labels": (
        lambda: joint([(np.where(y, "sick", "well"), p) for y, p in HOSPITALS]), "pos_label="),
    "lengths": (lambda: joint([([1, 0], [0.5])]), "one entry for each"),
    "a word in place of servers": (lambda: joint(aggregator="fss"), "FunctionSharing()"),
    "a class in place of servers": (
        lambda: joint(aggregator=federated.FunctionSharing), "FunctionSharing()"),
    "epsilon of zero": (lambda: joint(epsilon=0), "epsilon must be > 0"),
    "one threshold": (lambda: joint(bins=1), "bins must"),
    "bounds the wrong way round": (lambda: joint(bounds=(1, 0)), "increase"),
    "identifiers of one hospital": (lambda: joint(units=[np.arange(20)]), "units"),
}  # fmt: skip


@pytest.mark.parametrize("case", ACROSS_PARTIES)
def test_whoever_evaluates_across_parties_is_told(case):
    action, said = ACROSS_PARTIES[case]
    with pytest.raises((ValueError, TypeError)) as error:
        action()
    assert said in str(error.value)


SERVERS = ["--server", "a=https://a.example:1", "--server", "b=https://b.example:1"]
MEMBERS = ["--party", "north.public", "--party", "south.public", "--analyst", "registry.public"]
TO_STUDY = ["--data", "scores.csv", "--config", "study/north/north.toml"]
STUDIES = {
    "a server without TLS": (
        ["study", "new", "x", "--server", "a=http://a:1", *MEMBERS], "NAME=https://host:port"),
    "a curve misspelt": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--curve", "ROC"], "a choice of"),
    "masks without a word on collusion": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--curve", "roc", "--route", "masks"],
        "--colluding-parties"),
    "more parties needed than there are": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--curve", "roc", "--minimum-parties", 9],
        "between 1 and the 2 parties"),
    "a private key was sent": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--party", "north.key"], "is a private key"),
    "a key is not there": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--party", "gone.public"], "noisewise key new"),
    "a party twice": (
        ["study", "new", "x", *SERVERS, *MEMBERS, "--party", "north.public"], "a name of its own"),
    "a study over another": (["study", "new", "study", *SERVERS, *MEMBERS], "not empty"),
    "a key again": (["key", "new", "north"], "never replaced"),
    "the key left elsewhere": (
        ["contribute", *TO_STUDY, "--column", "p", "--label", "y"], "'noisewise key new north'"),
    "no such configuration": (
        ["contribute", "--data", "scores.csv", "--column", "p", "--config", "x.toml"],
        "no configuration file"),
    "a party's file for a server": (
        ["serve", "--config", "study/north/north.toml"], "'listen' is missing"),
    "a column misspelt": (
        ["contribute", "--data", "scores.csv", "--config", "study/south/south.toml",
         "--column", "q", "--label", "y"], "'q' is not a column"),
    "words as labels": (
        ["contribute", "--data", "scores.csv", "--config", "study/south/south.toml",
         "--column", "p", "--label", "word"], "--pos-label"),
    "a curve that was not agreed on": (
        ["collect", "--config", "study/registry/registry.toml", "--curve", "ecdf", "--epsilon", 1],
        "ecdf"),
}  # fmt: skip


@pytest.fixture(scope="module")
def study(folder):
    """A folder with keys and a study; the south has its key where it belongs."""
    pytest.importorskip("aiohttp")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name in ("north", "south", "registry"):
            assert CliRunner().invoke(app, ["key", "new", name]).exit_code == 0
        made = CliRunner().invoke(
            app, ["study", "new", "study", *SERVERS, *MEMBERS, "--curve", "roc", "--trial"]
        )
        assert made.exit_code == 0, made.output
        for name in ("south", "registry"):
            shutil.copy(f"{name}.key", f"study/{name}/{name}.key")
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("case", STUDIES)
def test_whoever_takes_part_in_a_study_is_told(case, study, monkeypatch):
    arguments, said = STUDIES[case]
    monkeypatch.chdir(study)
    assert said in told(*arguments)
    assert not (study / "x").exists()


def test_a_party_is_told_of_logits_and_of_a_wrong_positive_label_before_they_leave():
    agreed = SimpleNamespace(name="heart", round="1", lower=0.0, upper=1.0)
    said = str(look_at_contribution(np.array([-3.0, 0.4, 7.0]), np.zeros(3, bool), agreed))
    assert "NOT private" in said
    assert "67% of the values lie outside the study's public bounds, 0 to 1" in said
    assert "no record is positive" in said
    assert "--replace" in said


INPUT = [nw.nn.BoundedInput((4,), norm=2.0)]


def certified(*layers, loss=None, shape=(4,)):
    return nw.certify(torch.nn.Sequential(*layers), shape, loss=loss or nw.nn.losses.CrossEntropy())


def attacked(**changes):
    settings = {"claimed": 1.0, "delta": 1e-5, "attack": "gradient-canaries", "clip": 1.0}
    return audit(lambda gradients, *, seed: gradients.sum(0), canaries=20,
                 **{**settings, **changes})  # fmt: skip


RESEARCH = {
    "no bound on the input": (
        lambda: private_step(nw.nn.SpectralLinear(4, 2), nw.Propagated()), "BoundedInput"),
    "a loss that grows without limit": (
        lambda: certified(*INPUT, nw.nn.SpectralLinear(4, 2), loss=torch.nn.MSELoss()),
        "losses.MeanSquared"),
    "no loss": (lambda: nw.certify(torch.nn.Linear(4, 2), (4,)), "certify needs the loss"),
    "batch norm": (
        lambda: certified(*INPUT, torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), "BatchNorm1d"),
    "another shape": (
        lambda: certified(*INPUT, nw.nn.SpectralLinear(4, 2), shape=(7,)), "shape"),
    "torch's spectral norm": (
        lambda: certified(*INPUT, parametrizations.spectral_norm(torch.nn.Linear(4, 2))),
        "redefines weight"),
    "a paper's batch maximum": (nw.BatchMaxScaled, "use InputScaled"),
    "a loss clip below zero": (lambda: nw.InputScaled(loss_clip=-1), "loss_clip must be > 0"),
    "a temperature of zero": (
        lambda: nw.nn.losses.CrossEntropy(temperature=0), "temperature must be > 0"),
    "an attack misspelt": (lambda: attacked(attack="canary"), "'gradient-canaries'"),
    "a delta above one": (lambda: attacked(delta=2), "delta must lie"),
    "an audit that knows no sampling": (attacked, "noise=NoiseModel("),
    "no claim to test": (lambda: audit(None, delta=1e-5), "claimed"),
}  # fmt: skip


def private_step(net, gradients):
    run = private(net, gradients=gradients)
    run.step(*next(iter(run.loader)))


@pytest.mark.parametrize("case", RESEARCH)
def test_whoever_studies_bounds_and_attacks_is_told(case):
    action, said = RESEARCH[case]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        action()
    assert said in str(error.value)


@pytest.mark.parametrize(
    "cases",
    [
        TABLE_COMMAND,
        EVALUATION_COMMAND,
        IN_PYTHON,
        WITH_TORCH,
        CURVES,
        PUBLISHING,
        FINDING_BUGS,
        ACROSS_PARTIES,
        STUDIES,
        RESEARCH,
    ],
)
def test_there_are_ten_of_each_kind(cases):
    assert len(cases) >= 10
