"""The code blocks of a page, in the order in which a reader meets them.

A block says by its language what it is:

- ``python`` is a program. It goes on from the blocks above it (README: each block stands alone),
  and what it prints stands below each ``print``, written and compared by pytest-examples. A block
  whose first line is ``# name.py`` is saved under that name first, so that others can import it.
- ``console`` is a dialogue: lines after ``$`` are commands, the others what they print, where
  ``...`` stands for anything. ``bash`` is commands alone.
- ``toml`` and ``json`` are files; they must parse. A first line ``# name.toml`` saves them.
- ``text`` and ``diff`` are neither, and are not run.

A comment on the line above says more: ``<!-- slow -->`` runs with the slow tests alone,
``<!-- not run: reason -->`` (only for commands) says why nobody runs it here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_examples import CodeExample, find_examples

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "console", "bash", "toml", "json", "text", "diff")
FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (slow|not run: [^>]+?)(?:: [^>]+?)? -->\s*\Z")


@dataclass
class Block:
    """One fenced block: where it is, what it is, and how it is marked."""

    path: Path
    line: int
    language: str
    source: str
    mark: str
    example: CodeExample | None = None

    @property
    def slow(self) -> bool:
        """Whether it runs with the slow tests alone."""
        return self.mark == "slow"

    @property
    def skipped(self) -> bool:
        """Whether it is never run, for the stated reason."""
        return self.mark.startswith("not run")

    @property
    def runs(self) -> bool:
        """Whether a reader would run it or save it."""
        return self.language not in ("text", "diff") and not self.skipped

    @property
    def file_name(self) -> str:
        """Under which name a reader saves it, if the first line says so."""
        match = re.match(r"# ([\w-]+\.(?:py|toml|json))\n", self.source)
        return match[1] if match else ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All pages that a user reads and that hold a block."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    found += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))
    return [path for path in found if "```" in path.read_text("utf-8")]


def blocks_of(path: Path) -> list[Block]:
    """All blocks of a page."""
    text = path.read_text("utf-8")
    examples = {example.start_line: example for example in find_examples(path)}
    blocks = []
    for match in FENCE.finditer(text):
        line = text[: match.start()].count("\n") + 1
        mark = MARK.search(text[: match.start()].rstrip(" "))
        example = examples.get(line)
        source = example.source if example else match[3]
        blocks.append(Block(path, line, match[2], source, mark[1] if mark else "", example))
    return blocks
