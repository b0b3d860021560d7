"""Strangers and slow senders hold nobody up, and whatever they send is refused in words.

Nothing here measures time: a server that waited for what never comes would answer these requests
in another order, or with another status.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from federated.network.raw import ask
from noisewise.federated.network import ClientSettings, ServerSettings
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.identity import SCHEME, Credential
from noisewise.federated.network.manifest import Manifest, frame
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.outbox import Outbox
from noisewise.federated.network.reading import read_json
from noisewise.federated.network.state import ServerState

SECONDS = 60  # far longer than any of these tests takes
PATH = "/v1/contributions/" + "0" * 64


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flood")
    made = Federation.create(
        folder, np.random.default_rng(0), parties=[f"p{i}" for i in range(6)], route="vectors"
    )
    for name in made.trial.servers:
        path = made.trial.config(name)
        text = path.read_text().replace("seconds = 30", f"seconds = {SECONDS}")
        path.write_text(text + "requests = 4\nrequests_of_sender = 6\narriving = 2097152\n")
    with made:
        yield made


def connect(federation, stack):
    trust = ssl.create_default_context(cafile=federation.trial.folder / "authority.crt")
    plain = socket.create_connection(("127.0.0.1", federation.trial.ports[0]), 20)
    return stack.enter_context(trust.wrap_socket(plain, server_hostname="localhost"))


def credential(federation, name, body=b"x" * 1000, method="PUT"):
    settings = ClientSettings.read(federation.trial.config(name))
    return settings.signer.sign(
        server="alpha", study=settings.study.fingerprint, method=method, path=PATH, body=body,
        time=int(time.time()),
    )  # fmt: skip


def send_head(line, header, length=1000):
    head = f"PUT {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\n"
    line.sendall(head.encode() + f"Content-Length: {length}\r\n\r\n".encode())


def status(line):
    return int(line.recv(4096).split(b" ")[1])


def is_silent(line):
    """Whether no answer is there; TLS may have said something of its own."""
    line.settimeout(0)
    try:
        line.recv(1)
    except (ssl.SSLWantReadError, BlockingIOError):
        return True
    finally:
        line.settimeout(20)
    return False


def test_junk_signatures_are_refused_before_a_body_comes_and_take_no_place(federation):
    with contextlib.ExitStack() as stack:
        lines = [connect(federation, stack) for _ in range(24)]
        for number, line in enumerate(lines):
            real = credential(federation, f"p{number % 6}")
            junk = Credential(real.name, real.time, real.nonce, real.digest, bytes(64))
            send_head(line, junk.header)
        assert ask(federation, "alpha", "GET", "/v1/contributions")[0] == 200
        # No body was ever sent, and none was waited for.
        assert {status(line) for line in lines} == {401}


def test_slow_bodies_take_no_place_and_one_sender_only_has_so_many(federation):
    with contextlib.ExitStack() as stack:
        slow = [connect(federation, stack) for _ in range(6)]
        for line in slow:
            send_head(line, credential(federation, "p1").header)
            line.sendall(b"xx")
        others = [connect(federation, stack) for _ in range(5)]
        for line in others:
            send_head(line, credential(federation, "p2").header)
        # Eleven bodies are waited for; four requests are worked on at once. The seventh of p1 is
        # refused, everybody else is served.
        more = connect(federation, stack)
        send_head(more, credential(federation, "p1").header)
        assert status(more) == 429
        for name in ("p2", "p3", "p4"):
            found, answer, _ = ask(federation, "alpha", "GET", PATH, sender=name)
            assert (found, answer["known"]) == (200, False)
        assert all(is_silent(line) for line in [*slow, *others])
        # When a slow one is over, its sender may send again.
        slow[0].sendall(b"x" * 998)
        assert status(slow[0]) == 400
        again = connect(federation, stack)
        send_head(again, credential(federation, "p1").header)
        again.sendall(b"x" * 1000)
        assert status(again) == 400


def test_what_arrives_at_once_is_bounded_by_what_was_sent_not_by_what_was_announced(federation):
    big = b"x" * 1_500_000

    def second_is_refused():
        with contextlib.ExitStack() as stack:
            lines = [connect(federation, stack) for _ in range(3)]
            for line, name in zip(lines, ("p1", "p2", "p3"), strict=True):
                send_head(line, credential(federation, name, big).header, len(big))
            # Announced: 4.5 MB of 2 MiB. Sent: nothing, so everybody else may send.
            assert ask(federation, "alpha", "PUT", PATH, b"x" * 1000, sender="p4")[0] == 400
            for line in lines[:2]:
                with contextlib.suppress(OSError):  # refused while we were still sending
                    line.sendall(big[:-1])
            try:
                return status(lines[1]) == 503
            except TimeoutError:
                return False  # on a busy machine the first ran out of time before the second sent

    assert any(second_is_refused() for _ in range(3))


def test_a_request_as_version_0_1_signed_it_is_told_to_update(federation):
    with contextlib.ExitStack() as stack:
        line = connect(federation, stack)
        real = credential(federation, "p1")
        words = real.header.split(" ")
        send_head(line, " ".join([SCHEME, *words[1:4], words[5]]))
        answer = line.recv(4096)
        assert b"401" in answer
        assert b"update noisewise" in answer


# ------------------------------------------------------------------------- hostile JSON

HOSTILE = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 200 + b"]" * 200,
    b'{"question": ' + b"[" * 60 + b"]" * 60 + b', "set": "a", "excluded": []}',
    b'{"set": 1, "set": 2}',
    b'{"question": NaN, "set": "a", "excluded": []}',
    b'{"question": 1e999, "set": "a", "excluded": []}',
    b'{"question": ' + b"9" * 100_000 + b', "set": "a", "excluded": []}',
    b'{"question": {}, "set": "\\ud800", "excluded": []}',
    b'{"question": {}, "set": "a", "excluded": [[]]}',
    b'{"question": {}, "set": "a", "excluded": {}}',
    b'{"question": {}, "set": null, "excluded": []}',
    b'{"question": [], "set": "a", "excluded": []}',
    b'{"question": {"kind": []}, "set": "a", "excluded": []}',
    b'{"question": {"kind": "roc", "domain": []}, "set": "a", "excluded": []}',
    b'{"question": {"kind": {"a": 1}, "domain": {}}, "set": "a", "excluded": []}',
    b"\xff\xfe[\0]\0",
    b"\xff",
    b"",
    b"null",
    b"1",
    b'"text"',
    b"[]",
    b"{}",
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_refused_with_400_wherever_it_is_sent(federation, body):
    for path, sender in (("/v1/releases/x", "analyst"), ("/v1/reservations/x", "analyst")):
        found, answer, _ = ask(federation, "alpha", "PUT", path, body, sender=sender)
        assert (found, len(answer["error"]) > 10) == (400, True), (path, answer)
    for sent in (body, frame(body, b""), frame(body, body)):
        found, answer, _ = ask(federation, "alpha", "PUT", PATH, sent, sender="p5")
        assert found == 400, answer


def fields_of(federation):
    measurement = Measurement.of(federation.study, federation.question())
    return json.loads(measurement.encoded)


NASTY = [
    None, True, -1, 0, 10**30, -(10**30), 1e308, 5e-324, -0.0, "", "x", "\0", "é" * 5000, [], {},
    [[]], [None], {"a": None}, {"kind": "roc"}, [0.5] * 5000, "add-remove", "nan",
]  # fmt: skip


def test_questions_with_any_field_replaced_are_refused_and_never_break_the_server(federation):
    """Every field of a question and of its cells, and some at random, by something unexpected."""
    right = fields_of(federation)
    study, rng = federation.study, random.Random(0)
    spoilt = []
    for value in NASTY:
        spoilt += [{**right, key: value} for key in right]
        spoilt += [{**right, "domain": {**right["domain"], key: value}} for key in right["domain"]]
        spoilt.append({**right, "more": value})
    for _ in range(200):
        fields = json.loads(json.dumps(right))
        for _ in range(rng.randint(1, 4)):
            place = rng.choice([fields, fields["domain"]]) if "domain" in fields else fields
            if isinstance(place, dict) and place:
                key = rng.choice(sorted(place))
                if rng.random() < 0.5:
                    place[key] = rng.choice(NASTY)
                else:
                    del place[key]
            if not isinstance(fields.get("domain"), dict):
                break
        spoilt.append(fields)
    accepted, statuses = [], set()
    for fields in spoilt:
        try:
            accepted.append(Measurement.decode(study, fields))
        except RefusedError as error:
            statuses.add(error.status)
    assert statuses == {400, 422}
    # What is accepted is a question of this study all the same.
    for found in accepted:
        assert found.question.domain.digest == federation.question().domain.digest


def test_manifests_with_any_field_replaced_are_refused(federation):
    shares = {"alpha": b"abc", "beta": b"def"}
    manifest = Manifest.of(study="s", party="p", records=1, common="", shares=shares, piece_size=2)
    right = json.loads(manifest.encoded)
    for value in NASTY:
        for key in [*right, "more"]:
            for fields in ({**right, key: value}, {**right, "shares": {"alpha": {key: value}}}):
                if fields == right:
                    continue
                data = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
                try:
                    found = Manifest.decode(data)
                except ValueError:
                    continue
                assert found.encoded == data


def test_strict_json_reads_what_json_is():
    for text in ("[]", "{}", '{"a": [1, -2.5e3, "x", null, true]}', '"\\u00e9"', "0"):
        assert read_json(text.encode()) == json.loads(text)
    wrong = ['{"a": 1, "a": 1}', "[NaN]", "[Infinity]", "[1e400]", "1" * 41, "[" * 40 + "]" * 40]
    for text in wrong:
        with pytest.raises(ValueError, match=r"JSON|nested"):
            read_json(text.encode())


# --------------------------------------------------------------------------------- modes


def test_state_that_existed_with_wide_modes_is_its_owners_alone(federation, tmp_path):
    settings = ServerSettings.read(federation.trial.config("alpha"))
    folder = tmp_path / "state"
    own = replace(settings, state=folder)
    ServerState(own).close()
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o666)
    (folder / "contributions.sqlite-wal").touch(0o666)
    before = os.umask(0)
    try:
        state = ServerState(own)
        state.marks.start()
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        state.close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}, modes
    assert {"contributions.sqlite", "budget.ledger", "witness.json", "server.lock"} <= set(modes)


def test_a_partys_state_that_existed_with_wide_modes_is_its_owners_alone(federation, tmp_path):
    state = tmp_path / "party"
    outbox = Outbox.of(state, federation.study, "p0")
    outbox.folder.mkdir(parents=True)
    for folder in (state, outbox.folder):
        folder.chmod(0o777)
    (outbox.folder / "receipt.json").touch()
    (outbox.folder / "receipt.json").chmod(0o666)
    before = os.umask(0)
    try:
        outbox.prepare(federation.data["p0"])
        outbox.acknowledge("0" * 64, {"alpha": 1})
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in [state, *state.rglob("*")]}
    wrong = {path.name: oct(mode) for path, mode in found.items() if mode & 0o077}
    assert wrong == {}
