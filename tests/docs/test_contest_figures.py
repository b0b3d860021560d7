"""What pages say of the contest of bugs is what its table of frozen rounds adds up to."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ROUND = re.compile(r"^\| (\w+) \| (\d+) \| \*\*(\d+)\*\* \|", re.MULTILINE)
BEFORE = ("first", "second", "third")  # small rounds, whose misses made the tests


def found_and_written():
    """Bugs found at the first run, and bugs, since the fourth freeze."""
    rounds = ROUND.findall((DOCS / "debugging-mutants.md").read_text("utf-8"))
    late = [(int(bugs), int(caught)) for name, bugs, caught in rounds if name not in BEFORE]
    assert len(rounds) - len(late) == len(BEFORE)
    return sum(caught for _, caught in late), sum(bugs for bugs, _ in late)


@pytest.mark.parametrize(
    "page", ["index.md", "debugging.md", "debugging-mutants.md", "tutorials/bug.md"]
)
def test_the_page_says_how_many_bugs_are_found(page):
    found, written = found_and_written()
    text = (DOCS / page).read_text("utf-8")
    said = re.findall(r"\b(\d+) of the last (\d+)\b", text)
    said += [(b, a) for a, b in re.findall(r"last (\d+) bugs [^.]*?(\d+)", text)]
    assert said, "the page says nothing of the contest any more"
    assert set(said) == {(str(found), str(written))}
