"""Signatures and manifests: what is said is bound together, and nothing else passes."""

from __future__ import annotations

import hashlib
import json

import pytest

pytest.importorskip("aiohttp")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st

from noisewise.federated.network.identity import Credential, Signer
from noisewise.federated.network.manifest import Manifest, Share, frame, set_digest, unframe

KEY = Ed25519PrivateKey.generate()
SAID = {"server": "alpha", "study": "ab", "method": "PUT", "path": "/v1/x", "body": b"records"}
HEAD = {name: value for name, value in SAID.items() if name != "body"}


def test_a_signature_holds_for_its_request_and_survives_the_header():
    credential = Signer("north", KEY).sign(**SAID, time=5)
    assert Credential.parse(credential.header) == credential
    assert credential.digest == hashlib.sha256(SAID["body"]).hexdigest()
    assert credential.verify(KEY.public_key(), **HEAD)


@given(st.sampled_from(sorted(HEAD)), st.text("ab/", min_size=1, max_size=3))
def test_a_signature_holds_for_nothing_else(field, extra):
    credential = Signer("north", KEY).sign(**SAID, time=5)
    changed = {**HEAD, field: HEAD[field] + extra}
    assert not credential.verify(KEY.public_key(), **changed)
    other = Ed25519PrivateKey.generate().public_key()
    assert not credential.verify(other, **HEAD)


@pytest.mark.parametrize(
    ("field", "value"), [("time", 6), ("nonce", "0" * 32), ("digest", "0" * 64)]
)
def test_time_nonce_and_digest_are_signed(field, value):
    from dataclasses import replace

    credential = Signer("north", KEY).sign(**SAID, time=5)
    assert not replace(credential, **{field: value}).verify(KEY.public_key(), **HEAD)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer x",
        "Noisewise-Ed25519 a b c d",
        f"Noisewise-Ed25519 a 5 {'0' * 32} AA==",
        f"Noisewise-Ed25519 a 5 {'g' * 32} {'0' * 64} AA==",
        f"Noisewise-Ed25519 a 5 {'0' * 32} {'0' * 64} !",
        f"Noisewise-Ed25519 a -5 {'0' * 32} {'0' * 64} AA==",
        f"Noisewise-Ed25519 a \u0665 {'0' * 32} {'0' * 64} AA==",
        f"Noisewise-Ed25519 a 5 {'0' * 32} {'0' * 63} AA==",
    ],
)
def test_malformed_credentials_raise(header):
    with pytest.raises(ValueError):
        Credential.parse(header)


shares = st.dictionaries(st.sampled_from(["alpha", "beta", "gamma"]), st.binary(max_size=50))


@given(shares, st.integers(1, 20), st.none() | st.integers(0, 1 << 40))
def test_a_manifest_survives_its_bytes_and_accepts_exactly_its_pieces(data, size, records):
    manifest = Manifest.of(
        study="s", party="p", records=records, common="c", shares=data, piece_size=size
    )
    again = Manifest.decode(manifest.encoded)
    assert again == manifest
    assert again.identifier == manifest.identifier
    for name, share in again.shares.items():
        pieces = [data[name][i : i + size] for i in range(0, len(data[name]), size)] or [b""]
        assert len(pieces) == len(share.digests)
        for number, piece in enumerate(pieces):
            assert share.accepts(number, piece)
            assert not share.accepts(number, piece + b"x")
            assert not share.accepts(number + len(pieces), piece)


def test_two_contributions_of_the_same_records_are_different():
    made = [
        Manifest.of(
            study="s", party="p", records=1, common="", shares={"a": b"x"}, piece_size=9
        ).identifier
        for _ in range(2)
    ]
    assert made[0] != made[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("shares"),
        lambda c: c.update(records=-1),
        lambda c: c.update(records=True),
        lambda c: c.update(extra=1),
        lambda c: c["shares"]["a"].update(size=100),
        lambda c: c["shares"]["a"].update(piece_size=0),
        lambda c: c["shares"]["a"].update(digests=[]),
        lambda c: c.update(format="other"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change):
    manifest = Manifest.of(
        study="s", party="p", records=1, common="", shares={"a": b"x"}, piece_size=9
    )
    content = json.loads(manifest.encoded)
    change(content)
    with pytest.raises(ValueError):
        Manifest.decode(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def test_another_spelling_of_a_manifest_is_refused():
    manifest = Manifest.of(
        study="s", party="p", records=1, common="", shares={"a": b"x"}, piece_size=9
    )
    with pytest.raises(ValueError, match="canonical"):
        Manifest.decode(json.dumps(json.loads(manifest.encoded)).encode())


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_frames_come_apart_again_and_cut_ones_raise(head, body):
    assert unframe(frame(head, body)) == (head, body)
    for end in range(4 + len(head)):
        with pytest.raises(ValueError, match="cut short"):
            unframe(frame(head, body)[:end])


def test_the_digest_of_a_set_knows_no_order():
    names = [Share.of(bytes([i]), 1).digests[0] for i in range(5)]
    assert set_digest(names) == set_digest(names[::-1])
    assert set_digest(names) != set_digest(names[1:])
