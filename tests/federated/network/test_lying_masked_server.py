"""The party of a real study against a server that lies: real journals, signatures and messages.

The server is an object in this process. It passes on what it must, tells each party another list
of survivors, and hands out whatever signatures it can get, those of its helpers under any list.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from noisewise.federated import Records
from noisewise.federated.masking import (
    Advertisement,
    AggregationError,
    Confirmation,
    MaskingClient,
    Revelation,
)
from noisewise.federated.network import ClientSettings, NetworkError, Study
from noisewise.federated.network.identity import Signer
from noisewise.federated.network.manifest import frame
from noisewise.federated.network.masks import party as party_module
from noisewise.federated.network.masks.party import Journal, _Party
from noisewise.federated.network.masks.round import MaskedRound
from noisewise.federated.network.masks.stages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    REVEAL,
    SHARE,
    split_sealed,
)
from noisewise.federated.network.trial import make_trial

NAMES = ("ada", "bob", "cyd", "dan", "eve")
HELPER = "eve"
HONEST = NAMES[:4]


class Liar:
    """A server with one helper.

    Parameters
    ----------
    lists : dict
        Which survivors, by name, each party is told of.
    """

    def __init__(self, folder, lists):
        self.round = MaskedRound(Study.read(folder / "study.toml"))
        self.lists = {
            name: sorted(self.round.number_of(n) for n in names) for name, names in lists.items()
        }
        self.messages = {stage: {} for stage in range(ADVERTISE, REVEAL + 1)}
        self.signer = Signer.read(HELPER, folder / f"{HELPER}.key")
        self.helper = MaskingClient(
            self.round.number_of(HELPER), self.round.session,
            sign=self.round.sign(self.signer), roll=lambda *_: True,
        )  # fmt: skip
        own = self.round.seal_advertisement(self.helper.advertise(), self.signer)
        self.messages[ADVERTISE][HELPER] = own

    def put(self, name, stage, body):
        self.messages[stage][name] = body
        if stage == ADVERTISE and len(self.messages[ADVERTISE]) == len(NAMES):
            everybody = self.round.open_advertisements(self.everything(ADVERTISE))
            sealed = self.helper.share(everybody)
            self.messages[SHARE][HELPER] = b"".join(m.to_bytes() for m in sealed)

    def everything(self, stage):
        return b"".join(self.messages[stage][n] for n in NAMES if n in self.messages[stage])

    def said(self, told):
        """What parties sign that are told this list."""
        keys = self.round.session.keys(self.round.open_advertisements(self.everything(ADVERTISE)))
        return self.round.session.survivors(told, keys)

    def get(self, name, stage):
        """Return what a party is told; None while honest messages are on their way."""
        waiting = [n for n in HONEST if n not in self.messages[min(stage, MASK)]]
        if waiting:
            return None
        if stage == ADVERTISE:
            return self.everything(ADVERTISE)
        if stage == SHARE:
            number = self.round.number_of(name)
            parts = [
                m for n in NAMES for m in split_sealed(self.messages[SHARE][n])
                if m.receiver == number
            ]  # fmt: skip
            return listed(range(1, len(NAMES) + 1)) + b"".join(m.to_bytes() for m in parts)
        told = self.lists[name]
        if stage == MASK:
            return listed(told)
        if any(n not in self.messages[CONFIRM] for n in HONEST):
            return None
        said = self.said(told)
        found = [
            Confirmation.from_bytes(self.messages[CONFIRM][n])
            for n in HONEST
            if self.lists[n] == told
        ]
        number = self.round.number_of(HELPER)
        if number in told:
            found.append(Confirmation(number, self.round.sign(self.signer)(said)))
        return b"".join(message.to_bytes() for message in found)


def listed(numbers):
    """Return a list as it stands at the beginning of a handout."""
    return b"".join(number.to_bytes(4, "little") for number in (len(numbers), *numbers))


def client_of(liar):
    """Return a class that stands for the library's client and talks to the liar."""

    class Client:
        def __init__(self, settings):
            self.name = settings.signer.name

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def request(self, server, method, path, body=b""):
            stage = int(path.rsplit("/", 1)[1])
            if method == "PUT":
                liar.put(self.name, stage, body)
                return b""
            said = liar.get(self.name, stage)
            head = {"closed": said is not None, "missing": []}
            return frame(json.dumps(head).encode(), said or b"")

    return Client


def play(folder, lists, monkeypatch):
    """Let all honest parties take part; return the liar and how each of them ended."""
    make_trial(
        folder, servers=["alpha"], parties=NAMES, route="masks", minimum_parties=4, colluding=1,
        bins=4, curves=["ecdf"], wait=20.0,
    )  # fmt: skip
    liar = Liar(folder, lists)
    monkeypatch.setattr(party_module, "Client", client_of(liar))

    async def take_part(name):
        settings = ClientSettings.read(folder / f"{name}.toml")
        journal = Journal(folder / f"{name}.journal")
        root = journal.open("records")
        party = _Party(settings, journal, root, lambda _: None)
        return await party.run(Records(np.array([0.1, 0.6])))

    async def all_of_them():
        return await asyncio.gather(*(take_part(n) for n in HONEST), return_exceptions=True)

    return liar, dict(zip(HONEST, asyncio.run(all_of_them()), strict=True))


WITHOUT_ADA = ("bob", "cyd", "dan", "eve")
WITHOUT_BOB = ("ada", "cyd", "dan", "eve")
LIES = [
    {"ada": NAMES, "bob": NAMES, "cyd": WITHOUT_ADA, "dan": WITHOUT_ADA},
    {"ada": NAMES, "bob": WITHOUT_ADA, "cyd": WITHOUT_ADA, "dan": NAMES},
    {"ada": WITHOUT_BOB, "bob": WITHOUT_ADA, "cyd": NAMES, "dan": NAMES},
]


@pytest.mark.parametrize("lists", LIES, ids=range(len(LIES)))
def test_parties_that_were_told_different_survivors_reveal_nothing(tmp_path, monkeypatch, lists):
    liar, ended = play(tmp_path, lists, monkeypatch)
    assert liar.messages[REVEAL] == {}
    for name, error in ended.items():
        assert isinstance(error, AggregationError), (name, error)
        assert "are needed" in str(error)


def test_a_confirmation_of_another_list_is_noticed_by_name(tmp_path, monkeypatch):
    original = Liar.get

    def mixed(self, name, stage):
        said = original(self, name, stage)
        if stage == CONFIRM and said is not None:  # all signatures there are, under any list
            own = Confirmation(
                self.round.number_of(HELPER),
                self.round.sign(self.signer)(self.said(self.lists[name])),
            )
            return self.everything(CONFIRM) + own.to_bytes()
        return said

    monkeypatch.setattr(Liar, "get", mixed)
    liar, ended = play(tmp_path, LIES[0], monkeypatch)
    assert liar.messages[REVEAL] == {}
    for error in ended.values():
        assert "the server may have told others another one" in str(error)


def test_parties_that_were_told_the_same_reveal_one_kind_for_each(tmp_path, monkeypatch):
    liar, ended = play(tmp_path, dict.fromkeys(HONEST, NAMES), monkeypatch)
    assert not any(isinstance(error, BaseException) for error in ended.values()), ended
    for name in HONEST:
        shown = Revelation.from_bytes(liar.messages[REVEAL][name])
        assert (sorted(shown.seeds), sorted(shown.keys)) == ([1, 2, 3, 4, 5], [])


def test_after_a_restart_a_party_does_not_sign_a_second_list(tmp_path, monkeypatch):
    liar, _ = play(tmp_path, LIES[0], monkeypatch)
    first = dict(liar.messages[CONFIRM])
    other = [liar.round.number_of(n) for n in WITHOUT_ADA]
    liar.lists = dict.fromkeys(NAMES, other)
    settings = ClientSettings.read(tmp_path / "bob.toml")
    journal = Journal(tmp_path / "bob.journal")
    party = _Party(settings, journal, journal.open("records"), lambda _: None)
    with pytest.raises((AggregationError, NetworkError)):
        asyncio.run(party.run(Records(np.array([0.1, 0.6]))))
    assert liar.messages[CONFIRM]["bob"] == first["bob"]
    assert liar.messages[REVEAL] == {}


def test_keys_of_the_server_in_a_partys_place_are_noticed_before_anything_is_shared(
    tmp_path, monkeypatch
):
    original = Liar.everything

    def swapped(self, stage):
        data = original(self, stage)
        if stage != ADVERTISE:
            return data
        mine = Advertisement(2, *(bytes([value]) * 32 for value in (1, 2, 3))).to_bytes()
        return data[:164] + mine + data[264:]

    monkeypatch.setattr(Liar, "put", lambda self, n, s, b: self.messages[s].update({n: b}))
    monkeypatch.setattr(Liar, "everything", swapped)
    liar, ended = play(tmp_path, LIES[0], monkeypatch)
    assert liar.messages[SHARE] == {}
    assert all("do not carry its signature" in str(error) for error in ended.values())
