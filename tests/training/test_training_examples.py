"""The examples of training run as they are, and print a true statement."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def epsilon(text):
    return float(re.search(r"epsilon ([\d.]+)", text).group(1))


def test_the_loop_by_hand(capsys):
    text = run("loop_by_hand", capsys)
    assert 1.98 <= epsilon(text) <= 2.0
    assert float(text.rsplit(maxsplit=1)[-1]) > 0.9


def test_accelerate(capsys):
    pytest.importorskip("accelerate", reason="Hugging Face Accelerate is not installed")
    assert 2.97 <= epsilon(run("accelerate_training", capsys)) <= 3.0


def test_lightning(capsys):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    text = run("lightning_training", capsys)
    assert 2.97 <= epsilon(text) <= 3.0
    assert "promise" not in text


@pytest.mark.slow
def test_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "distributed_training.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 1.98 <= epsilon(done.stdout) <= 2.0
    sums = re.findall(r"sum of all weights (-?[\d.]+)", done.stdout)
    assert len(sums) == 2
    assert sums[0] == sums[1]


@pytest.mark.slow
def test_three_hospitals_train_one_model_behind_masks():
    pytest.importorskip("cryptography")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "federated_training.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 1.5 <= epsilon(done.stdout) <= 1.7
    assert "survives 2 of them colluding" in done.stdout
    sums = re.findall(r"sum of all weights (-?[\d.]+)", done.stdout)
    assert len(sums) == 3
    assert len(set(sums)) == 1
    # Right for nine in ten of made-up records; by chance it would be half of them.
    assert float(re.search(r"right: ([\d.]+)", done.stdout).group(1)) > 0.8
