import json

import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.privacy import PoissonGaussian, Statement, ZeroConcentrated
from noisewise.privacy.statement import digest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "statement.json"
    path.write_text(
        Statement.derive(PoissonGaussian(1.0, 0.01, 1000), delta=1e-5, mechanism="m").to_json()
    )
    return path


def run(path, *options):
    return CliRunner().invoke(app, ["verify", str(path), *options])


def test_a_true_statement_holds(file):
    result = run(file)
    assert result.exit_code == 0
    assert "HOLDS" in result.output
    assert "rdp" in result.output


def test_a_concentrated_statement_holds(file):
    statement = Statement.derive(ZeroConcentrated(0.1), delta=1e-6, mechanism="m", accountant="rdp")
    file.write_text(statement.to_json())
    assert run(file).exit_code == 0


@pytest.mark.parametrize("field", ["epsilon", "delta", "steps", "assumptions"])
def test_a_tampered_field_fails_loudly(file, field):
    fields = json.loads(file.read_text())
    fields[field] = ["trust me"] if field == "assumptions" else fields[field] / 2
    file.write_text(json.dumps(fields))
    result = run(file)
    assert result.exit_code == 1
    assert "REJECTED" in result.output


def test_a_wrong_epsilon_with_a_right_digest_fails_loudly(file):
    fields = json.loads(file.read_text())
    fields["epsilon"] = 1.5
    fields["digest"] = digest({k: v for k, v in fields.items() if k != "digest"})
    file.write_text(json.dumps(fields))
    result = run(file)
    assert result.exit_code == 1
    assert "WRONG" in result.output
    machine = run(file, "--json")
    assert machine.exit_code == 1
    assert json.loads(machine.output)["ok"] is False


@pytest.mark.parametrize("content", ["", "{}", "hello", "[1]"])
def test_what_is_no_statement_is_rejected(file, content):
    file.write_text(content)
    assert run(file).exit_code == 1
    assert json.loads(run(file, "--json").output)["ok"] is False


def test_a_missing_file_is_rejected(tmp_path):
    assert run(tmp_path / "none.json").exit_code == 1
