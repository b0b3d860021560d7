"""Everything for a trial on one machine: certificates, keys, a study and configuration files.

``python -m noisewise.federated.network.trial FOLDER`` writes them; then
``noisewise serve --config FOLDER/alpha.toml`` and so on. The files are meant to be read: a real
study differs in the addresses, and in that every party makes its own key.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from noisewise.federated.network.certificates import TrialAuthority
from noisewise.federated.network.identity import write_new_key
from noisewise.federated.network.study import TEST_PREFIX, Member, Server, Study
from noisewise.federated.network.templates import ROUTES, member_text, server_text, study_text
from noisewise.federated.protected import EACH_RECORD, Protected
from noisewise.privacy import Relation

__all__ = ["Trial", "free_port", "make_trial"]


@dataclass(frozen=True)
class Trial:
    """The files of a trial."""

    folder: Path
    servers: tuple[str, ...]
    parties: tuple[str, ...]
    ports: tuple[int, ...]

    def config(self, name: str) -> Path:
        """Return the configuration file of a server, a party or "analyst"."""
        return self.folder / f"{name}.toml"


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_trial(
    folder: Path,
    *,
    servers: Sequence[str] = ("alpha", "beta"),
    parties: Sequence[str] = ("north", "south", "west"),
    curves: Sequence[str] = ("roc",),
    bounds: tuple[float, float] = (0.0, 1.0),
    bins: int = 1024,
    route: str = "functions",
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 0.0,
    name: str = "trial",
    minimum_parties: int = 1,
    patience: float = 120.0,
    seconds: float = 30.0,
    noiseless_test: bool = False,
    colluding: int = 0,
    stage_seconds: float = 600.0,
    wait: float = 3600.0,
    checked: bool = False,
    most_records: int | None = None,
    protects: Protected = EACH_RECORD,
    neighbours: str = "all",
) -> Trial:
    """Write all files of a trial into a new folder.

    Parameters
    ----------
    folder : Path
    servers, parties : sequence of str
        Names. Servers listen on free ports of this machine.
    curves, bounds, bins, route, relation, epsilon, delta, minimum_parties, colluding, \
    stage_seconds, checked, most_records, protects, neighbours
        See :class:`noisewise.federated.network.Study`.
    name : str
        Of the study.
    patience, seconds, wait : float
        Of parties and analyst; see :class:`noisewise.federated.network.ClientSettings`.
    noiseless_test : bool
        A study without noise, for tests of the machinery.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = TrialAuthority.create()
    authority.write_certificate(folder / "authority.crt")
    ports = tuple(free_port() for _ in servers)
    for server in servers:
        hosts = ["localhost", "127.0.0.1"]
        authority.issue(hosts, folder / f"{server}.crt", folder / f"{server}.tls.key")
    keys = {member: write_new_key(folder / f"{member}.key") for member in (*parties, "analyst")}
    study = Study(
        name=TEST_PREFIX + name if noiseless_test else name,
        round="1",
        curves=tuple(curves),
        lower=float(bounds[0]),
        upper=float(bounds[1]),
        bins=bins,
        route=cast(Any, route),
        relation=Relation.of(relation),
        epsilon=float(epsilon),
        delta=float(delta),
        minimum_parties=minimum_parties,
        servers=tuple(
            Server(server, f"https://127.0.0.1:{port}")
            for server, port in zip(servers, ports, strict=True)
        ),
        parties=tuple(Member(party, keys[party]) for party in parties),
        analysts=(Member("analyst", keys["analyst"]),),
        noiseless_test=noiseless_test,
        colluding=colluding,
        stage_seconds=stage_seconds,
        checked=checked,
        most_records=most_records,
        protects=protects,
        neighbours=cast(Any, neighbours),
    )
    (folder / "study.toml").write_text(study_text(study), "utf-8")
    for server, port in zip(servers, ports, strict=True):
        text = server_text(server, f"127.0.0.1:{port}", noiseless_test=noiseless_test)
        (folder / f"{server}.toml").write_text(text, "utf-8")
    for member in (*parties, "analyst"):
        text = member_text(
            member,
            authority="authority.crt",
            seconds=seconds,
            patience=patience,
            wait=wait if route == "masks" and member != "analyst" else None,
        )
        (folder / f"{member}.toml").write_text(text, "utf-8")
    return Trial(folder, tuple(servers), tuple(parties), ports)


def main() -> None:
    """Write the files of a trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parties", nargs="+", default=["north", "south", "west"])
    parser.add_argument("--curves", nargs="+", default=["roc"])
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--route", choices=sorted(ROUTES), default="functions")
    arguments = parser.parse_args()
    masks = arguments.route == "masks"
    trial = make_trial(
        arguments.folder,
        route=arguments.route,
        servers=["alpha"] if masks else ["alpha", "beta"],
        minimum_parties=2 * len(arguments.parties) // 3 + 1 if masks else 1,
        parties=arguments.parties,
        curves=arguments.curves,
        bins=arguments.bins,
        epsilon=arguments.epsilon,
    )
    for name in (*trial.servers, *trial.parties, "analyst"):
        print(trial.config(name))


if __name__ == "__main__":
    main()
