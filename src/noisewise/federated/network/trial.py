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

from noisewise.federated.network.certificates import TrialAuthority
from noisewise.federated.network.identity import write_new_key
from noisewise.federated.network.study import TEST_PREFIX

__all__ = ["Trial", "free_port", "make_trial"]


_ROUTES = {
    "functions": "a key a record, two servers",
    "vectors": "a secret-shared table a party, two or more servers",
    "masks": "masked sums of parties that stay to the end, one server",
}


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
    neighbors: str = "replace",
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
) -> Trial:
    """Write all files of a trial into a new folder.

    Parameters
    ----------
    folder : Path
    servers, parties : sequence of str
        Names. Servers listen on free ports of this machine.
    curves, bounds, bins, route, neighbors, epsilon, delta, minimum_parties, colluding, \
    stage_seconds
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
    title = TEST_PREFIX + name if noiseless_test else name
    lines = [
        "# What everybody has agreed on: the same file for servers, parties and analysts.",
        f'name = "{title}"',
        'round = "1"                  # a party contributes once to a round',
        f"curves = {_list(curves)}",
        f"lower = {float(bounds[0])}                  # public range of the values",
        f"upper = {float(bounds[1])}",
        f"bins = {bins}                  # thresholds of the curves",
        f'route = "{route}"         # {_ROUTES.get(route, "")}',
        f'neighbors = "{neighbors}"        # replace: the number of records is public',
        f"minimum_parties = {minimum_parties}          # no answer about fewer contributions",
    ]
    if route == "masks":
        lines += [
            f"colluding_parties = {colluding}        # who may tell the server all they know",
            f"stage_seconds = {stage_seconds}        # for the last parties, once enough are there",
        ]
    if noiseless_test:
        lines.append("noiseless_test = true")
    lines += ["", "[budget]                     # of all releases of this round together"]
    lines += [f"epsilon = {float(epsilon)}", f"delta = {float(delta)}"]
    for server, port in zip(servers, ports, strict=True):
        lines += ["", "[[servers]]", f'name = "{server}"', f'url = "https://127.0.0.1:{port}"']
    for party in parties:
        lines += ["", "[[parties]]", f'name = "{party}"', f'key = "{keys[party]}"']
    lines += ["", "[[analysts]]", 'name = "analyst"', f'key = "{keys["analyst"]}"']
    _write(folder / "study.toml", lines)
    for server, port in zip(servers, ports, strict=True):
        lines = [
            f"# Aggregation server {server}.",
            f'name = "{server}"',
            f'listen = "127.0.0.1:{port}"',
            'study = "study.toml"',
            f'state = "{server}-state"       # must survive a restart; back it up',
            f'certificate = "{server}.crt"',
            f'private_key = "{server}.tls.key"',
        ]
        if noiseless_test:
            lines.append("allow_noiseless_test = true")
        lines += ["", "[limits]", "largest_request = 2097152    # bytes", "seconds = 30"]
        _write(folder / f"{server}.toml", lines)
    for member in (*parties, "analyst"):
        lines = [
            f'name = "{member}"',
            'study = "study.toml"',
            f'private_key = "{member}.key"   # proves who we are; nobody else may read it',
            'authority = "authority.crt"  # signed the servers\' certificates',
            f'state = "{member}-state"',
            f"seconds = {seconds}               # until one request counts as failed",
            f"patience = {patience}             # for how long to try again",
        ]
        if route == "masks" and member != "analyst":
            lines.append(f"wait = {wait}               # for how long to wait for the others")
        _write(folder / f"{member}.toml", lines)
    return Trial(folder, tuple(servers), tuple(parties), ports)


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    """Write the files of a trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parties", nargs="+", default=["north", "south", "west"])
    parser.add_argument("--curves", nargs="+", default=["roc"])
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--route", choices=sorted(_ROUTES), default="functions")
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
