"""Twenty ways to cheat two real servers: each is refused, or counts what an honest party may.

What a party or analyst could send beside what the library sends: other studies' requests, shares
and keys, keys twice, other sizes, numbers outside the field, early, late and repeated messages.
At the end the honest parties' curve is still exact.
"""

from __future__ import annotations

import hashlib
import json
import time

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from federated.network.raw import ask
from federated.network.test_access import manifest_of, shares_of
from noisewise.federated import Records
from noisewise.federated.fss import CheckedKeys
from noisewise.federated.network import ClientSettings, RemoteAggregator, contribute
from noisewise.federated.network.manifest import frame, set_digest
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.trial import make_trial
from noisewise.federated.sharing.field import PRIME
from noisewise.privacy.randomness import resolve

HONEST = ("north", "south")
OPTIONS = {"checked": True, "curves": ["ecdf"], "bins": 16, "noiseless_test": True}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    parties = [*HONEST, *(f"cheat{i}" for i in range(20))]
    made = Federation.create(
        folder, np.random.default_rng(0), records=3, parties=parties, patience=60.0, seconds=20.0,
        most_records=5, **OPTIONS,
    )  # fmt: skip
    with made:
        made.receipts = {
            name: contribute(ClientSettings.read(made.trial.config(name)), made.data[name])
            for name in HONEST
        }
        yield made


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, federation):
    """Another study of the same people, with the same keys and servers."""
    folder = tmp_path_factory.mktemp("elsewhere")
    trial = make_trial(folder, parties=list(federation.trial.parties), most_records=5, **OPTIONS)
    return Federation(trial, federation.data)


def described(made, party, shares, **changes):
    """Return a manifest that is right about what the shares have in common, if anything is."""
    records = changes.get("records", len(made.data[party]))
    try:
        common = route_of(made.study).check(0, shares["alpha"], records)
    except ValueError:
        common = ""
    return manifest_of(made, party, shares, common=common, **changes)


def put(made, party, server, manifest, data, **options):
    path = f"/v1/contributions/{manifest.identifier}"
    body = frame(manifest.encoded, data)
    status, answer, _ = ask(made, server, "PUT", path, body, sender=party, **options)
    return status, answer["code"] if status != 200 else answer["complete"]


def sent(made, party, shares, **changes):
    """Send shares to both servers; return what the servers said."""
    manifest = described(made, party, shares, **changes)
    return [put(made, party, server, manifest, shares[server]) for server in made.trial.servers]


def keys_of(made, party, records):
    return dict(zip(made.trial.servers, route_of(made.study).make(records), strict=True))


def length(made):
    return route_of(made.study).size(0, 1)


def test_equal_keys_twice(federation):
    """A key again, in one contribution or in another's, is one more record of who sends it.

    Nobody but its owner knows both halves, so this is no more than two keys of one cell would be.
    """
    one = keys_of(federation, "cheat0", Records(np.array([0.5])))
    twice = {name: data * 2 for name, data in one.items()}
    assert sent(federation, "cheat0", twice, records=2) == [(200, True), (200, True)]
    assert sent(federation, "cheat1", one, records=1) == [(200, True), (200, True)]
    again = {name: data * 6 for name, data in one.items()}
    assert sent(federation, "cheat1", again, records=6)[0] == (422, "too-many-records")


@pytest.mark.parametrize("word", [PRIME, PRIME + 1, 2**64 - 1])
def test_numbers_outside_the_field(federation, word):
    shares = keys_of(federation, "cheat2", Records(np.array([0.5])))
    domain = route_of(federation.study).domains[0]
    spoiled = {}
    for index, (name, data) in enumerate(shares.items()):
        tag = route_of(federation.study)._tag(domain)
        keys = CheckedKeys.from_bytes(data, domain.levels, index, tag)
        keys.table["last"][0, 0] = word
        spoiled[name] = keys.table.tobytes()
    said = sent(federation, "cheat2", spoiled, records=1)
    assert said == [(422, "bad-share"), (422, "bad-share")]


def test_keys_of_another_domain_size(federation, tmp_path):
    trial = make_trial(tmp_path, parties=["cheat3"], **{**OPTIONS, "bins": 32})
    larger = Federation(trial, {"cheat3": federation.data["cheat3"]})
    shares = shares_of(larger, "cheat3")
    assert sent(federation, "cheat3", shares)[0] == (422, "wrong-size")
    cut = {name: data[: length(federation)] for name, data in shares.items()}
    assert sent(federation, "cheat3", cut, records=1)[0] == (422, "bad-share")


def test_what_was_made_for_another_study(federation, elsewhere):
    """Its request, its manifest, and its keys under a manifest of this study."""
    assert federation.study.fingerprint != elsewhere.study.fingerprint
    shares = shares_of(elsewhere, "cheat4")
    manifest = manifest_of(elsewhere, "cheat4", shares)
    settings = ClientSettings.read(elsewhere.trial.config("cheat4"))
    path = f"/v1/contributions/{manifest.identifier}"
    body = frame(manifest.encoded, shares["alpha"])
    signed = settings.signer.sign(
        server="alpha", study=elsewhere.study.fingerprint, method="PUT", path=path, body=body,
        time=int(time.time()),
    )  # fmt: skip
    status, answer, _ = ask(
        federation, "alpha", "PUT", path, body, sender="cheat4", credential=signed
    )
    assert (status, answer["code"]) == (401, "signature")
    assert put(federation, "cheat4", "alpha", manifest, shares["alpha"]) == (403, "not-yours")
    assert sent(federation, "cheat4", shares)[0] == (422, "bad-share")


def test_a_signature_for_another_method_or_a_longer_path(federation):
    path = "/v1/contributions/" + "0" * 64
    settings = ClientSettings.read(federation.trial.config("cheat5"))
    now = int(time.time())
    signed = settings.signer.sign(
        server="alpha", study=settings.study.fingerprint, method="GET", path=path, body=b"",
        time=now,
    )  # fmt: skip
    for method, where in (("DELETE", path), ("GET", path + "?x=1"), ("GET", path + "/0")):
        status, answer, _ = ask(
            federation, "alpha", method, where, sender="cheat5", credential=signed
        )
        assert status in (401, 404, 405), (method, where)
        assert status != 401 or answer["code"] == "signature"
    assert ask(federation, "alpha", "GET", path, sender="cheat5", credential=signed)[0] == 200


@pytest.mark.parametrize(
    ("records", "code"),
    [(0, "bad-share"), (1, "wrong-size"), (3, "wrong-size"), (6, "too-many-records"),
     (2**52, "too-many-records")],
)  # fmt: skip
def test_a_number_of_records_that_is_not_that_of_the_keys(federation, records, code):
    shares = keys_of(federation, "cheat6", Records(np.array([0.1, 0.9])))
    status, said = sent(federation, "cheat6", shares, records=records)[0]
    assert status == 422
    assert said in (code, "wrong-records", "wrong-size")


def test_shares_for_servers_that_there_are_not(federation):
    shares = keys_of(federation, "cheat7", Records(np.array([0.1])))
    for wrong in ({**shares, "gamma": b"x"}, {"alpha": shares["alpha"]}):
        manifest = described(federation, "cheat7", wrong, records=1)
        said = put(federation, "cheat7", "alpha", manifest, shares["alpha"])
        assert said == (422, "wrong-shares")


def test_pieces_that_were_not_announced_and_pieces_before_the_beginning(federation):
    shares = keys_of(federation, "cheat8", Records(np.array([0.1])))
    manifest = described(federation, "cheat8", shares, records=1, piece_size=100)
    path = f"/v1/contributions/{manifest.identifier}"
    early = ask(federation, "alpha", "PUT", f"{path}/1", shares["alpha"][100:], sender="cheat8")
    assert (early[0], early[1]["code"]) == (404, "unknown")
    assert put(federation, "cheat8", "alpha", manifest, shares["alpha"][:100]) == (200, False)
    for number, data in (("9", b""), ("-1", b"x"), ("1", shares["alpha"][:100]), ("x", b"")):
        status, answer, _ = ask(
            federation, "alpha", "PUT", f"{path}/{number}", data, sender="cheat8"
        )
        assert (status, answer["code"]) == (422, "wrong-piece"), number
    stolen = ask(federation, "alpha", "PUT", f"{path}/1", b"", sender="cheat7")
    assert (stolen[0], stolen[1]["code"]) == (404, "unknown")


def test_a_withdrawn_contribution_does_not_come_back(federation):
    shares = keys_of(federation, "cheat9", Records(np.array([0.1])))
    manifest = described(federation, "cheat9", shares, records=1)
    path = f"/v1/contributions/{manifest.identifier}"
    assert ask(federation, "alpha", "DELETE", path, sender="cheat9")[0] == 200
    late = put(federation, "cheat9", "alpha", manifest, shares["alpha"])
    assert late == (410, "withdrawn")
    federation.restart("alpha")
    late = put(federation, "cheat9", "alpha", manifest, shares["alpha"])
    assert late == (410, "withdrawn")


def test_an_analyst_cannot_choose_sets_questions_or_anothers_answer(federation):
    """A set that is not complete, cells and relations of other studies, an unreserved release."""
    question = Measurement.of(federation.study, federation.question())
    asked = {"question": json.loads(question.encoded), "excluded": []}

    def said(what, **changes):
        body = json.dumps({**asked, **changes}).encode()
        status, answer, _ = ask(federation, "alpha", "PUT", f"/v1/{what}/mine", body)
        return status, answer["code"]

    nobody = set_digest([hashlib.sha256(b"nobody").hexdigest()])
    assert said("releases", set=nobody)[0] in (404, 409)
    assert said("reservations", set=nobody)[0] == 409
    other = json.loads(question.encoded)
    other["relation"] = "add-remove"
    assert said("reservations", set=nobody, question=other)[0] in (400, 422)
    for name in ("../ledger", "a/b", "a" * 200, "%2e%2e"):
        status = ask(federation, "alpha", "PUT", f"/v1/releases/{name}", b"{}")[0]
        assert status in (400, 404, 422), name


def test_after_all_of_this_honest_records_are_counted_once(federation):
    """And so are the keys that prove that they count one; nobody else is in the sum."""
    settings = ClientSettings.read(federation.trial.config("analyst"))
    taken = []
    question = federation.question()
    ask_ = RemoteAggregator(settings, parties=4, told=taken.append).ask
    sums = ask_(question, (), resolve(None)).noisy
    extra = 3 * question.statistic(Records(np.array([0.5])))
    assert np.array_equal(sums, federation.truth(HONEST) + extra)
    assert taken[0].contributions == 4
    # Too late to take anything back, at both servers, after a restart too.
    path = f"/v1/contributions/{federation.receipts['north']['contribution']}"
    federation.restart("alpha")
    for server in federation.trial.servers:
        status, answer, _ = ask(federation, server, "DELETE", path, sender="north")
        assert (status, answer["code"]) == (409, "released")
