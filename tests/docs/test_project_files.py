"""Files around the code agree with it: versions, Python versions, pages of the site."""

import re
from pathlib import Path

import noisewise

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    assert re.findall(r"^version: (\S+)$", text("CITATION.cff"), re.MULTILINE) == [
        noisewise.__version__
    ]


def test_workflows_run_every_version_of_python_that_is_promised() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", text("pyproject.toml"))
    (matrix,) = re.findall(r"python: \[(.*)\]", text(".github/workflows/tests.yml"))
    assert re.findall(r"3\.\d+", matrix) == promised
    lowest = re.search(r'requires-python = ">=(3\.\d+)"', text("pyproject.toml"))
    assert lowest
    assert promised[0] == lowest[1]


def test_every_command_of_workflows_is_a_target_of_make() -> None:
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".ci" / "run"]
    used = {
        name
        for path in files
        for name in re.findall(r"^(?:.*run: )?make ([\w-]+)", path.read_text(), re.MULTILINE)
    }
    assert {"test", "test-slow", "docs"} <= used
    assert used <= targets


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r":\s+([\w/-]+\.md)$", text("mkdocs.yml"), re.MULTILINE))
    assert named == pages


def test_paths_that_contributors_are_sent_to_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w/.]+)`", text("CONTRIBUTING.md"))
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_places_on_the_page_about_how_it_is_built_exist() -> None:
    table = text("docs/architecture.md").split("## Where do I add")[1]
    named = re.findall(r"`((?:tests/)?[\w/]+(?:/|\.py))`", table)
    assert len(named) > 15
    homes = (ROOT, ROOT / "src" / "noisewise", ROOT / "tests" / "ecdf")
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []


def test_the_page_on_installing_names_every_extra_that_users_may_want() -> None:
    extras = text("pyproject.toml").split("[project.optional-dependencies]")[1].split("\n[")[0]
    offered = set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))
    named = set(re.findall(r"`pip install '\.\[(\w+)\]'`", text("docs/install.md")))
    assert named == offered - {"all", "dev", "docs", "zoo"}
