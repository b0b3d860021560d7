"""Servers that answer anything at all: parties and analysts get a clear error, and nobody hangs.

What a server says is data of a stranger. The library's own client is cut short: instead of a
network, a liar answers each request with whatever it likes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from noisewise.federated import EcdfQuestion, Records
from noisewise.federated.network import (
    ClientSettings,
    NetworkError,
    RemoteAggregator,
    collection,
    contribute,
    contribution,
    progress_of,
)
from noisewise.federated.network.client import Client
from noisewise.federated.network.manifest import frame
from noisewise.federated.network.masks import analyst as masks_analyst, party as masks_party
from noisewise.federated.network.measurement import curve_domain
from noisewise.federated.network.trial import make_trial
from noisewise.privacy.randomness import resolve

DIGEST = "0a" * 32
ANSWERS = [
    *(json.dumps(one).encode() for one in (
        None, [], {}, 1, "s", True, {"complete": False, "missing": []}, {"complete": 1},
        {"complete": False, "missing": None}, {"complete": False, "missing": ["0"]},
        {"complete": False, "missing": [-1]}, {"complete": False, "missing": [10**30]},
        {"complete": False, "missing": [0, [1]]}, {"complete": False, "missing": [0]},
        {"seed": 5}, {"seed": "zz"}, {"seed": DIGEST.upper()}, {"absent": 5}, {"absent": [None]},
        {DIGEST: [DIGEST, DIGEST]}, {DIGEST: 5}, {DIGEST: [1]}, {DIGEST: None},
        {"../releases/x?": [DIGEST, DIGEST]}, {"../../v1/contributions": [DIGEST]},
    )),
    b"", b"x", bytes(32), b"\xff" * 31, frame(b"[]", b""), frame(b"{}", b""), b"\xff" * 9,
    *(frame(json.dumps(head).encode(), data) for head, data in (
        ({"rows": [], "next": None}, b""), ({"rows": [], "next": 0}, b""),
        ({"rows": [["a", "b", 3]], "next": 0}, bytes(24)), ({"rows": 5, "next": None}, b""),
        ({"rows": [["a", "b", -3], ["a", "b", 3]], "next": None}, b""),
        ({"rows": [["a", "b", None]], "next": 0}, b""), ({"rows": [[]], "next": "x"}, b""),
        ({"server": "alpha", "records": [1]}, bytes(64)), ({"records": -1}, bytes(7)),
        ({"closed": True}, b""), ({"closed": True}, b"\xff" * 40), ({"closed": False}, b""),
        ({"closed": True}, bytes(200)), ({"closed": False, "missing": 7}, b""),
        ({"arrived": None, "records": 1}, b""), ({"arrived": [[]], "records": "1"}, bytes(8)),
    )),
]  # fmt: skip
REQUESTS = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    two, one = tmp_path_factory.mktemp("shares"), tmp_path_factory.mktemp("masks")
    make_trial(two, parties=["north"], curves=["ecdf"], bins=8, checked=True)
    make_trial(
        one, servers=["alpha"], parties=["north", "south", "west"], curves=["ecdf"], bins=8,
        route="masks", minimum_parties=3, colluding=0, wait=0.0,
    )  # fmt: skip
    return {"shares": two, "masks": one}


def asked(folder):
    settings = ClientSettings.read(folder / "analyst.toml")
    domain = curve_domain(settings.study, "ecdf")
    question = EcdfQuestion(domain, 1.0, relation=settings.study.relation)
    return RemoteAggregator(settings).ask(question, (), resolve(None))


def given(folder):
    settings = ClientSettings.read(folder / "north.toml")
    return contribute(settings, Records(np.array([0.2, 0.4])))


ACTS = {
    "contribute": given,
    "collect": asked,
    "progress": lambda folder: progress_of(ClientSettings.read(folder / "analyst.toml")),
}


def told(monkeypatch, pick):
    """Let every server answer what `pick` says; return what was asked."""
    seen = []

    class Lied(Client):
        async def request(self, server, method, path, body=b"", *, seconds=None):
            seen.append((server, method, path))
            assert len(seen) < REQUESTS, "asks for ever"
            return pick(server, path)

    for module in (collection, contribution, masks_party, masks_analyst):
        monkeypatch.setattr(module, "Client", Lied)
    return seen


@pytest.mark.parametrize("route", ["shares", "masks"])
@pytest.mark.parametrize("act", ACTS)
def test_any_answer_ends_in_a_clear_error_or_is_believed(folders, monkeypatch, act, route):
    """Believed are a server that says that it has everything, and any progress: both its own."""
    rng = np.random.default_rng(0)
    believed, said = 0, []
    for number in range(len(ANSWERS) + 20):
        with monkeypatch.context() as patch:
            if number < len(ANSWERS):
                told(patch, lambda *_, fixed=ANSWERS[number]: fixed)
            else:
                told(patch, lambda *_: ANSWERS[rng.integers(len(ANSWERS))])
            try:
                ACTS[act](folders[route])
                believed += 1
            except NetworkError as error:
                said.append(str(error))
    assert all(len(words) > 20 for words in said)
    assert (believed > 0) == (act == "progress")


def test_a_server_that_says_that_it_has_all_is_believed_about_itself(folders, monkeypatch):
    everything = json.dumps({"complete": True, "missing": []}).encode()
    told(monkeypatch, lambda *_: everything)
    assert set(given(folders["shares"])["servers"]) == {"alpha", "beta"}
    shutil.rmtree(ClientSettings.read(folders["shares"] / "north.toml").state)


def test_a_server_that_asks_for_ever_is_left(folders, monkeypatch):
    again = json.dumps({"complete": False, "missing": [0]}).encode()
    told(monkeypatch, lambda *_: again)
    with pytest.raises(NetworkError, match="again and again"):
        given(folders["shares"])


@pytest.mark.parametrize("name", ["../releases/x?", "x/../../progress", "a" * 63, DIGEST + "/0"])
def test_no_server_chooses_what_is_asked_of_another(folders, monkeypatch, name):
    """Names of sets go into signed requests to all servers; alpha would have beta asked for it."""

    def pick(server, path):
        if path == "/v1/contributions":
            return bytes(32)
        return json.dumps({name: [DIGEST, DIGEST]} if server == "alpha" else {}).encode()

    seen = told(monkeypatch, pick)
    with pytest.raises(NetworkError, match="'alpha' sent an answer that cannot be read"):
        asked(folders["shares"])
    assert {path for _, _, path in seen} == {"/v1/contributions", "/v1/checks"}


def test_every_module_that_talks_to_servers_is_lied_to():
    """A module that makes a client of its own belongs into the list above."""
    folder = Path(contribution.__file__).parent
    users = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "async with Client(" in path.read_text() and path.name != "client.py"
    }
    assert users == {"collection.py", "contribution.py", "masks/analyst.py", "masks/party.py"}
