"""Who may ask for what: signatures, nonces, clocks, sizes, time, TLS."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import sqlite3
import ssl
import time

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from federated.network.raw import ask
from noisewise.federated.network import ClientSettings, UnreachableError, contribute
from noisewise.federated.network.certificates import TrialAuthority
from noisewise.federated.network.manifest import Manifest, frame
from noisewise.federated.network.routes import route_of


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    made = Federation.create(folder, np.random.default_rng(0), parties=[f"p{i}" for i in range(12)])
    for name in made.trial.servers:
        path = made.trial.config(name)
        path.write_text(path.read_text().replace("seconds = 30", "seconds = 3"))
    with made:
        yield made


def shares_of(federation, party):
    shares = route_of(federation.study).make(federation.data[party])
    return dict(zip(federation.trial.servers, shares, strict=True))


def manifest_of(federation, party, shares, **changes):
    count = len(federation.data[party])
    try:
        common = route_of(federation.study).check(0, shares["alpha"], count)
    except ValueError:
        common = ""
    fields = {
        "study": federation.study.fingerprint,
        "party": party,
        "records": count,
        "common": common,
        "shares": shares,
        "piece_size": 1 << 20,
        **changes,
    }
    return Manifest.of(**fields)


def upload(federation, party, server="alpha", *, manifest=None, data=None, **options):
    shares = shares_of(federation, party)
    manifest = manifest or manifest_of(federation, party, shares)
    body = frame(manifest.encoded, shares[server] if data is None else data)
    path = f"/v1/contributions/{manifest.identifier}"
    status, answer, _ = ask(federation, server, "PUT", path, body, sender=party, **options)
    return status, answer


def test_health_needs_no_signature_and_tells_the_fingerprint(federation):
    status, answer, _ = ask(federation, "alpha", "GET", "/v1/health", signed=False)
    assert status == 200
    assert answer["fingerprint"] == federation.study.fingerprint


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"signed": False}, 401, "unsigned"),
        ({"sender": "p0"}, 403, "unknown-sender"),
        ({"name": "nobody"}, 403, "unknown-sender"),
        ({"signed_server": "beta"}, 401, "signature"),
        ({"signed_path": "/v1/progress"}, 401, "signature"),
        ({"signed_body": b"x"}, 401, "signature"),
        ({"study": "0" * 64}, 401, "signature"),
        ({"offset": 1000}, 401, "clock"),
        ({"offset": -1000}, 401, "clock"),
    ],
)
def test_requests_that_are_not_the_senders_own_are_refused(federation, options, status, code):
    found, answer, _ = ask(federation, "alpha", "GET", "/v1/contributions", **options)
    assert (found, answer["code"]) == (status, code)
    assert len(answer["error"]) > 10


def test_a_signed_request_is_accepted_once(federation):
    status, _, credential = ask(federation, "alpha", "GET", "/v1/contributions")
    assert status == 200
    status, answer, _ = ask(federation, "alpha", "GET", "/v1/contributions", credential=credential)
    assert (status, answer["code"]) == (409, "replayed")


def test_a_replayed_request_is_refused_after_a_restart_too(federation):
    status, _, credential = ask(federation, "beta", "GET", "/v1/contributions")
    assert status == 200
    federation.restart("beta")
    status, answer, _ = ask(federation, "beta", "GET", "/v1/contributions", credential=credential)
    assert (status, answer["code"]) == (409, "replayed")


def test_an_analyst_cannot_contribute_and_a_party_cannot_collect(federation):
    status, answer, _ = ask(federation, "alpha", "PUT", "/v1/contributions/" + "0" * 64, b"")
    assert (status, answer["code"]) == (403, "unknown-sender")
    status, answer, _ = ask(federation, "alpha", "PUT", "/v1/releases/x", b"{}", sender="p0")
    assert (status, answer["code"]) == (403, "unknown-sender")


def test_a_party_contributes_once_and_the_same_again_changes_nothing(federation):
    shares = shares_of(federation, "p1")
    manifest = manifest_of(federation, "p1", shares)
    for _ in range(2):
        status, answer = upload(federation, "p1", manifest=manifest, data=shares["alpha"])
        assert (status, answer) == (200, {"complete": True, "missing": []})
    status, answer = upload(federation, "p1")
    assert (status, answer["code"]) == (409, "other-contribution")


@pytest.mark.parametrize("route", ["vectors", "functions"])
def test_nobody_withdraws_the_contribution_of_another_party(tmp_path, route):
    made = Federation.create(tmp_path, np.random.default_rng(0), route=route, records=3)
    with made:
        owner, other = list(made.data)[:2]
        shares = shares_of(made, owner)
        manifest = manifest_of(made, owner, shares)
        path = f"/v1/contributions/{manifest.identifier}"
        third = list(made.data)[2]
        for server in made.trial.servers:
            # Whoever knows the identifier before the contribution has arrived stops nothing either.
            assert ask(made, server, "DELETE", path, sender=third)[0] == 200
            status, _ = upload(made, owner, server, manifest=manifest, data=shares[server])
            assert status == 200
            assert ask(made, server, "DELETE", path, sender=third)[0] == 200  # its own, as before
            status, answer, _ = ask(made, server, "DELETE", path, sender=other)
            assert (status, answer["code"]) == (404, "unknown")
            status, answer, _ = ask(made, server, "DELETE", path)
            assert (status, answer["code"]) == (403, "unknown-sender")
            state = ask(made, server, "GET", path, sender=owner)[1]
            assert state == {"known": True, "complete": True, "missing": []}
        for server in made.trial.servers:
            with sqlite3.connect(tmp_path / f"{server}-state" / "contributions.sqlite") as found:
                rows = found.execute("SELECT party, data FROM shares").fetchall()
            assert rows == [(owner, shares[server])]
            status, _, _ = ask(made, server, "DELETE", path, sender=owner)
            assert status == 200
            assert ask(made, server, "GET", path, sender=owner)[0] == 410


def test_a_contribution_in_another_partys_name_is_refused(federation):
    manifest = manifest_of(federation, "p3", shares_of(federation, "p3"))
    status, answer = upload(federation, "p2", manifest=manifest)
    assert (status, answer["code"]) == (403, "not-yours")


@pytest.mark.parametrize("change", ["truncated", "other bytes", "other server", "other identifier"])
def test_shares_that_the_manifest_did_not_announce_are_refused(federation, change):
    shares = shares_of(federation, "p4")
    manifest = manifest_of(federation, "p4", shares)
    data = shares["alpha"]
    if change == "truncated":
        data = data[:-1]
    elif change == "other bytes":
        data = data[:-1] + bytes([data[-1] ^ 1])
    elif change == "other server":
        data = shares["beta"]
    path = "/v1/contributions/" + (
        hashlib.sha256(b"").hexdigest() if change == "other identifier" else manifest.identifier
    )
    body = frame(manifest.encoded, data)
    status, answer, _ = ask(federation, "alpha", "PUT", path, body, sender="p4")
    assert status == 422
    assert answer["code"] in ("wrong-piece", "wrong-manifest")


def test_keys_that_are_not_keys_are_refused_although_announced(federation):
    shares = shares_of(federation, "p5")
    swapped = {"alpha": shares["beta"], "beta": shares["alpha"]}
    for wrong in (swapped, {**shares, "alpha": bytes(len(shares["alpha"]))}):
        manifest = manifest_of(federation, "p5", wrong)
        status, answer = upload(federation, "p5", manifest=manifest, data=wrong["alpha"])
        assert (status, answer["code"]) == (422, "bad-share")


def test_keys_that_are_no_pair_are_refused_by_the_second_server(federation):
    one, two = shares_of(federation, "p10"), shares_of(federation, "p10")
    mixed = {"alpha": one["alpha"], "beta": two["beta"]}
    manifest = manifest_of(federation, "p10", mixed)
    status, _ = upload(federation, "p10", "alpha", manifest=manifest, data=mixed["alpha"])
    assert status == 200
    status, answer = upload(federation, "p10", "beta", manifest=manifest, data=mixed["beta"])
    assert (status, answer["code"]) == (422, "bad-share")
    assert "no pair" in answer["error"]


def test_a_share_of_a_wrong_length_is_refused_although_announced(federation):
    shares = {name: data + b"x" for name, data in shares_of(federation, "p6").items()}
    manifest = manifest_of(federation, "p6", shares)
    status, answer = upload(federation, "p6", manifest=manifest, data=shares["alpha"])
    assert (status, answer["code"]) == (422, "wrong-size")


def test_requests_beyond_the_limit_are_refused_before_they_are_read(federation):
    body = bytes(3 << 20)
    path = "/v1/contributions/" + "0" * 64
    try:
        status, answer, _ = ask(federation, "alpha", "PUT", path, body, sender="p7")
    except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
        return  # refused and closed while we were still sending
    assert (status, answer["code"]) == (413, "too-large")


def test_a_request_that_trickles_in_is_given_up(federation):
    """The rest of the body never comes; the server answers or hangs up, and serves others."""
    trial = federation.trial
    settings = ClientSettings.read(trial.config("p8"))
    path = "/v1/contributions/" + "0" * 64
    credential = settings.signer.sign(
        server="alpha", study=settings.study.fingerprint, method="PUT", path=path, body=b"",
        time=int(time.time()),
    )  # fmt: skip
    trust = ssl.create_default_context(cafile=trial.folder / "authority.crt")
    plain = socket.create_connection(("127.0.0.1", trial.ports[0]))
    with trust.wrap_socket(plain, server_hostname="localhost") as line:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {credential.header}\r\n"
        line.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nabc")
        line.settimeout(30)
        assert b"408" in line.recv(4096)
    assert ask(federation, "alpha", "GET", "/v1/health", signed=False)[0] == 200


def test_a_server_with_a_certificate_of_someone_else_is_not_trusted(federation, tmp_path):
    other = tmp_path / "other.crt"
    TrialAuthority.create().write_certificate(other)
    config = federation.trial.config("p9")
    settings = ClientSettings.read(config)
    wrong = ClientSettings(
        settings.signer, settings.study, other, tmp_path / "state", seconds=15.0, patience=0.5
    )
    with pytest.raises(UnreachableError, match="certificate that the authority did not sign"):
        contribute(wrong, federation.data["p9"])


def test_plain_http_is_not_spoken(federation):
    with socket.create_connection(("127.0.0.1", federation.trial.ports[0])) as line:
        line.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        line.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert b"fingerprint" not in line.recv(4096)
