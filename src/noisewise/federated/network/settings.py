"""The configuration files of a server, a party and an analyst."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.identity import Signer
from noisewise.federated.network.study import Study
from noisewise.federated.network.toml import Section, read_toml

__all__ = ["ClientSettings", "Limits", "ServerSettings"]


@dataclass(frozen=True)
class Limits:
    """What a server takes from one request or one party.

    Parameters
    ----------
    largest_request : int
        Bytes of one request; longer contributions are sent in pieces.
    largest_contribution : int
        Bytes of all pieces of one contribution.
    seconds : float
        Within which a request must have arrived.
    clock_seconds : float
        How far a sender's clock may be off. Nonces are remembered for twice as long.
    requests : int
        That are worked on at once; others wait.
    requests_of_sender : int
        Of one party or analyst under way at once; more are refused.
    arriving : int
        Bytes of all requests together that have not arrived whole; more are refused.
    reservation_seconds : float
        For which an analyst's reservation holds withdrawals up while nothing is made of it.
    """

    largest_request: int = 2 << 20
    largest_contribution: int = 256 << 20
    seconds: float = 30.0
    clock_seconds: float = 300.0
    requests: int = 512
    requests_of_sender: int = 16
    arriving: int = 256 << 20
    reservation_seconds: float = 600.0


@dataclass(frozen=True)
class ServerSettings:
    """One aggregation server.

    Parameters
    ----------
    name : str
        As in the study file.
    host, port
        Where to listen.
    state : Path
        Folder of everything that must survive a restart.
    certificate, private_key : Path
        For TLS.
    study : Study
    limits : Limits
    allow_noiseless_test : bool
        Serve a study without noise, of made-up records.
    """

    name: str
    host: str
    port: int
    state: Path
    certificate: Path
    private_key: Path
    study: Study
    limits: Limits = field(default_factory=Limits)
    allow_noiseless_test: bool = False

    def __post_init__(self) -> None:
        self.study.server_index(self.name)
        if self.study.noiseless_test and not self.allow_noiseless_test:
            raise ConfigurationError(
                f"study {self.study.name!r} adds no noise. This server serves it only with "
                "allow_noiseless_test = true, which is for tests with made-up records"
            )

    @classmethod
    def read(cls, path: Path) -> ServerSettings:
        """Read a server's configuration; paths in it are relative to the file."""
        file = read_toml(path)
        host, port = _address(file)
        settings = cls(
            name=file.text("name"),
            host=host,
            port=port,
            state=path.parent / file.text("state"),
            certificate=path.parent / file.text("certificate"),
            private_key=path.parent / file.text("private_key"),
            study=Study.read(path.parent / file.text("study")),
            limits=_limits(file.section("limits", optional=True)),
            allow_noiseless_test=file.flag("allow_noiseless_test", False),
        )
        file.done()
        return settings

    def tls(self) -> ssl.SSLContext:
        """Return the server's TLS context, version 1.2 or later."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.private_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"cannot use certificate {str(self.certificate)!r} with key "
                f"{str(self.private_key)!r}: {error}"
            ) from error
        return context


@dataclass(frozen=True)
class ClientSettings:
    """A party or an analyst.

    Parameters
    ----------
    signer : Signer
        Name and private key.
    study : Study
    authority : Path or None
        Certificate authority of the servers; None for the system's.
    state : Path
        Folder of what must survive a restart: contributions on their way, receipts, results.
    addresses : dict
        Where servers are, if not where the study file says.
    seconds : float
        Until one request counts as failed.
    patience : float
        Seconds for which failed requests are tried again.
    wait : float
        Seconds for which a party of a study with route "masks" waits for the others.
    """

    signer: Signer
    study: Study
    authority: Path | None
    state: Path
    addresses: dict[str, str] = field(default_factory=dict)
    seconds: float = 30.0
    patience: float = 120.0
    wait: float = 3600.0

    @classmethod
    def read(cls, path: Path) -> ClientSettings:
        """Read a party's or analyst's configuration; paths in it are relative to the file."""
        file = read_toml(path)
        study = Study.read(path.parent / file.text("study"))
        elsewhere = file.section("addresses", optional=True)
        addresses = {name: elsewhere.text(name).rstrip("/") for name in elsewhere.names()}
        for name in addresses:
            study.server_index(name)
        authority = file.text("authority", "system")
        settings = cls(
            signer=Signer.read(file.text("name"), path.parent / file.text("private_key")),
            study=study,
            authority=None if authority == "system" else path.parent / authority,
            state=path.parent / file.text("state"),
            addresses=addresses,
            seconds=file.number("seconds", 30.0),
            patience=file.number("patience", 120.0),
            wait=file.number("wait", 3600.0),
        )
        file.done()
        for name in [server.name for server in study.servers]:
            settings.url(name)
        return settings

    def url(self, server: str) -> str:
        """Return where a server is; always https."""
        known = {entry.name: entry.url for entry in self.study.servers}
        url = self.addresses.get(server, known[server])
        if urlsplit(url).scheme != "https":
            raise ConfigurationError(f"server {server!r}: {url!r} must begin with https://")
        return url

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context that trusts the authority and nobody else."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"authority {str(self.authority)!r}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _address(file: Section) -> tuple[str, int]:
    text = file.text("listen")
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{file.where}: listen must be host:port, got {text!r}")
    return host.strip("[]"), int(port)


def _limits(section: Section) -> Limits:
    default = Limits()
    limits = Limits(
        largest_request=section.whole("largest_request", default.largest_request, minimum=4096),
        largest_contribution=section.whole(
            "largest_contribution", default.largest_contribution, minimum=1
        ),
        seconds=section.number("seconds", default.seconds),
        clock_seconds=section.number("clock_seconds", default.clock_seconds),
        requests=section.whole("requests", default.requests, minimum=1),
        requests_of_sender=section.whole(
            "requests_of_sender", default.requests_of_sender, minimum=1
        ),
        arriving=section.whole("arriving", default.arriving, minimum=4096),
        reservation_seconds=section.number("reservation_seconds", default.reservation_seconds),
    )
    section.done()
    if min(limits.seconds, limits.clock_seconds, limits.reservation_seconds) <= 0:
        raise ConfigurationError(f"{section.where}: seconds must be above 0")
    if limits.arriving < limits.largest_request:
        raise ConfigurationError(f"{section.where}: arriving must be at least largest_request")
    return limits
