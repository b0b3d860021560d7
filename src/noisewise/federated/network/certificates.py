"""Certificates of servers that have none from their organisation's own authority.

* :class:`TrialAuthority`: a small authority for a trial on a few machines;
* :func:`own_certificate`: a certificate that a server signs for itself, and that its study hands
  to everybody. It vouches for its own host and for nothing else, which :func:`vouches_for` checks:
  a server whose certificate could sign others could pass for the second server, and read all.

Nothing here renews or revokes. Elliptic-curve keys (P-256), valid for a year, names checked by
the clients.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["TrialAuthority", "own_certificate", "vouches_for"]

_YEAR = datetime.timedelta(days=365)


@dataclass(frozen=True)
class TrialAuthority:
    """Signs server certificates; its own certificate is what the clients trust."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str = "noisewise trial authority") -> TrialAuthority:
        """Make a new authority; its key lives as long as this object."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        return cls(builder.sign(key, hashes.SHA256()), key)

    def write_certificate(self, path: Path) -> None:
        """Write the certificate that clients need (PEM)."""
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, hosts: Sequence[str], certificate: Path, key: Path) -> None:
        """Write a server certificate for these host names or addresses, and its key."""
        secret = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        builder = _of_server(hosts, subject, self.certificate.subject, secret)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        _write(builder.sign(self.key, hashes.SHA256()), secret, certificate, key)


def own_certificate(name: str, host: str, certificate: Path, key: Path) -> None:
    """Write a server's certificate for a host, signed by its own key, and that key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    # Clients look an issuer up by its name, so two servers of one host need different ones.
    owner = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64]), owner])
    signed = _of_server([host], subject, subject, secret).sign(secret, hashes.SHA256())
    _write(signed, secret, certificate, key)


def vouches_for(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate is for this one host, by itself, and can sign for nobody else."""
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        signs = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        certificate.verify_directly_issued_by(certificate)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
        return False
    return not signs and list(names) == [_general_name(host)]


def _of_server(
    hosts: Sequence[str],
    subject: x509.Name,
    issuer: x509.Name,
    secret: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    builder = _builder(subject, issuer, secret.public_key())
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return builder.add_extension(usage, critical=False)


def _write(
    signed: x509.Certificate, secret: ec.EllipticCurvePrivateKey, certificate: Path, key: Path
) -> None:
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pem = secret.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _YEAR)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
