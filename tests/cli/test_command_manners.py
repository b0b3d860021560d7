"""Manners of the command: quick, 80 columns, plain where asked, nothing literal that is markup."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from noisewise._version import __version__
from noisewise.cli import app

COMMANDS = (
    [], ["train"], ["budget"], ["verify"], ["certify"], ["prove"], ["evaluate"], ["audit"],
    ["debug"], ["serve"], ["contribute"], ["collect"], ["schema", "draft"], ["schema", "check"],
    ["ledger", "create"], ["ledger", "show"],
)  # fmt: skip


def test_the_version_imports_nothing_heavy():
    program = (
        "import sys\nsys.argv = ['noisewise', '--version']\n"
        "from noisewise.cli import main\nmain()\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == __version__
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "numpy", "pandas", "scipy", "typer", "rich", "sklearn"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_80_columns_and_shows_no_markup(words):
    found = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert found.exit_code == 0
    assert "\\b" not in found.output
    assert max(map(len, found.output.splitlines())) <= 80


def test_exit_codes_are_told_and_completion_is_offered():
    found = CliRunner().invoke(app, ["--help"])
    assert "Exit codes" in found.output
    assert "--install-completion" in found.output


def test_no_color_means_none(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "noisewise", "train", "nothing.csv", "--epsilon", "1"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "no file at" in done.stderr
    assert "\x1b[3" not in done.stderr
