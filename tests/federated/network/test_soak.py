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

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from benchmarks.federated_load import SERVE, Load, crowd

from noisewise.federated import EcdfQuestion, Records
from noisewise.federated.network import ClientSettings, RemoteAggregator, Study
from noisewise.federated.network.measurement import curve_domain
from noisewise.privacy.randomness import resolve

SECONDS = float(os.environ.get("NOISEWISE_SOAK_SECONDS", "3600"))
SLICES = 40
RATE = 4.0  # contributions a second: memory is watched here, not speed


def memory(process: subprocess.Popen[bytes]) -> int:
    """Return the resident size of a process, in bytes (Linux)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_an_hour_of_load_does_not_grow_a_servers_memory(tmp_path):
    each = max(3, int(RATE * SECONDS / SLICES))
    size = each * SLICES
    trial, signers = crowd(tmp_path, size)
    command = [sys.executable, "-c", SERVE]
    servers = [
        subprocess.Popen([*command, str(trial.config(name))], stdout=subprocess.PIPE)
        for name in trial.servers
    ]
    try:
        for server in servers:
            server.stdout.readline()
        seen = soak(trial, signers, servers, each, size)
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(60)
    # Every quarter of the time brings as many contributions and questions; what they leave in
    # memory would show between the second quarter, when all code has run, and the last.
    before, after = seen[SLICES // 4 : SLICES // 2].max(0), seen[-SLICES // 4 :].max(0)
    assert (after <= 1.1 * before + 16e6).all(), seen.tolist()


def soak(trial, signers, servers, each, size):
    study = Study.read(trial.folder / "study.toml")
    domain = curve_domain(study, "ecdf")
    values = np.random.default_rng(0).beta(2, 5, size)
    load = Load(trial, signers, domain.place(Records(values)))
    settings = ClientSettings.read(trial.config("analyst"))
    question = EcdfQuestion(domain, 1.0, relation=study.relation)
    seen, began = [], time.monotonic()
    for part in range(SLICES):
        there = (part + 1) * each
        load.waiting = iter(range(there - each, there))
        asyncio.run(load.run(connections=4))
        aggregator = RemoteAggregator(settings, name=f"soak-{part}", parties=there)
        sums = aggregator.ask(question, (), resolve(None)).noisy
        assert np.array_equal(sums, question.statistic(Records(values[:there])))
        seen.append([memory(server) for server in servers])
        time.sleep(max(0.0, began + (part + 1) * SECONDS / SLICES - time.monotonic()))
    return np.array(seen, np.float64)
