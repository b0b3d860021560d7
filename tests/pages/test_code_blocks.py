"""Every code block of the README and of the pages runs as printed, and prints what is printed.

The tool is pytest-examples (docs/decisions/printed-programs.md). When a printed number has changed
for a good reason, ``pytest tests/pages/test_code_blocks.py --update-examples`` writes it into the
page; read the difference.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blocks import LANGUAGES, ROOT, Block, blocks_of, pages
from pytest_examples import EvalExample

with contextlib.suppress(ImportError):
    importlib.import_module("numba")  # looks at `print` at once, and must see the real one

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = {path.relative_to(ROOT).as_posix(): blocks_of(path) for path in pages()}
ALONE = "README.md"  # whose blocks are copied one by one
CHECKER = doctest.OutputChecker()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def cases() -> list[Any]:
    """Quick blocks of a page together; once more with the slow ones, if there are any."""
    found = []
    for name, blocks in PAGES.items():
        if any(block.runs and not block.slow for block in blocks):
            found.append(pytest.param(name, False, id=name))
        if any(block.runs and block.slow for block in blocks):
            found.append(pytest.param(name, True, id=f"{name}-slow", marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("page", "slow"), cases())
def test_blocks_run_as_printed(
    page: str,
    slow: bool,
    eval_example: EvalExample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "reader"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    known = set(sys.modules)
    eval_example.print_callback = without_versions
    eval_example.set_config(line_length=100, target_version="py310")
    names: dict[str, Any] = {}
    try:
        for block in PAGES[page]:
            if block.runs and (slow or not block.slow):
                names = run(block, {} if page == ALONE else names, eval_example, place)
    finally:
        for module in set(sys.modules) - known:
            file = getattr(sys.modules[module], "__file__", None) or ""
            if file.startswith(str(place)):
                del sys.modules[module]


def run(block: Block, names: dict[str, Any], tool: EvalExample, place: Path) -> dict[str, Any]:
    """Run one block in the reader's folder; the names of a program go on to the next."""
    __tracebackhide__ = True
    if block.file_name:
        (place / block.file_name).write_text(block.source, "utf-8")
    if block.language == "python":
        assert block.example is not None
        check = tool.run_print_update if tool.update_examples else tool.run_print_check
        try:
            return check(block.example, module_globals=names, rewrite_assertions=False)
        except Exception as error:
            message = explained(block, error)
        # Outside of the handler: pytest 9 cannot print the traceback that the tool makes up.
        pytest.fail(message, pytrace=False)
    if block.language in ("console", "bash"):
        converse(block, place)
    elif block.language == "toml":
        tomllib.loads(block.source)
    elif block.language == "json":
        json.loads(block.source)
    return names


def without_versions(printed: str) -> str:
    """Leave out what differs from machine to machine."""
    return re.sub(r"(software +noisewise) .*", r"\1 and what it stands on", printed)


def explained(block: Block, error: Exception) -> str:
    """Say what went wrong, and where."""
    lines = []
    entry = error.__traceback__
    while entry:
        lines.append(f"  {entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}")
        entry = entry.tb_next
    return "\n".join([f"{block}: {type(error).__name__}: {error}", *lines[-6:]])


def converse(block: Block, place: Path) -> None:
    """Run the commands of a block and compare what they print, where it is printed."""
    __tracebackhide__ = True
    for name in ("examples", "Makefile"):  # commands are written for the repository's folder
        if not (place / name).exists():
            (place / name).symlink_to(ROOT / name)
    for command, expected in dialogue(block):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            capture_output=True,
            text=True,
            timeout=900,
            env=terminal(),
            check=False,
        )
        printed = done.stdout
        assert done.returncode == 0, f"{block}: $ {command}\n{printed}\n{done.stderr}"
        if expected is not None and not CHECKER.check_output(expected, printed, FLAGS):
            pytest.fail(
                f"{block}: $ {command}\nexpected\n{expected}\ngot\n{printed}\n{done.stderr}",
                pytrace=False,
            )


def dialogue(block: Block) -> list[tuple[str, str | None]]:
    """Commands with what they should print; None where the block does not say."""
    found: list[tuple[str, str | None]] = []
    command = ""
    for line in block.source.splitlines(keepends=True):
        if block.language == "bash":
            if (line.strip() and not line.startswith("#")) or command:
                command += line
                if not line.rstrip().endswith("\\"):
                    found.append((command, None))
                    command = ""
        elif line.startswith("$ ") or command:
            command += line.removeprefix("$ ") if not command else line
            if not line.rstrip().endswith("\\"):
                found.append((command.rstrip(), None))
                command = ""
        else:
            done, printed = found[-1]
            found[-1] = (done, (printed or "") + line)
    return found


def terminal() -> dict[str, str]:
    """The surroundings of a command: 80 columns, no colours, this interpreter first."""
    here = str(Path(sys.executable).parent)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }


def test_every_block_says_what_it_is() -> None:
    for blocks in PAGES.values():
        for block in blocks:
            assert block.language in LANGUAGES, f"{block}: a block of {block.language!r}"
            if block.skipped:
                assert block.language in ("console", "bash"), f"{block}: programs are run"
                assert len(block.mark) > len("not run: ") + 10, f"{block}: why is it not run?"
            if block.language in ("text", "diff"):
                commands = re.findall(r"^(?:\$ |noisewise ).*", block.source, re.MULTILINE)
                assert not commands, f"{block}: a command that nobody runs"
            if block.language == "python":
                assert block.example is not None, f"{block}: pytest-examples does not see it"


def test_there_are_no_more_fences_than_blocks() -> None:
    for name, blocks in PAGES.items():
        fences = (ROOT / name).read_text("utf-8").count("```")
        assert fences == 2 * len(blocks), f"{name} has a fence that is no block"


def test_a_wrong_number_is_found(
    eval_example: EvalExample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("```python\nprint(1 + 1)\n#> 3\n```\n")
    (block,) = blocks_of(page)
    monkeypatch.setattr(EvalExample, "update_examples", False)
    with pytest.raises(pytest.fail.Exception, match="Print output changed"):
        run(block, {}, eval_example, tmp_path)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no shell")
def test_a_wrong_answer_of_a_command_is_found(eval_example: EvalExample, tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    for printed in ("4", "$ false"):
        page.write_text(f"```console\n$ echo 3\n{printed}\n```\n")
        (block,) = blocks_of(page)
        block.path = ROOT / "wrong.md"
        with pytest.raises((pytest.fail.Exception, AssertionError), match=r"wrong\.md"):
            run(block, {}, eval_example, tmp_path)
