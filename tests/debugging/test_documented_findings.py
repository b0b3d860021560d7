"""The pages of the documentation and the code name the same findings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import noisewise.debugging
from noisewise.debugging import TESTS, check
from noisewise.debugging.mutants import Training, cases, mutants

ROOT = Path(__file__).parents[2]
FOLDER = Path(noisewise.debugging.__file__).parent
SOURCE = "".join(path.read_text("utf-8") for path in FOLDER.glob("*.py"))
PAGE = (ROOT / "docs" / "debugging-findings.md").read_text("utf-8")
SECTIONS = {part.splitlines()[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
PLANTED = {
    name: found[1]
    for name, part in SECTIONS.items()
    if (found := re.search(r"Planted as `([\w.-]+)`", part))
}
#: Strings of the source that look like findings and are none.
NO_FINDINGS = {"cross-entropy", "utf-8", *TESTS}
#: Names that are put together from an argument.
COMPOSED = {"init-ignored", "steps-ignored", "lr-ignored"}


def test_every_finding_has_a_section_with_a_broken_program_and_its_repair():
    names = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', SOURCE)) - NO_FINDINGS
    assert len(names) > 60
    assert names | COMPOSED == set(SECTIONS)
    for name, part in SECTIONS.items():
        assert "# broken" in part, name
        assert "# repaired" in part, name


def test_where_evidence_fits_two_causes_an_experiment_tells():
    """A section that names alternatives names the experiment that decides between them."""
    several = {}
    for name, part in SECTIONS.items():
        text = part.split("```")[0].split("\n", 1)[1]
        if re.search(r", or |\bEither\b|: [^.]* or ", text):
            several[name] = text
    assert len(several) > 10
    assert [name for name, text in several.items() if "tell" not in text] == []


def test_what_is_planted_is_in_the_catalogue():
    known = {mutant.bug for mutant in mutants()}
    assert set(PLANTED.values()) <= known
    assert len(PLANTED) > 50


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bug"), sorted(PLANTED.items()))
def test_the_planted_bug_is_called_by_that_name(name, bug):
    case = cases()["MLP"]
    train = Training(case.model, case.loss, bug=bug)
    findings = check(train, case.model, case.loss, example=case.example)
    # What follows from a sharper finding is withdrawn from the list, not from the test.
    failed = {r.test for r in findings.results if r.status == "failed"}
    assert name in findings.bugs or (name == "noise-law-wrong" and "law-of-noise" in failed)


def test_every_finding_that_the_pages_quote_is_one_that_the_code_can_make():
    quoted = set()
    for page in ("debugging.md", "debugging-details.md", "debugging-mistakes.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        quoted |= set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    assert len(quoted) > 20
    # Names of options are put together from what the user calls them.
    missing = quoted - {"noise-depends-on-world-size", *TESTS} - set(SECTIONS)
    assert missing == set()
