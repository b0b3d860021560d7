"""A federation of real processes in a folder: servers, parties and an analyst, and their faults."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import random
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np

from federated.network import children
from federated.network.interference import FAULTS, Line, Network
from noisewise.federated import Records
from noisewise.federated.network import ServerSettings, Study
from noisewise.federated.network.measurement import curve_domain
from noisewise.federated.network.trial import Trial, make_trial
from noisewise.federated.questions import EcdfQuestion, RocQuestion
from noisewise.privacy.ledger import Ledger

PARTIES = ("north", "south", "west")
CLEAR = {"NetworkError", "UnreachableError", "RefusedError"}
_context: ForkServerContext | None = None


def context() -> ForkServerContext:
    """Return the context whose children have everything imported."""
    global _context
    if _context is None:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            _context = multiprocessing.get_context("forkserver")
            _context.set_forkserver_preload(["federated.network.preload"])
            first = _context.Process(target=children.warm_up)
            first.start()
            first.join(120)
            assert first.exitcode == 0
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
    return _context


@dataclass
class Federation:
    """Servers, parties and an analyst of one study.

    Parameters
    ----------
    trial : Trial
        Their files.
    data : dict
        Records of each party; also stored as .npz for the party's process.
    """

    trial: Trial
    data: dict[str, Records]
    servers: dict[str, ForkServerProcess] = field(default_factory=dict)
    network: Network | None = None

    @classmethod
    def create(
        cls, folder: Path, rng: np.random.Generator, *, records: int = 12, **options: Any
    ) -> Federation:
        settings = {"bins": 8, "patience": 3.0, "seconds": 1.0, "epsilon": 1.0, **options}
        settings.setdefault("parties", PARTIES)
        trial = make_trial(folder, **{"relation": "replace-one", **settings})
        data = {}
        for party in trial.parties:
            count = int(rng.integers(1, records + 1))
            positive = rng.random(count) < 0.5
            data[party] = Records(rng.random(count), positive)
            np.savez(folder / f"{party}.npz", values=data[party].values, positive=positive)
        return cls(trial, data)

    # ------------------------------------------------------------------ processes

    def start(self, server: str, place: str | None = None, count: int = 1) -> None:
        process = context().Process(
            target=children.serve, args=(str(self.trial.config(server)), place, count)
        )
        process.start()
        self.servers[server] = process

    def kill(self, server: str) -> None:
        process = self.servers[server]
        process.kill()
        process.join(10)

    def restart(self, server: str) -> None:
        self.kill(server)
        self.start(server)

    def revive(self) -> None:
        """Start servers that have died."""
        for server, process in list(self.servers.items()):
            if not process.is_alive():
                process.join(10)
                self.start(server)

    def party(self, name: str, **options: Any) -> ForkServerProcess:
        report = self.trial.folder / f"{name}.report"
        report.unlink(missing_ok=True)
        process = context().Process(
            target=children.give,
            args=(
                str(self.trial.config(name)),
                str(self.trial.folder / f"{name}.npz"),
                str(report),
            ),
            kwargs=options,
        )
        process.start()
        return process

    def analyst(self, **options: Any) -> ForkServerProcess:
        report = self.trial.folder / "analyst.report"
        report.unlink(missing_ok=True)
        process = context().Process(
            target=children.take,
            args=(str(self.trial.config("analyst")), str(report)),
            kwargs=options,
        )
        process.start()
        return process

    def report(self, name: str) -> dict[str, Any] | None:
        """Return what a party or the analyst wrote; None if it was killed before."""
        path = self.trial.folder / f"{name}.report"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def be_patient(self) -> None:
        """Give everybody time enough for a busy machine; for when the faults are over."""
        for member in (*self.trial.parties, "analyst"):
            path = self.trial.config(member)
            text = re.sub(r"^seconds = \S+", "seconds = 20.0", path.read_text(), flags=re.M)
            text = re.sub(r"^patience = \S+", "patience = 90.0", text, flags=re.M)
            path.write_text(re.sub(r"^wait = \S+", "wait = 120.0", text, flags=re.M))

    def wait(self, *processes: ForkServerProcess, seconds: float = 180.0) -> None:
        """Wait for processes and keep the servers alive meanwhile."""
        deadline = time.monotonic() + seconds
        while any(process.is_alive() for process in processes):
            assert time.monotonic() < deadline, "a process hangs"
            self.revive()
            processes[0].join(0.02)

    def contribute(self, *names: str, **options: Any) -> None:
        running = [self.party(name, **options) for name in names or self.trial.parties]
        self.wait(*running)

    def collect(self, **options: Any) -> dict[str, Any]:
        self.wait(self.analyst(**options))
        found = self.report("analyst")
        assert found is not None
        return found

    def interpose(self) -> Network:
        """Put the misbehaving network between everybody and the servers."""
        folder = self.trial.folder
        lines = [
            Line(
                name,
                port,
                folder / f"{name}.crt",
                folder / f"{name}.tls.key",
                folder / "authority.crt",
            )
            for name, port in zip(self.trial.servers, self.trial.ports, strict=True)
        ]
        self.network = Network(lines)
        addresses = ["", "[addresses]"]
        addresses += [f'{line.name} = "https://127.0.0.1:{line.port}"' for line in lines]
        for member in (*self.trial.parties, "analyst"):
            with self.trial.config(member).open("a") as file:
                file.write("\n".join(addresses) + "\n")
        return self.network

    def close(self) -> None:
        for process in self.servers.values():
            process.kill()
        for process in self.servers.values():
            process.join(10)
        if self.network is not None:
            self.network.close()

    def __enter__(self) -> Federation:
        atexit.register(self.close)
        for server in self.trial.servers:
            self.start(server)
        for port in self.trial.ports:
            _until_listening(port)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)

    # ----------------------------------------------------------------- the truth

    @property
    def study(self) -> Study:
        return Study.read(self.trial.folder / "study.toml")

    def question(self, epsilon: float = 1.0) -> Any:
        study = self.study
        if "roc" in study.curves:
            return RocQuestion(curve_domain(study, "roc"), epsilon, relation="replace-one")
        return EcdfQuestion(curve_domain(study, "ecdf"), epsilon, relation="replace-one")

    def truth(self, parties: Any = None) -> np.ndarray:
        question = self.question()
        names = self.trial.parties if parties is None else parties
        return np.sum([question.statistic(self.data[name]) for name in names], axis=0)

    def charges(self, server: str) -> list[str]:
        """Return the notes of a server's ledger; the server must be down."""
        path = ServerSettings.read(self.trial.config(server)).state / "budget.ledger"
        if not path.exists():
            return []
        with Ledger.open(path) as ledger:
            return [note for _, note in ledger.entries]


def _until_listening(port: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 10).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "a server does not start"
            time.sleep(0.02)


def draw_faults(federation: Federation, seed: int) -> str:
    """Schedule faults in the network and deaths of servers; return them in words."""
    rng = random.Random(seed)
    network = federation.network or federation.interpose()
    words = []
    for name, line in network.lines.items():
        for number in range(24):
            if rng.random() < 0.22:
                fault = rng.choice(FAULTS)
                amount = rng.random()
                line.faults[number] = (fault, amount * (0.4 if fault == "delay" else 1.0))
                words.append(f"{name} {number}: {fault}")
            if rng.random() < 0.06:
                victim = rng.choice(federation.trial.servers)
                line.moments[number] = _killer(federation, victim)
                words.append(f"{name} {number}: kill {victim}")
    return "; ".join(words)


def _killer(federation: Federation, victim: str) -> Any:
    def kill() -> None:
        process = federation.servers[victim]
        # Only the kill; the driver starts it again, in its own thread.
        with contextlib.suppress(ProcessLookupError, AttributeError, ValueError):
            os.kill(process.pid or 0, 9) if process.pid else None

    return kill


def is_noise_of(federation: Federation, sums: Any, truth: np.ndarray) -> bool:
    """Whether `sums` is the truth with noise: near it, and not it.

    All noise of both servers is zero with probability below 1e-6 (about 26 numbers, each zero
    on one server with probability at most 1/2 at these scales); a discrete Laplace number
    exceeds 40 scales with probability e^-40; sums of unmatched shares are uniform words.
    """
    planned = federation.question().planned
    scale = max(float(block.scale) for block in planned.noise)
    gap = np.abs(np.asarray(sums) - truth)
    return bool(0 < gap.max() < 80 * scale)


def check_answer(
    federation: Federation, found: dict[str, Any] | None, noiseless: bool, said: str
) -> None:
    """A result is exact and about all parties; anything else is a clear error, or a death."""
    if found is None:
        return
    if "error" in found:
        assert found["type"] in CLEAR, (said, found)
        assert len(found["error"]) > 20, (said, found)
        return
    result = found["result"]
    truth = federation.truth()
    assert result["contributions"] == len(federation.trial.parties), said
    assert result["records"] == sum(len(part) for part in federation.data.values()), said
    if noiseless:
        assert result["sums"] == truth.tolist(), said
        assert "NOT SOUND" in result["statement"], said
        assert "epsilon 1" not in result["statement"], said
    else:
        assert is_noise_of(federation, result["sums"], truth), (said, result["sums"], truth)
        assert result["statement"]["epsilon"] <= 1.0, said
