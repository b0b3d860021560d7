"""A study that protects patients, parties or devices, by the commands of its roles."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("aiohttp")

import typer
from typer.testing import CliRunner

from federated.network.harness import Federation
from noisewise.cli import study as study_command
from noisewise.cli.collect import collect
from noisewise.cli.contribute import contribute, read_records
from noisewise.federated import Protected, Records, RocQuestion
from noisewise.federated.network import ClientSettings, RefusedError, Study, contribution
from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.masks.round import MaskedRound
from noisewise.federated.network.measurement import Measurement, curve_domain
from noisewise.federated.network.outbox import Outbox, digest_of
from noisewise.federated.network.templates import study_text
from noisewise.privacy import Ledger, Randomness, Statement, verify

PATIENT = Protected("identifier", "one patient", rows=2, parties=2)
app = typer.Typer()
app.command()(contribute)
app.command()(collect)
app.add_typer(study_command.app, name="study")


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def visits(seed):
    rng = np.random.default_rng(seed)
    p = rng.random(60)
    names = [f"NHS-4711-{i}" for i in rng.integers(0, 25, 60)]
    return pd.DataFrame({"p": p, "y": (rng.random(60) < p).astype(int), "patient": names})


def made(folder, protects, **options):
    settings = {
        "parties": ("north", "south"), "curves": ["roc"], "bins": 16, "relation": "add-remove",
        "epsilon": 200.0, "patience": 60.0, "seconds": 15.0, "protects": protects, **options,
    }  # fmt: skip
    return Federation.create(folder, np.random.default_rng(1), **settings)


@pytest.mark.parametrize("route", ["vectors", "masks"])
@pytest.mark.parametrize("kind", ["patient", "party"])
def test_the_commands_protect_units_from_contribution_to_statement(tmp_path, kind, route):
    protects = PATIENT if kind == "patient" else Protected("party", rows=30)
    masks = {"servers": ("alpha",), "minimum_parties": 2, "wait": 90.0}
    federation = made(tmp_path, protects, route=route, **(masks if route == "masks" else {}))
    expected, said = 0, []
    with federation:
        jobs = []
        for seed, name in enumerate(("north", "south")):
            frame = visits(seed)
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
            sizes = frame["patient"].value_counts() if kind == "patient" else pd.Series([60])
            expected += int(sizes.clip(upper=protects.rows).sum())
            words = ["contribute", "--data", tmp_path / f"{name}.csv", "--column", "p", "--label"]
            words += ["y", "--config", federation.trial.config(name)]
            wrong = [*words, "--unit", "patient"] if kind == "party" else words
            with pytest.raises(ValueError, match="--unit"):
                run(*wrong)
            words += ["--unit", "patient"] if kind == "patient" else []
            if route == "vectors":
                said.append(run(*words).output)
                continue
            column = "patient" if kind == "patient" else None
            settings = ClientSettings.read(federation.trial.config(name))
            records = read_records(tmp_path / f"{name}.csv", "p", "y", None, unit=column)
            work = partial(contribution.contribute, settings, records, progress=said.append)
            jobs.append(threading.Thread(target=work))
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        written = tmp_path / "statement.json"
        asked = ["collect", "--config", federation.trial.config("analyst"), "--epsilon", "200"]
        found = run(*asked, "--statement", written, "--json")
    numbers = json.loads(found.output)
    statement = Statement.from_json(written.read_text())
    assert abs(numbers["positives"] + numbers["negatives"] - expected) < 5
    assert statement.unit == protects.name
    assert verify(statement).ok
    assert set(protects.contribution.sentences) <= set(statement.assumptions)
    alone = [one for one in statement.assumptions if "rows of the parties" in one]
    assert len(alone) == (kind == "patient")  # all rows of a party may depend on each other
    for server in federation.trial.servers:
        for path in (tmp_path / f"{server}-state").rglob("budget.ledger"):
            with Ledger.open(path) as ledger:
                assert ledger.unit == protects.name
                assert len(ledger.charges) == 1
    everything = found.output + "".join(said) + written.read_text()
    assert "NHS-4711" not in everything
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".csv":
            assert b"NHS-4711" not in path.read_bytes()


def test_a_study_file_says_who_is_protected(tmp_path):
    folder = tmp_path / "heart"
    words = ["study", "new", folder, "--server", "a=https://a:1", "--server", "b=https://b:1",
             "--party", "north", "--party", "south", "--analyst", "who", "--trial"]  # fmt: skip
    run(*words, "--unit", "one patient", "--unit-rows", "3")
    study = Study.read(folder / "study.toml")
    # Nobody said that a patient is known to one party only, so it may be known to all.
    assert study.protects == Protected("identifier", "one patient", 3, 2)
    assert study_text(study) == (folder / "study.toml").read_text()
    plain = replace(study, protects=Protected())
    assert plain.fingerprint != study.fingerprint
    assert replace(study, protects=Protected("party", rows=3)).fingerprint != study.fingerprint
    checked = run("study", "check", folder / "north" / "north.toml", "--dry-run").output
    assert "one unit counts up to 6 rows" in " ".join(checked.split())
    for wrong in (["--unit-rows", "3"], ["--unit", "party", "--unit-parties", "2"],
                  ["--unit", "one patient", "--unit-parties", "5"],
                  ["--unit", "one patient", "--relation", "replace-one"]):  # fmt: skip
        with pytest.raises(ConfigurationError):
            run(*words[:2], tmp_path / "other", *words[3:], *wrong)


def test_servers_refuse_a_question_with_noise_for_fewer_rows(tmp_path):
    study = Study.read(made(tmp_path, PATIENT).trial.folder / "study.toml")
    domain = curve_domain(study, "roc")
    for fewer in (Protected(), replace(PATIENT, rows=1), replace(PATIENT, parties=1)):
        with pytest.raises(RefusedError, match="protects one patient"):
            Measurement.of(study, RocQuestion(domain, 1.0, protects=fewer))
    Measurement.of(study, RocQuestion(domain, 1.0, protects=PATIENT))


def test_a_party_that_begins_again_sends_the_same_rows(tmp_path):
    study = Study.read(
        made(tmp_path, PATIENT, route="masks", servers=("alpha",), minimum_parties=2).trial.folder
        / "study.toml"
    )
    frame = visits(0)
    codes = frame["patient"].astype("category").cat.codes.to_numpy().astype(np.int64)
    records = Records(frame["p"].to_numpy(), frame["y"].to_numpy() == 1, codes)
    order = np.random.default_rng(5).permutation(60)
    again = Records(records.values[order], records.positive[order], codes[order])
    assert digest_of(records) == digest_of(again)
    other = Records(records.values, records.positive, np.roll(codes, 1))
    assert digest_of(records) != digest_of(other)
    one, two = (MaskedRound(study).vector(r, Randomness.seeded(3)) for r in (records, again))
    assert np.array_equal(one, two)
    shared = Study.read(made(tmp_path / "shares", PATIENT).trial.folder / "study.toml")
    box = Outbox.of(tmp_path / "state", shared, "north")
    first = box.prepare(records)
    assert box.prepare(again) == first  # made once, whatever would be chosen now
    box.empty()
    with pytest.raises(ValueError, match="identifiers"):
        box.prepare(Records(records.values, records.positive))
