"""The three commands run where torch cannot be imported: a counting server needs none of it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("aiohttp")

from noisewise.federated.network.trial import make_trial

#: Runs the command in a process in which importing torch fails and is reported.
COMMAND = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"torch was asked for: {name}", name=name)

sys.meta_path.insert(0, Refuse())
from noisewise.cli import main
main()
"""


def command(*words):
    return [sys.executable, "-c", COMMAND, *map(str, words)]


def run(*words):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_servers_parties_and_analysts_work_without_torch(tmp_path):
    trial = make_trial(tmp_path, parties=["north"], bins=16)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 50)
    pd.DataFrame({"p": rng.random(50), "y": y}).to_csv(tmp_path / "north.csv", index=False)
    servers = [
        subprocess.Popen(
            command("serve", "--config", trial.config(name)), stdout=subprocess.PIPE, text=True
        )
        for name in trial.servers
    ]
    try:
        for server, name in zip(servers, trial.servers, strict=True):
            assert server.stdout is not None
            assert server.stdout.readline().startswith(f"server {name} at ")
        give = ["contribute", "--data", tmp_path / "north.csv", "--column", "p", "--label", "y"]
        run(*give, "--config", trial.config("north"))
        found = json.loads(run("collect", "--config", trial.config("analyst"), "--json"))
        assert found["statement"]["epsilon"] <= 1.0
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(30)


def test_the_refusal_above_would_be_noticed():
    """A twin that asks for a tensor, and so for torch."""
    asks = COMMAND.replace(
        "from noisewise.cli import main\nmain()",
        "from noisewise.privacy.randomness import Randomness\n"
        "Randomness.secure().below(10, 5)\nRandomness.secure().normal_numpy(3)\n"
        "assert 'torch' not in sys.modules\nRandomness.secure().normal(3)",
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=300)
    assert "torch was asked for" in done.stderr
    assert "AssertionError" not in done.stderr
