"""An hour of contributions and questions: every answer exact, and no server's memory grows.

NOISEWISE_SOAK_SECONDS sets another length.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from benchmarks.federated_load import SERVE, Load, crowd

from noisewise.federated import EcdfQuestion, Records
from noisewise.federated.network import ClientSettings, RemoteAggregator, Study
from noisewise.federated.network.manifest import Manifest
from noisewise.federated.network.measurement import curve_domain
from noisewise.privacy.randomness import resolve

SECONDS = float(os.environ.get("NOISEWISE_SOAK_SECONDS", "3600"))
SLICES = 40
RATE = 2.0  # new contributions a second: memory is watched here, not speed
AGAIN = 10  # times that each is sent once more: a request like the first, that leaves nothing
#: A server that keeps a part of every request.
LEAK = (
    "from noisewise.federated.network.intake import Intake; kept = []; check = Intake.check; "
    "Intake.check = lambda *words: (kept.append(bytes({size})), check(*words))[1]; " + SERVE
)


class Again(Load):
    """Contributions that can be sent again, the same to the bit."""

    made: ClassVar[dict[int, Manifest]] = {}

    def manifest(self, number: int, shares: list[bytes]) -> Manifest:
        if number not in self.made:
            self.made[number] = super().manifest(number, shares)
        return self.made[number]


def memory(process: subprocess.Popen[bytes]) -> int:
    """Return the resident size of a process, in bytes (Linux)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
    )


def soaked(folder, program, seconds):
    """Return the memory of both servers after each slice of the time."""
    each = max(3, int(RATE * seconds / SLICES))
    trial, signers = crowd(folder, each * SLICES)
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(trial.config(name))], stdout=subprocess.PIPE
        )
        for name in trial.servers
    ]
    try:
        for server in servers:
            server.stdout.readline()
        return soak(trial, signers, servers, each, seconds)
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(60)


def soak(trial, signers, servers, each, seconds):
    study = Study.read(trial.folder / "study.toml")
    domain = curve_domain(study, "ecdf")
    values = np.random.default_rng(0).beta(2, 5, len(signers))
    load = Again(trial, signers, domain.place(Records(values)))
    load.made.clear()
    settings = ClientSettings.read(trial.config("analyst"))
    question = EcdfQuestion(domain, 1.0, relation=study.relation)
    seen, began = [], time.monotonic()
    for part in range(SLICES):
        there = (part + 1) * each
        for _ in range(1 + AGAIN):
            load.waiting = iter(range(there - each, there))
            asyncio.run(load.run(connections=4))
        aggregator = RemoteAggregator(settings, name=f"soak-{part}", parties=there)
        sums = aggregator.ask(question, (), resolve(None)).noisy
        assert np.array_equal(sums, question.statistic(Records(values[:there])))
        seen.append([memory(server) for server in servers])
        time.sleep(max(0.0, began + (part + 1) * seconds / SLICES - time.monotonic()))
    return np.array(seen, np.float64)


def grows(seen):
    """Whether memory grows between the second quarter, when all code has run, and the last.

    Every quarter brings as many contributions and questions, and the same bytes of requests.
    """
    before, after = seen[SLICES // 4 : SLICES // 2].max(0), seen[-SLICES // 4 :].max(0)
    return bool((after > 1.05 * before + 16e6).any())


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]


def test_an_hour_of_load_does_not_grow_a_servers_memory(tmp_path):
    seen = soaked(tmp_path, SERVE, SECONDS)
    assert not grows(seen), seen.tolist()


def test_a_server_that_keeps_a_kilobyte_of_each_request_would_be_found(tmp_path):
    """In a soak of an hour; here as many bytes in a sixtieth of the requests."""
    seconds = 60.0
    seen = soaked(tmp_path, LEAK.format(size=int(1024 * 3600 / seconds)), seconds)
    assert grows(seen), seen.tolist()
