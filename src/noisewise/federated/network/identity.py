"""Who sent a request: Ed25519 signatures over everything that a request says.

A party or analyst is known by a public key in the study file. It signs, for every request,

    version, server, study fingerprint, method, path, time, nonce, SHA-256 of the body,

one to a line. All of these stand in the request's head, so a server knows who is asking before it
reads the body, and then compares the body with its SHA-256. So a request cannot be changed, sent on
to the other server, or moved to another study; and since a server accepts a nonce once and only
near its time, it cannot be sent twice. TLS around it keeps it secret and proves the server's name.
Signatures are checked by the server itself, so a TLS-terminating proxy in a hospital's network
changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from noisewise.federated.network.errors import ConfigurationError

__all__ = [
    "SCHEME",
    "Credential",
    "OldRequestError",
    "Signer",
    "is_vouched",
    "public_key_text",
    "read_public_key",
    "write_new_key",
]

SCHEME = "Noisewise-Ed25519"
_VERSION = "noisewise-request-2"
_PASSED_ON = "noisewise-passed-on-1"
_PREFIX = "ed25519:"
_NONCE, _DIGEST = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{64}")


class OldRequestError(ValueError):
    """A request that is signed as version 0.1 of the library did it."""


@dataclass(frozen=True)
class Credential:
    """What a request says about its sender.

    Parameters
    ----------
    name : str
        Of the party or analyst, as in the study file.
    time : int
        Seconds since 1970, by the sender's clock.
    nonce : str
        32 hexadecimal digits, never used again.
    digest : str
        SHA-256 of the body, 64 hexadecimal digits.
    signature : bytes
    """

    name: str
    time: int
    nonce: str
    digest: str
    signature: bytes

    @property
    def header(self) -> str:
        """The value of the Authorization header."""
        signature = base64.b64encode(self.signature).decode()
        return f"{SCHEME} {self.name} {self.time} {self.nonce} {self.digest} {signature}"

    @classmethod
    def parse(cls, header: str) -> Credential:
        """Read the Authorization header; ValueError if it is malformed."""
        words = header.split(" ")
        if words[0] == SCHEME and len(words) == 5:
            raise OldRequestError("a request of version 0.1")
        scheme, name, time, nonce, digest, signature = words
        if scheme != SCHEME or not (time.isascii() and time.isdecimal()) or len(time) > 12:
            raise ValueError("malformed Authorization header")
        if not _NONCE.fullmatch(nonce) or not _DIGEST.fullmatch(digest):
            raise ValueError("malformed Authorization header")
        try:
            return cls(name, int(time), nonce, digest, base64.b64decode(signature, validate=True))
        except binascii.Error as error:
            raise ValueError("malformed signature") from error

    def verify(
        self, key: Ed25519PublicKey, *, server: str, study: str, method: str, path: str
    ) -> bool:
        """Whether the holder of `key` signed this request; its body is compared apart."""
        said = _statement(server, study, method, path, self.time, self.nonce, self.digest)
        try:
            key.verify(self.signature, said)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Signer:
    """Signs requests in the name of a party or analyst."""

    name: str
    key: Ed25519PrivateKey

    @classmethod
    def read(cls, name: str, path: Path) -> Signer:
        """Read a private key file (PEM, not encrypted)."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise ConfigurationError(
                f"no private key at {str(path)!r} that can be read: move the file that 'noisewise "
                f"key new {name}' made on this machine there"
            ) from error
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{str(path)!r} is not an unencrypted PEM key: {error}"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigurationError(
                f"{str(path)!r} holds a {type(key).__name__}; make an Ed25519 key, for example "
                "with: openssl genpkey -algorithm ed25519 -out signing.key"
            )
        return cls(name, key)

    def vouch(self, purpose: str, study: str, data: bytes) -> bytes:
        """Sign data that is passed on to others, for one purpose in one study: 64 bytes."""
        return self.key.sign(_vouched(purpose, study, self.name, data))

    def sign(
        self, *, server: str, study: str, method: str, path: str, body: bytes, time: int
    ) -> Credential:
        """Sign one request with a nonce that was never used before."""
        nonce, digest = secrets.token_hex(16), hashlib.sha256(body).hexdigest()
        said = _statement(server, study, method, path, time, nonce, digest)
        return Credential(self.name, time, nonce, digest, self.key.sign(said))


def _statement(
    server: str, study: str, method: str, path: str, time: int, nonce: str, digest: str
) -> bytes:
    lines = (_VERSION, server, study, method, path, str(time), nonce, digest)
    return "\n".join(lines).encode()


def _vouched(purpose: str, study: str, name: str, data: bytes) -> bytes:
    lines = (_PASSED_ON, purpose, study, name, hashlib.sha256(data).hexdigest())
    return "\n".join(lines).encode()


def is_vouched(
    key: Ed25519PublicKey, signature: bytes, *, purpose: str, study: str, name: str, data: bytes
) -> bool:
    """Whether the holder of `key` signed data with :meth:`Signer.vouch`."""
    try:
        key.verify(signature, _vouched(purpose, study, name, data))
    except InvalidSignature:
        return False
    return True


def public_key_text(key: Ed25519PrivateKey) -> str:
    """Return the public half as it stands in a study file."""
    raw = key.public_key().public_bytes_raw()
    return _PREFIX + base64.b64encode(raw).decode()


def read_public_key(text: str, where: str) -> Ed25519PublicKey:
    """Read a public key as it stands in a study file."""
    try:
        if not text.startswith(_PREFIX):
            raise ValueError(f"it must begin with {_PREFIX!r}")
        raw = base64.b64decode(text[len(_PREFIX) :], validate=True)
        return Ed25519PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {text[:60]!r} is not a public key: {error}") from error


def write_new_key(path: Path) -> str:
    """Make a private key that only its owner may read; return the public half."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return public_key_text(key)
