"""Tutorials are pages, notebooks and programs that a strict type checker takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from blocks import ROOT, blocks_of
from tests.pages.notebooks import PAGES, execute, notebook_of, sources, target_of

QUICK = {"compliance"}
KINDS = {"table", "images", "text", "lipschitz", "roc", "hospitals", "bug", "compliance"}


def test_there_is_a_tutorial_for_each_kind_of_user() -> None:
    assert {page.stem for page in PAGES} >= KINDS
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text("utf-8")
    assert all(f"({page.name})" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_is_its_page(page: Path) -> None:
    kept = nbformat.read(target_of(page), 4)
    nbformat.validate(kept)
    assert sources(kept) == sources(notebook_of(page)), "python -m tests.pages.notebooks"


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem) for p in PAGES],
)
def test_the_notebook_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    execute(notebook_of(page), tmp_path)  # raises if a cell does


def programs(folder: Path) -> list[Path]:
    """Write each tutorial as the program that its blocks make."""
    made = []
    for page in PAGES:
        found = [block for block in blocks_of(page) if block.language == "python"]
        for block in found:
            if block.file_name:
                (folder / block.file_name).write_text(block.source, "utf-8")
        text = "\n\n".join(block.source for block in found if not block.file_name)
        program = folder / f"tutorial_{re.sub(r'[^a-z]', '_', page.stem)}.py"
        # Imports stand where a reader needs them.
        program.write_text(text, "utf-8")
        made.append(program)
    return made


@pytest.mark.slow  # and part of `make types`
def test_every_tutorial_is_a_program_that_mypy_takes_strictly(tmp_path: Path) -> None:
    made = programs(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports",
         "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"),
         *map(str, made)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "MYPYPATH": f"{ROOT / 'src'}:{tmp_path}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_without_types_is_refused(tmp_path: Path) -> None:
    (tmp_path / "untyped.py").write_text("def f(x):\n    return x\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "untyped.py")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1
