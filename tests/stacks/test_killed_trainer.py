"""A trainer that is killed and started again ends with the statement of one that never was."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noisewise.privacy import Ledger, Statement

pytest.importorskip("transformers")
PROGRAM = Path(__file__).with_name("killed_trainer.py")


def run(folder, kind, kill_after=0, *more):
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), kind, str(kill_after), *more],
        capture_output=True,
        text=True,
        timeout=300,
    )


def facts(done):
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        line[0]: line[1:] for line in lines if line[0] in ("weights", "rate", "steps", "epsilon")
    }


def charged(folder):
    with Ledger.open(folder / "_training.ledger") as ledger:
        return sum(event.count for event, _ in ledger.entries)


def content(folder):
    statement = Statement.from_json((folder / "statement.json").read_text("utf-8"))
    return statement.epsilon, statement.delta, statement.history, statement.assumptions


@pytest.mark.parametrize("kind", ["seed", pytest.param("secret", marks=pytest.mark.slow)])
def test_a_killed_trainer_goes_on_and_its_statement_is_unchanged(tmp_path, kind):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = facts(run(whole, kind))
    ended = run(killed, kind, 5)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert charged(killed) == 5  # the last checkpoint knows of 3
    (killed / "checkpoint-4").mkdir()  # as if it had been killed while it wrote another one
    resumed = facts(run(killed, kind, 0, "resume"))

    assert charged(whole) == charged(killed) == 9
    assert content(whole) == content(killed)
    assert resumed["epsilon"] == uninterrupted["epsilon"]
    assert resumed["steps"] == uninterrupted["steps"] == ["9"]
    assert resumed["rate"] == uninterrupted["rate"]  # the schedule counts lost steps too
    # A seeded run repeats what was lost, bit by bit; a secret one cannot.
    assert (resumed["weights"] == uninterrupted["weights"]) is (kind == "seed")


@pytest.mark.slow
def test_starting_again_without_resuming_spends_nothing(tmp_path):
    assert run(tmp_path, "secret", 5).returncode == -signal.SIGKILL
    again = run(tmp_path, "secret")
    assert again.returncode == 1
    assert "already holds 5 steps" in again.stderr
    assert charged(tmp_path) == 5
