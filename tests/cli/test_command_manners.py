"""Manners of the command: quick, 80 columns, plain where asked, nothing literal that is markup."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from noisewise._version import __version__
from noisewise.cli import app


def words_of(commands: typer.Typer, before: tuple[str, ...] = ()) -> list[list[str]]:
    """Every command with its subcommands, as it is typed."""
    found = [list(before)]
    for one in commands.registered_commands:
        found.append([*before, one.name or one.callback.__name__.replace("_", "-")])
    for group in commands.registered_groups:
        found += words_of(group.typer_instance, (*before, group.name))
    return found


COMMANDS = words_of(app)


def test_all_commands_are_looked_at():
    assert ["study", "new"] in COMMANDS
    assert ["schema", "draft"] in COMMANDS
    assert len(COMMANDS) > 25


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
def test_help_fits_80_columns_shows_no_markup_and_an_example(words):
    found = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert found.exit_code == 0
    assert "\\b" not in found.output
    assert "…" not in found.output
    assert "\\\\" not in found.output
    assert max(map(len, found.output.splitlines())) <= 80
    # Paragraphs fill their lines: the first word of the next would not have fitted.
    text = found.output.split("╭")[0].splitlines()
    for line, after in itertools.pairwise(text[2:]):
        filled = len(line.rstrip()) + len(after.split()[0]) >= 78 if after.split() else True
        example = after.startswith(("   ", " noisewise "))
        assert filled or example or not line.split(), line
    if "COMMAND [ARGS]" not in found.output:  # a group's commands have their own
        shown = " ".join(" ".join(text).split()[4:])
        assert f"noisewise {' '.join(words)}" in shown


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


BEGUN = "import sys; from noisewise.cli import main; print(flush=True); main()"


def test_ctrl_c_that_tears_an_import_is_ctrl_c_whatever_fails_of_it(tmp_path):
    (tmp_path / "half.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    pass\n"
    )
    (tmp_path / "model.py").write_text("import half\nraise RecursionError('half a module')\n")
    done = subprocess.run(
        [sys.executable, "-c", BEGUN, "certify", "model.py:build", "--input", "3"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("Stopped by Ctrl-C") == 1


@pytest.mark.parametrize("after", [0.02, 0.6, 2.5])
def test_ctrl_c_ends_any_command_with_130_and_one_sentence(tmp_path, after):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", BEGUN, "certify", "slow.py:build", "--input", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        # A shell that runs tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    process.stdout.readline()
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Stopped by Ctrl-C" in errors
