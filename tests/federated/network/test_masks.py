"""Masked aggregation between processes: exact, noisy, with drop-outs, and after any death."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.children import PLACES
from federated.network.harness import (
    CLEAR,
    Federation,
    check_answer,
    draw_faults,
    is_noise_of,
)
from noisewise import federated
from noisewise.federated import LocalAggregator, without_noise
from noisewise.federated.network import (
    ClientSettings,
    NetworkError,
    RemoteAggregator,
    contribute,
    progress_of,
)
from noisewise.federated.network.masks.analyst import fetch
from noisewise.federated.network.masks.round import MaskedRound
from noisewise.privacy import verify
from noisewise.privacy.statement import Statement

PARTIES = ("north", "south", "west")
MASKED: dict = {
    "route": "masks", "servers": ("alpha",), "minimum_parties": 3, "patience": 60.0,
    "seconds": 15.0, "wait": 90.0,
}  # fmt: skip


def create(folder, seed=0, **options):
    return Federation.create(folder, np.random.default_rng(seed), **{**MASKED, **options})


def analyst(made, **options):
    return RemoteAggregator(ClientSettings.read(made.trial.config("analyst")), **options)


# -------------------------------------------------------------------------- the whole way


@pytest.mark.parametrize(
    ("curve", "relation"),
    [("ecdf", "replace-one"), ("histogram", "replace-one"), ("roc", "add-remove")],
)
def test_without_noise_the_curve_equals_the_local_one_to_the_bit(tmp_path, curve, relation):
    made = create(
        tmp_path, records=200, curves=[curve], bins=16, relation=relation, noiseless_test=True
    )
    quiet, parties = without_noise(LocalAggregator()), list(made.data.values())
    asked = {"epsilon": 1.0, "bins": 16, "relation": relation}
    with made:
        made.contribute()
        remote = analyst(made)
        for aggregator, data in ((remote, None), (quiet, parties)):
            if curve == "ecdf":
                found = federated.ecdf(data, aggregator, bounds=(0, 1), **asked).counts
            elif curve == "histogram":
                found = federated.histogram(data, aggregator, range=(0, 1), **asked).counts
            else:
                found = federated.roc(data, aggregator, **asked).release.counts
            if aggregator is remote:
                first = found
        assert first.tobytes() == found.tobytes()


def test_with_noise_the_statement_names_the_protocol_and_the_charge_is_one(tmp_path):
    made = create(tmp_path, minimum_parties=3, colluding=2)
    with made:
        made.contribute()
        for name in PARTIES:
            assert "result" in made.report(name)
        found = made.collect()
        check_answer(made, found, False, "")
        assert made.collect() == found
        statement = Statement.from_dict(found["result"]["statement"])
        assert verify(statement).ok
        said = "\n".join(statement.assumptions)
        assert "masked secure aggregation of 3 parties" in said
        assert "malicious server, helped by at most 2 parties" in said
        assert "each of 3 contributors adds a full share" in said
        assert "3 of 3 parties are in this result" in said
        progress = progress_of(ClientSettings.read(made.trial.config("analyst")))["alpha"]
        assert (progress["stage"], progress["complete"], progress["absent"]) == ("done", 3, [])
        assert progress["epsilon_spent"] <= 1.0
        # A party that asks again is told that it is done, and nothing more is sent.
        settings = ClientSettings.read(made.trial.config("north"))
        told: list[str] = []
        contribute(settings, made.data["north"], progress=told.append)
        assert told == ["this party has contributed to this round before; nothing was sent"]
        with pytest.raises(NetworkError, match="cannot be taken back"):
            contribute(settings, made.data["north"], replace=True)
    assert len(made.charges("alpha")) == 1


def test_the_band_knows_the_noise_of_all_who_arrived(tmp_path):
    made = create(tmp_path, minimum_parties=2, curves=["ecdf"])
    with made:
        made.contribute()
        curve = federated.ecdf(
            None, analyst(made), bounds=(0, 1), bins=8, epsilon=1.0, relation="replace-one"
        )
    alone = federated.ecdf(list(made.data.values()), LocalAggregator(), bounds=(0, 1), bins=8,
                           epsilon=1.0, relation="replace-one")  # fmt: skip
    assert np.allclose(curve.mechanism.variance, alone.mechanism.variance * 3 / 2)
    assert curve.mechanism.epsilon == alone.mechanism.epsilon


def test_another_question_another_name_and_an_unfinished_round_are_refused(tmp_path):
    made = create(tmp_path)
    with made:
        remote = analyst(made)
        assert "in this result" not in remote.threat.drop_outs
        assert remote.noise.honest == 3
        question = made.question()
        with pytest.raises(NetworkError, match="releases its curve once, with epsilon 1"):
            remote.ask(made.question(0.5), (), None)
        with pytest.raises(NetworkError, match="without a name"):
            analyst(made, name="again").ask(question, (), None)
        with pytest.raises(NetworkError, match=r"stage 'advertise'.*missing: north, south, west"):
            remote.ask(question, (), None)


# ------------------------------------------------------------------------------ drop-outs

#: At which call a party dies for good, and whether its sums are then in the result.
LEAVES = [
    ("before sharing", False),
    ("after sharing", False),
    ("before masking", False),
    ("after masking", False),
    ("before confirming", True),
    ("after confirming", True),
    ("before revealing", True),
    ("after revealing", True),
]


@pytest.mark.parametrize("noiseless", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("place", "counted"), LEAVES)
def test_who_drops_out_is_counted_if_and_only_if_its_sums_arrived(
    tmp_path, place, counted, noiseless
):
    made = create(tmp_path, 1, minimum_parties=2, stage_seconds=1.0, noiseless_test=noiseless)
    with made:
        dying = made.party("west", place=place)
        made.wait(made.party("north"), made.party("south"), dying)
        assert made.report("west") is None
        result = made.collect()["result"]
        stayed = PARTIES if counted else ("north", "south")
        truth = made.truth(stayed)
        if noiseless:
            assert result["sums"] == truth.tolist()
        else:
            assert is_noise_of(made, result["sums"], truth)
        assert result["contributions"] == len(stayed)
        assert result["records"] == sum(len(made.data[name]) for name in stayed)
        assert f"{len(stayed)} of 3 parties are in this result" in result["drop-outs"][0]
        # Started again, it is told what became of it.
        made.contribute("west")
        found = made.report("west")
        if counted:
            assert "result" in found
        else:
            assert (found["type"], "not counted in this round" in found["error"]) == (
                "RefusedError",
                True,
            )
        assert made.collect()["result"] == result


def test_below_the_threshold_there_is_no_result_and_nothing_is_charged(tmp_path):
    made = create(tmp_path, minimum_parties=2, stage_seconds=0.5, wait=4.0)
    with made:
        made.wait(
            made.party("north"),
            made.party("south", place="before masking"),
            made.party("west", place="before masking"),
        )
        found = made.report("north")
        assert found["type"] == "NetworkError"
        assert "still waiting for south, west" in found["error"]
        assert "stage 'mask'" in made.collect()["error"]
    assert made.charges("alpha") == []


# ------------------------------------------------------------------- deaths and restarts

#: Places that are passed more than once, and how often a death is tried there.
OFTEN = {
    "before a file": 4, "after a file": 4, "before a request": 8, "after an answer": 8,
    "before a commit": 8, "after a commit": 8,
}  # fmt: skip
SWEEP = [
    (kind, place, count)
    for kind, places in (
        ("party", PLACES["masked party"]),
        ("server", PLACES["masked server"]),
        ("analyst", ("before a request", "after an answer")),
    )
    for place in places
    for count in range(1, 2 if kind == "analyst" else OFTEN.get(place, 1) + 1)
]
FAST = [
    ("party", "after a file", 2),
    ("party", "after masking", 1),
    ("party", "after the receipt", 1),
    ("server", "after the charge", 1),
    ("server", "after the total", 1),
]


def after_a_death(folder, kind, place, count):
    made = create(folder, count)
    death = {"place": place, "count": count}
    with made:
        if kind == "server":
            made.kill("alpha")
            made.start("alpha", **death)
        north = made.party("north", **(death if kind == "party" else {}))
        others = [made.party(name) for name in PARTIES[1:]]
        made.wait(north)
        again = made.party("north")
        made.wait(again, *others)
        for name in PARTIES:
            assert "result" in made.report(name), (death, made.report(name))
        made.wait(made.analyst(**(death if kind == "analyst" else {})))
        first = made.report("analyst")
        check_answer(made, first, False, str(death))
        final = made.collect()
        assert "result" in final, (death, final)
        check_answer(made, final, False, str(death))
        if first is not None and "result" in first:
            assert final == first
    assert len(made.charges("alpha")) == 1, death


@pytest.mark.parametrize(("kind", "place", "count"), FAST)
def test_after_a_death_the_result_is_right_and_paid_once(tmp_path, kind, place, count):
    after_a_death(tmp_path, kind, place, count)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place", "count"), SWEEP)
def test_after_any_death_the_result_is_right_and_paid_once(tmp_path, kind, place, count):
    after_a_death(tmp_path, kind, place, count)


def run_schedule(folder, seed):
    rng = random.Random(seed)
    noiseless = seed % 3 != 0
    made = create(
        folder, seed, noiseless_test=noiseless, curves=["roc"] if seed % 2 else ["ecdf"],
        patience=3.0, seconds=1.0, wait=4.0,
    )  # fmt: skip

    def death(kind):
        place, count = rng.choice(sorted(PLACES[kind])), rng.randint(1, 6)
        return {"place": place, "count": count} if rng.random() < 0.5 else {}

    with made:
        said = draw_faults(made, seed)
        dies = death("masked server")
        if dies:
            made.kill("alpha")
            made.start("alpha", **dies)
        deaths = {name: death("masked party") for name in PARTIES}
        said += f"; alpha {dies}; {deaths}"
        made.wait(*(made.party(name, **deaths[name]) for name in PARTIES))
        made.wait(made.analyst())
        check_answer(made, made.report("analyst"), noiseless, said)
        for name in PARTIES:
            found = made.report(name)
            assert found is None or "result" in found or found["type"] in CLEAR, (said, found)

        assert made.network is not None
        made.network.lines["alpha"].clear()
        made.be_patient()
        made.contribute()
        for name in PARTIES:
            assert "result" in (made.report(name) or {}), (said, made.report(name))
        final = made.collect()
        assert "result" in final, (said, final)
        check_answer(made, final, noiseless, said)
        assert made.collect() == final, said
    notes = made.charges("alpha")
    assert len(notes) == (0 if noiseless else 1), (said, notes)


@pytest.mark.parametrize("seed", range(2))
def test_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 102))
def test_many_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)


def test_a_server_that_lost_its_ledger_does_not_go_on(tmp_path):
    made = create(tmp_path)
    with made:
        made.contribute()
        made.kill("alpha")
        (tmp_path / "alpha-state" / "budget.ledger").unlink()
        made.start("alpha")
        made.servers["alpha"].join(60)
        assert made.servers["alpha"].exitcode != 0


def test_an_answer_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    made = create(tmp_path)
    with made:
        made.contribute()
        settings = ClientSettings.read(made.trial.config("analyst"))
        assert fetch(settings, made.question()).arrived == PARTIES
        monkeypatch.setattr(
            type(MaskedRound(settings.study).measurement), "fingerprint", property(lambda _: "?")
        )
        with pytest.raises(NetworkError, match="something else than was asked"):
            fetch(settings, made.question())
