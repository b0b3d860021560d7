"""What is installed is whole: the wheel holds every file, and works away from the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_works_in_an_empty_folder(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-q", "-w", str(tmp_path)]
    subprocess.run(pip, check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    package = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
        held.extractall(package)
    listed = subprocess.run(
        ["git", "ls-files", "src/noisewise"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("src/") for name in listed} <= names
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def noisewise(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "noisewise", *arguments], cwd=folder, capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": str(package), "HOME": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import noisewise; print(noisewise.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    ).stdout  # fmt: skip
    assert str(package) in found
    assert "education" in noisewise("schema", "show", "adult")
    noisewise("train", "adult", "--epsilon", "1", "--steps", "5", "--out", "out", "--report",
              "run.html")  # fmt: skip
    page = (folder / "run.html").read_text()
    assert "<script>" in page
    assert "@media print" in page
    assert "HOLDS" in noisewise("verify", "out/statement.json")
