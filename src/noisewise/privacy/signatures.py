"""Who signed a file: SSH signatures, as made by ``ssh-keygen -Y sign``.

A detached signature (OpenSSH's PROTOCOL.sshsig) over the bytes of a file, and a list of those
whose signatures count (the ALLOWED SIGNERS file of ssh-keygen(1)). Read here, so that checking
needs no program beside this one. Keys: Ed25519, ECDSA on the NIST curves, RSA of at least 2048
bits with SHA-2. Certificates and keys in hardware are refused, never skipped over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from noisewise.errors import SignatureError

__all__ = ["NAMESPACE", "Signer", "verify_signature"]

#: What ssh-keygen(1) recommends for files: ``ssh-keygen -Y sign -n file``.
NAMESPACE = "file"

_MAGIC = b"SSHSIG"
_ARMOUR = re.compile(
    r"\s*-----BEGIN SSH SIGNATURE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END SSH SIGNATURE-----\s*"
)
_LEAST_RSA_BITS = 2048


@dataclass(frozen=True)
class Signer:
    """Who signed.

    Parameters
    ----------
    principals : str
        As the list of allowed signers names them.
    key : str
        Type and fingerprint of the key, as ssh-keygen shows it.
    """

    principals: str
    key: str


def verify_signature(
    data: bytes, signature: str, allowed_signers: str, *, now: datetime | None = None
) -> Signer:
    """Check a detached signature and say who made it.

    Parameters
    ----------
    data : bytes
        What was signed, byte by byte.
    signature : str
        As written by ``ssh-keygen -Y sign -n file -f key statement.json``.
    allowed_signers : str
        Lines of principals, options and public key, see ssh-keygen(1).
    now : datetime, optional
        When the signer must be allowed; by default now.

    Raises
    ------
    SignatureError
        If it is none, belongs to other data or to nobody on the list.
    """
    parts = _Parts(_unarmour(signature))
    if parts.take(len(_MAGIC)) != _MAGIC or parts.number() != 1:
        raise SignatureError("this is not an SSH signature of version 1")
    key, namespace, reserved, algorithm, proof = (parts.text() for _ in range(5))
    parts.end()
    if namespace != NAMESPACE.encode():
        raise SignatureError(
            f"the signature was made for the namespace {namespace[:60]!r}; sign with -n {NAMESPACE}"
        )
    if algorithm not in (b"sha256", b"sha512"):
        raise SignatureError(f"the signature's hash {algorithm[:60]!r} is not known")
    hashed = hashlib.new(algorithm.decode(), data).digest()
    message = _MAGIC + b"".join(_framed(part) for part in (namespace, reserved, algorithm, hashed))
    kind = _verify(key, proof, message)
    fingerprint = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    shown = f"{kind} SHA256:{fingerprint}"
    moment = now or datetime.now(timezone.utc)
    mine = [line for line in _lines(allowed_signers) if line.key == key]
    refusals = [line.refusal(moment) for line in mine]
    for line, refusal in zip(mine, refusals, strict=True):
        if refusal is None:
            return Signer(line.principals, shown)
    why = refusals[0] if refusals else "is not on your list"
    raise SignatureError(f"the signature is good, but its key ({shown}) {why}")


class _Parts:
    """The fields of SSH's binary form, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, size: int) -> bytes:
        if size > len(self._left):
            raise SignatureError("the signature is cut off")
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def text(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        if self._left:
            raise SignatureError("the signature has something behind its end")


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _unarmour(signature: str) -> bytes:
    found = _ARMOUR.fullmatch(signature)
    if found is None:
        raise SignatureError("this is not an SSH signature (BEGIN SSH SIGNATURE)")
    return _base64(found[1])


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise SignatureError(f"not base64: {error}") from error


def _verify(key: bytes, proof: bytes, message: bytes) -> str:
    """Check the innermost signature; returns the kind of key."""
    parts = _Parts(proof)
    algorithm, value = parts.text().decode("latin-1"), parts.text()
    name = _Parts(key).text().decode("latin-1")
    if algorithm.startswith("sk-") or "-cert-" in algorithm + name:
        raise SignatureError(
            f"keys in hardware and certificates ({algorithm[:60]}) are not supported; check with "
            "ssh-keygen -Y verify"
        )
    parts.end()
    try:
        public = load_ssh_public_key(f"{name} ".encode() + base64.b64encode(key))
        if isinstance(public, ed25519.Ed25519PublicKey) and algorithm == "ssh-ed25519":
            public.verify(value, message)
            return "ED25519"
        if isinstance(public, ec.EllipticCurvePublicKey) and algorithm == name:
            numbers = _Parts(value)
            r, s = (int.from_bytes(numbers.text(), "big") for _ in range(2))
            numbers.end()
            public.verify(encode_dss_signature(r, s), message, ec.ECDSA(_HASHES[public.key_size]))
            return "ECDSA"
        if isinstance(public, rsa.RSAPublicKey) and algorithm in _RSA:
            if public.key_size < _LEAST_RSA_BITS:
                raise SignatureError(f"an RSA key of {public.key_size} bits proves nothing")
            public.verify(value, message, padding.PKCS1v15(), _RSA[algorithm])
            return "RSA"
    except SignatureError:
        raise
    except InvalidSignature as error:
        raise SignatureError(
            "the signature does not belong to this file: one of them was changed after signing"
        ) from error
    except (
        ArithmeticError,
        LookupError,
        NotImplementedError,
        TypeError,
        UnsupportedAlgorithm,
        ValueError,
    ) as error:
        raise SignatureError("the signature's key cannot be read") from error
    raise SignatureError(f"a signature {algorithm[:60]!r} by a key {name[:60]!r} is not accepted")


_HASHES: dict[int, hashes.HashAlgorithm] = {
    256: hashes.SHA256(),
    384: hashes.SHA384(),
    521: hashes.SHA512(),
}
_RSA: dict[str, hashes.HashAlgorithm] = {
    "rsa-sha2-256": hashes.SHA256(),
    "rsa-sha2-512": hashes.SHA512(),
}


# -------------------------------------------------------------------- allowed signers

_OPTION = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?')
_SIGNER = re.compile(
    r'(?P<principals>"[^"]+"|[^ \t"]+)[ \t]+'
    rf"(?:(?P<options>{_OPTION.pattern}(?:,{_OPTION.pattern})*)[ \t]+)?"
    r"(?P<type>(?:ssh|ecdsa|sk)-[^ \t]+)[ \t]+(?P<key>[A-Za-z0-9+/=]+)(?:[ \t].*)?"
)


@dataclass(frozen=True)
class _Line:
    principals: str
    options: dict[str, str]
    key: bytes

    def refusal(self, now: datetime) -> str | None:
        """Return why the line does not allow a signature; options not understood do not."""
        for name, value in self.options.items():
            if name == "namespaces":
                allowed = _on_list(NAMESPACE, value)
            elif name == "valid-after":
                allowed = now >= _moment(value)
            elif name == "valid-before":
                allowed = now <= _moment(value)
            else:
                allowed = False
            if not allowed:
                return f"is on your list only with {name!a} {value!a}"
        return None


def _lines(text: str) -> Iterator[_Line]:
    """Read the list as OpenSSH does, or not at all.

    Lines end where OpenSSH ends them, at a newline; anything else that some program shows as the
    end of a line would make a comment here an entry there, and is refused.
    """
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole.removesuffix("\r").strip(" \t")
        if not line.replace("\t", " ").isprintable():
            raise SignatureError(
                f"line {number} of the list of allowed signers holds a character that is not shown"
            )
        if line and not line.startswith("#"):
            yield _line(line, number)


def _line(line: str, number: int) -> _Line:
    found = _SIGNER.fullmatch(line)
    if found is None:
        raise SignatureError(
            f"line {number} of the list of allowed signers is not 'principals [options] type key'"
        )
    options: dict[str, str] = {}
    for name, value in _OPTION.findall(found["options"] or ""):
        if name.lower() in options:
            raise SignatureError(
                f"line {number} of the list of allowed signers has the option {name!a} twice"
            )
        options[name.lower()] = value
    key = _base64(found["key"])
    if _Parts(key).text() != found["type"].encode():
        raise SignatureError(
            f"line {number} of the list of allowed signers says {found['type'][:60]!a}, which its "
            "key is not"
        )
    return _Line(found["principals"].strip('"'), options, key)


def _on_list(text: str, patterns: str) -> bool:
    """Whether a pattern of ssh_config(5) fits, and none that begins with '!'."""
    fits = False
    for pattern in patterns.split(","):
        form = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(form, text, re.DOTALL):
            if pattern.startswith("!"):
                return False
            fits = True
    return fits


def _moment(text: str) -> datetime:
    """YYYYMMDD, with HHMM or HHMMSS behind, in local time unless a Z follows."""
    digits, zone = text.removesuffix("Z"), text.endswith("Z")
    form = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(digits))
    if form is None or not digits.isdigit():
        raise SignatureError(f"{text!a} is no time of the form YYYYMMDD[HHMM[SS]][Z]")
    try:
        moment = datetime.strptime(digits, form)
    except ValueError as error:
        raise SignatureError(f"{text!a} is no time") from error
    return moment.replace(tzinfo=timezone.utc) if zone else moment.astimezone()
