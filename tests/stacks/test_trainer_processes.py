"""A private trainer in two processes: one step together, noise once, the same weights."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from noisewise.privacy import Ledger, Statement

pytest.importorskip("transformers")
PROGRAM = Path(__file__).with_name("trainer_program.py")


def run(folder, *more):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), *more], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = re.findall(r"weights (\S+) steps (\d+) (\w+) (\S+)", done.stdout)
    assert len(lines) == 2
    assert lines[0] == lines[1]  # the same weights and the same epsilon on both
    assert lines[0][2] == "DistributedDataParallel"
    return lines[0]


def charged(folder):
    with Ledger.open(folder / "_training.ledger") as ledger:
        return sum(event.count for event, _ in ledger.entries)


@pytest.mark.slow
def test_two_processes_train_stop_and_resume(tmp_path):
    assert run(tmp_path)[1] == "3"
    assert charged(tmp_path) == 3  # once for both, not once for each
    assert run(tmp_path, "resume")[1] == "6"
    assert charged(tmp_path) == 6
    statement = Statement.from_json((tmp_path / "statement.json").read_text("utf-8"))
    assert statement.steps == 6
    assert "promised by the caller" not in statement.sampler
