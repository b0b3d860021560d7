"""A study between machines: keys, one folder of files for each role, and a check of all copies.

Nobody writes TOML. Each party and analyst makes its own key and sends the public half to whoever
sets the study up; everybody gets a folder with the study and its own configuration.
"""

from __future__ import annotations

import datetime
import shutil
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from noisewise.federated.network.certificates import (
    TrialAuthority,
    own_certificate,
    vouches_for,
)
from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.identity import public_key_text, read_public_key, write_new_key
from noisewise.federated.network.settings import ClientSettings, ServerSettings
from noisewise.federated.network.study import NAME, Member, Server, Study
from noisewise.federated.network.templates import member_text, server_text, study_text
from noisewise.federated.network.toml import read_toml

__all__ = [
    "Copy",
    "check_copy",
    "new_certificate",
    "new_key",
    "read_certificates",
    "read_members",
    "with_keys",
    "write_study",
]

#: Kept in a member's place until its key is made, for a trial.
TRIAL = "trial"
#: A certificate that ends sooner than this is named.
SOON = datetime.timedelta(days=30)


def new_key(name: str, folder: Path) -> Path:
    """Make a private key, ``NAME.key``, and ``NAME.public`` with the half to be sent around."""
    key, public = _new_files(name, folder, f"{name}.key", f"{name}.public")
    public.write_text(f"{name},{write_new_key(key)}\n", "utf-8")
    return public


def new_certificate(name: str, host: str, folder: Path) -> Path:
    """Make a server's TLS key, ``NAME.tls.key``, and ``NAME.crt``, which is sent around."""
    key, certificate = _new_files(name, folder, f"{name}.tls.key", f"{name}.crt")
    own_certificate(name, host, certificate, key)
    return certificate


def _new_files(name: str, folder: Path, *files: str) -> list[Path]:
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"name {name!r}: use letters, digits, '.', '_', '-', at most 64")
    for path in (folder / file for file in files):
        if path.exists():
            raise ConfigurationError(
                f"{str(path)!r} exists: a key is never replaced. Take another name or folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / file for file in files]


def read_certificates(paths: Sequence[Path], servers: Sequence[Server]) -> dict[str, str]:
    """Return the certificates that servers signed for themselves, by server; all or none.

    Parameters
    ----------
    paths : sequence of Path
        Made by :func:`new_certificate` on the servers' machines.
    servers : sequence of Server
    """
    from cryptography import x509

    found: dict[str, str] = {}
    for path in paths:
        try:
            text = path.read_text("utf-8")
            (certificate,) = x509.load_pem_x509_certificates(text.encode())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path.name!r} is no file with one certificate") from error
        known = [
            one for one in servers if vouches_for(certificate, urlsplit(one.url).hostname or "")
        ]
        if not known:
            raise ConfigurationError(
                f"{path.name!r} is not a certificate that one of the servers signed for its own "
                "host alone: one that could sign for others could pass for the other server, and "
                "read every record. Make it on the server's machine: noisewise key new NAME --host "
                "HOST. Certificates of a public authority are not given here."
            )
        found.update({one.name: text for one in known if one.name == path.stem or len(known) == 1})
    missing = [server.name for server in servers if server.name not in found]
    if found and missing:
        raise ConfigurationError(
            f"no --certificate for server {missing[0]!r} (NAME.crt, for the host of its URL): give "
            "one for every server, or none if all have theirs from a public authority"
        )
    return found


def read_members(given: Sequence[str], *, trial: bool) -> list[Member]:
    """Return parties or analysts as they were given.

    Parameters
    ----------
    given : sequence of str
        Each ``NAME=ed25519:...``, the path of a file of lines ``NAME,ed25519:...``, or in a trial a
        bare name.
    trial : bool
        Whether keys may be made here.
    """
    found: list[Member] = []
    for text in given:
        name, separator, key = text.partition("=")
        if separator and key.startswith("ed25519:"):
            found.append(Member(name, key))
        elif Path(text).is_file():
            lines = Path(text).read_text("utf-8").splitlines()
            if "PRIVATE KEY" in "".join(lines[:1]):
                raise ConfigurationError(
                    f"{Path(text).name!r} is a private key, which never leaves the machine of its "
                    "owner: ask for the .public file beside it. If it was sent, make a new key."
                )
            for line in lines:
                name, _, key = line.partition(",")
                found.append(Member(name.strip(), key.strip()))
        elif trial:
            found.append(Member(text, TRIAL))
        else:
            raise ConfigurationError(
                f"{text!r} is no file: give the .public file that 'noisewise key new' made for "
                "this member, or NAME=ed25519:..., or --trial to make all keys here"
            )
    for member in found:
        if member.key != TRIAL:
            read_public_key(member.key, f"member {member.name!r}")
    return found


def write_study(
    folder: Path,
    study: Study,
    *,
    trial: bool = False,
    keys: Path | None = None,
    certificates: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write a folder for each role, with the study and the role's own configuration.

    Parameters
    ----------
    folder : Path
        New; holds ``study.toml`` and one folder for each server, party and analyst.
    study : Study
        With the members' public keys.
    trial : bool
        Also make certificates for the servers, by an authority whose key is then forgotten.
    keys : Path, optional
        Where private keys that were made here lie; each is moved to its member's folder.
    certificates : mapping, optional
        What :func:`read_certificates` found: clients then trust these and nothing else.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(
            f"{str(folder)!r} is not empty: a study is written into a new folder"
        )
    text = study_text(study)
    _check_reads_back(text, study)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(text, "utf-8")
    authority = TrialAuthority.create("noisewise trial") if trial else None
    written = []
    for server in study.servers:
        place = _role(folder, server.name, text)
        address = urlsplit(server.url)
        listen = f"0.0.0.0:{address.port or 443}"
        if address.hostname in ("127.0.0.1", "localhost"):
            listen = f"127.0.0.1:{address.port or 443}"
        config = place / f"{server.name}.toml"
        noiseless = study.noiseless_test
        config.write_text(server_text(server.name, listen, noiseless_test=noiseless), "utf-8")
        if authority is not None:
            certificate, key = place / f"{server.name}.crt", place / f"{server.name}.tls.key"
            authority.issue([address.hostname or "localhost"], certificate, key)
        elif certificates:
            (place / f"{server.name}.crt").write_text(certificates[server.name], "utf-8")
        written.append(config)
    for member in (*study.parties, *study.analysts):
        place = _role(folder, member.name, text)
        if authority is not None:
            authority.write_certificate(place / "authority.crt")
        elif certificates:
            (place / "authority.crt").write_text("".join(certificates.values()), "utf-8")
        if keys is not None and (keys / f"{member.name}.key").exists():
            shutil.move(keys / f"{member.name}.key", place / f"{member.name}.key")
        config = place / f"{member.name}.toml"
        wait = 3600.0 if study.route == "masks" and member in study.parties else None
        trusted = "authority.crt" if authority is not None or certificates else "system"
        config.write_text(member_text(member.name, authority=trusted, wait=wait), "utf-8")
        written.append(config)
    return written


def _check_reads_back(text: str, study: Study) -> None:
    """Refuse a study whose file would mean something else, as with a quote in a URL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(text, "utf-8")
        if Study.read(path) != study:
            raise ConfigurationError("this study cannot be written down: see the servers' URLs")


def with_keys(members: Sequence[Member], folder: Path) -> list[Member]:
    """Make the keys that a trial's members do not have yet, in this folder."""
    return [
        Member(member.name, write_new_key(folder / f"{member.name}.key"))
        if member.key == TRIAL
        else member
        for member in members
    ]


def _role(folder: Path, name: str, study: str) -> Path:
    place = folder / name
    place.mkdir(mode=0o700)
    (place / "study.toml").write_text(study, "utf-8")
    return place


@dataclass(frozen=True)
class Copy:
    """What a check found in one file.

    Parameters
    ----------
    path : Path
    who : str
        The role: "server alpha", "party north", "study".
    study : Study or None
        None if it cannot be read.
    problems : tuple of str
    """

    path: Path
    who: str
    study: Study | None
    problems: tuple[str, ...] = ()


def check_copy(path: Path) -> Copy:
    """Check a study file or the configuration of a role: all that can be known on its machine."""
    try:
        file = read_toml(path)
        if file.has("listen"):
            return _server(path)
        if file.has("private_key"):
            return _member(path)
        return Copy(path, "study", Study.read(path))
    except (ConfigurationError, ValueError) as error:
        return Copy(path, "?", None, (str(error),))


def _server(path: Path) -> Copy:
    settings = ServerSettings.read(path)
    problems = []
    try:
        settings.tls()
    except ConfigurationError as error:
        problems.append(str(error))
    else:
        url = {server.name: server.url for server in settings.study.servers}[settings.name]
        problems += _certificate_problems(settings.certificate, urlsplit(url).hostname or "")
    problems += _too_open(settings.private_key)
    return Copy(path, f"server {settings.name}", settings.study, tuple(problems))


def _certificate_problems(path: Path, host: str) -> list[str]:
    """Return what clients would not accept: another name, or an end that is near."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    problems = []
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
    if left < SOON:
        problems.append(f"the certificate {path.name!r} ends within {SOON.days} days, or has ended")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [*problems, f"the certificate {path.name!r} names no host"]
    known = names.get_values_for_type(x509.DNSName)
    known += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    wild = "*." + host.partition(".")[2]
    if host not in known and wild not in known:
        problems.append(
            f"the certificate {path.name!r} is for {known}, but the study says {host!r}"
        )
    return problems


def _member(path: Path) -> Copy:
    settings = ClientSettings.read(path)
    study, name = settings.study, settings.signer.name
    parties = {member.name: member.key for member in study.parties}
    analysts = {member.name: member.key for member in study.analysts}
    problems = []
    if name not in {**parties, **analysts}:
        problems.append(f"{name!r} is neither a party nor an analyst of study {study.name!r}")
    elif {**parties, **analysts}[name] != public_key_text(settings.signer.key):
        problems.append(
            f"the private key of {name!r} is not the one whose public half stands in the study: "
            "servers would refuse its signature"
        )
    try:
        settings.tls()
    except (ConfigurationError, ssl.SSLError) as error:
        problems.append(str(error))
    file = read_toml(path)
    problems += _too_open(path.parent / file.text("private_key"))
    kind = "analyst" if name in analysts else "party"
    return Copy(path, f"{kind} {name}", study, tuple(problems))


def _too_open(key: Path) -> list[str]:
    if key.exists() and key.stat().st_mode & 0o077:
        return [f"others may read the private key {key.name!r}: chmod 600 {key.name}"]
    return []
