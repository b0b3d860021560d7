"""``noisewise prove``: words, JSON and exit codes."""

import json

from typer.testing import CliRunner

from noisewise.cli import app

PROGRAM = """
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    return model, nn.CrossEntropyLoss(), torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)


def centred():
    model, _, x, y = build()
    return model, lambda output, target: (output - output.mean(0)).square().sum(1), x, y


def alone():
    return nn.Linear(4, 2)
"""


def run(tmp_path, name, *options):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return CliRunner().invoke(app, ["prove", f"{file}:{name}", *options])


def test_a_proof_is_printed_and_exits_with_zero(tmp_path):
    result = run(tmp_path, "build")
    assert result.exit_code == 0
    assert result.stdout.startswith("proven")


def test_what_mixes_is_named_with_its_line_and_exits_with_one(tmp_path):
    result = run(tmp_path, "centred")
    assert result.exit_code == 1
    assert "mean at" in result.output
    assert "program.py:" in result.output
    found = json.loads(run(tmp_path, "centred", "--json").stdout)
    assert found["proven"] is False
    assert found["mixed"][0][0] == "mean"


def test_a_program_of_another_form_is_told_what_is_needed(tmp_path):
    result = run(tmp_path, "alone")
    assert result.exit_code != 0
    assert "(model, loss, x, y)" in str(result.exception)
