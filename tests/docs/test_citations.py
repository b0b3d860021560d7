"""Every citation resolves: anchors, links, works, tests; and nothing outside the repository.

The functions take the product as a mapping from path to text, so that a twin can break one
citation and see it found.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "experiments")
SUFFIXES = (".py", ".md", ".csv", ".toml", ".yml", ".yaml", ".cff", ".json", ".txt")
HERE = "tests/docs/test_citations.py"

#: Documents, folders and numberings that a reader of the repository does not have.
BANNED = (
    r"[Cc]ontract,? \(?points? \d",
    r"[(:] ?U\d{1,2}\b(?! ?[<>=,])|\bU\d{1,2}\)|\bU\d{1,2} to U?\d|\btest_u\d+_",
    r"[Ss]oundness notes",
    r"[Pp]apers? 00\d|paper00\d|\b00\d_[0-9a-f]{8}",
    r"[Cc]lipless paper|[Ww]eight-clipping paper|[Gg]lobal-clipping paper",
    r"(?<![\w.])/work/|\.\./shared|\bshared/data|\bDESIGN\.md|\bnotes/\w+\.md",
)
#: Words that stand before a year without being authors.
NO_AUTHORS = {"UCI", "EMNLP", "Hospitals", "Clients", "Dataset", "Marketing", "Quality", "Success"}
NAME = r"[A-ZÀ-Þ][A-Za-zÀ-ÿ'-]{1,30}"
AUTHORS = re.compile(
    rf"((?:{NAME}, ){{0,4}}{NAME}(?:,? and {NAME}| et al\.)?)(?:'s (?:method|comparisons))?,? \(?$"
)
YEAR = re.compile(r"\b(?:18|19|20)\d\d\b(?!-\d)")
ENTRY = re.compile(r"^- \*\*(?:von )?([^*]+?) \((\d{4})\)\.\*\*", re.MULTILINE)


def product() -> dict[str, str]:
    """All texts of the repository by path, images and this file left out."""
    roots = [ROOT / folder for folder in FOLDERS]
    paths = [path for root in roots for path in root.rglob("*") if path.suffix in SUFFIXES]
    paths += [path for path in ROOT.iterdir() if path.suffix in SUFFIXES or path.name == "Makefile"]
    texts = {}
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and "/images/" not in name and name != HERE:
            texts[name] = path.read_text(encoding="utf-8")
    return texts


def anchors(page: str) -> set[str]:
    """Where a page can be entered: stated identifiers, and titles as Markdown makes them."""
    found = set(re.findall(r"\{#([\w-]+)\}", page))
    for title in re.findall(r"^#+ (.+?)(?: *\{#[\w-]+\})?$", page, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"[`*]|\]\([^)]*\)|\[", "", title))
        ascii_only = plain.encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()))
    return found


def broken_anchors(texts: Mapping[str, str]) -> Iterator[str]:
    """Proof pages and anchors that are named in a text, or linked to, and do not exist."""
    for name, text in texts.items():
        for page, anchor in re.findall(r"\bdocs/proofs/([\w-]+\.md)(?:#([\w-]+))?", text):
            yield from _missing(texts, name, f"docs/proofs/{page}", anchor)
        if not name.startswith("docs/"):
            continue
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md|)(?:#([\w-]+))?\)", prose):
            folder = PurePosixPath(name).parent
            page = _normal(folder / target) if target else name
            yield from _missing(texts, name, page, anchor)


def _missing(texts: Mapping[str, str], name: str, page: str, anchor: str) -> Iterator[str]:
    if page not in texts:
        yield f"{name}: there is no {page}"
    elif anchor and anchor not in anchors(texts[page]):
        yield f"{name}: {page} has no #{anchor}"


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def key(authors: str, year: str) -> tuple[str, ...]:
    """Surnames and year, however they are joined and whatever accents they have."""
    plain = unicodedata.normalize("NFKD", authors).encode("ascii", "ignore").decode()
    return (*re.split(r",? and |, ", plain), year)


#: "17 Mar 2024" is a day, and no work of Mar's.
MONTHS = {*calendar.month_abbr, *calendar.month_name}


def citations(text: str) -> Iterator[tuple[str, ...]]:
    """Find author and year wherever they stand together, across ends of lines too."""
    flat = re.sub(r"\s*\n\s*(?:#:?\s*)?", " ", text)
    for year in YEAR.finditer(flat):
        before = AUTHORS.search(flat[max(0, year.start() - 120) : year.start()])
        if before and before[1] not in MONTHS:
            yield key(before[1], year[0])


def unknown_works(texts: Mapping[str, str]) -> Iterator[str]:
    """Citations without an entry in the bibliography, and entries that nobody cites."""
    known = {key(*entry) for entry in ENTRY.findall(texts["docs/bibliography.md"])}
    used = set()
    for name, text in texts.items():
        if name == "docs/bibliography.md" or name.startswith("src/noisewise/datasets/"):
            continue  # sources of datasets are stated with them, in their own words
        for cited in citations(text):
            # A word before the authors may look like one of them: "Propagated, Barczewski and ...".
            shorter = [cited[start:] for start in range(len(cited) - 1)]
            match = next((one for one in shorter if one in known), None)
            if match:
                used.add(match)
            elif not set(cited) & NO_AUTHORS:
                yield f"{name}: {' '.join(cited)} is not in the bibliography"
    dataset_sources = "".join(
        re.sub(r"\s+", " ", unicodedata.normalize("NFKD", text))
        for name, text in texts.items()
        if name.startswith("src/noisewise/datasets/")
    )
    for entry in sorted(known - used):
        if entry[0].split(" et al")[0] not in dataset_sources and "Neumann" not in entry[0]:
            yield f"docs/bibliography.md: nobody cites {' '.join(entry)}"


def unknown_tests(texts: Mapping[str, str]) -> Iterator[str]:
    """Tests and test files that a proof page names and that do not exist where it says."""
    defined = {
        name: set(re.findall(r"^\s*def (test_\w+)", text, re.MULTILINE))
        for name, text in texts.items()
        if name.startswith("tests/")
    }
    everywhere = set().union(*defined.values())
    for name, text in texts.items():
        if not name.startswith("docs/proofs/"):
            continue
        default = re.search(r"named\s+without\s+a\s+file\s+are\s+in\s+`(tests/[\w/]+\.py)`", text)
        for path in re.findall(r"`(tests/[\w/]+\.py)`", text):
            if path not in texts:
                yield f"{name}: there is no {path}"
        for part in re.split(r";|\n\n", text):
            places = re.findall(r"in\s+`(tests/[\w/]+\.py)`", part)
            for test in re.findall(r"`(test_\w+)`", part):
                homes = [*places, default[1]] if default and places else places
                allowed = set().union(*(defined.get(home, set()) for home in homes))
                if test not in (allowed if homes else everywhere):
                    yield f"{name}: there is no test {test} in {homes or 'any file'}"


def banned_words(texts: Mapping[str, str]) -> Iterator[str]:
    """References that lead out of the repository."""
    pattern = re.compile("|".join(BANNED))
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            found = pattern.search(line)
            if found:
                yield f"{name}:{number}: {found[0]!r}"


CHECKS = (broken_anchors, unknown_works, unknown_tests, banned_words)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return product()


@pytest.fixture(scope="module")
def problems(texts) -> dict[str, list[str]]:
    return {check.__name__: list(check(texts)) for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_citation_resolves(check, problems) -> None:
    assert problems[check.__name__] == []


BROKEN = [
    (broken_anchors, "src/noisewise/errors.py", "# See docs/proofs/contract.md#nowhere."),
    (broken_anchors, "src/noisewise/errors.py", "# See docs/proofs/nothing.md."),
    (broken_anchors, "docs/bounds.md", "[why](proofs/layers.md#nowhere)"),
    (broken_anchors, "docs/proofs/sums.md", "[above](#nowhere)"),
    (unknown_works, "src/noisewise/errors.py", "# After Nobody and Noone (2020)."),
    (unknown_works, "src/noisewise/errors.py", "# After Abadi et al. (2015)."),
    (unknown_works, "docs/bounds.md", "by a lemma (Nobody,\n2020)."),
    (unknown_works, "docs/bibliography.md", "\n- **Nobody et al. (2020).** Nothing.\n"),
    (unknown_tests, "docs/proofs/sums.md", "\n\n*Test:* `test_that_nobody_wrote`.\n"),
    (
        unknown_tests,
        "docs/proofs/sums.md",
        "\n\n`test_every_citation_resolves` in `tests/no.py`.\n",
    ),
    (
        unknown_tests,
        "docs/proofs/sums.md",
        "\n\n`test_clipped_equals_the_reference` in `tests/privacy/test_relation.py`.\n",
    ),
    (banned_words, "src/noisewise/errors.py", "# as it must be (contract, point 7)"),
    (banned_words, "src/noisewise/errors.py", "# noise the effective weight (U19)"),
    (banned_words, "docs/bounds.md", "the corrections U4 to U8"),
    (banned_words, "docs/bounds.md", "as in paper 003"),
    (banned_words, "benchmarks/__main__.py", "open('/work/main/data')"),
    (banned_words, "tests/conftest.py", "DATA = '../shared/data'"),
]


@pytest.mark.parametrize(("check", "name", "addition"), BROKEN)
def test_a_broken_citation_is_found(check, name, addition, texts, problems) -> None:
    assert name in texts
    broken = {**texts, name: texts[name] + "\n" + addition + "\n"}
    found = set(check(broken)) - set(problems[check.__name__])
    assert len(found) >= 1
    assert all(problem.startswith((name, "docs/bibliography.md")) for problem in found)


def test_the_contract_has_twelve_points_and_each_names_its_tests(texts) -> None:
    page = texts["docs/proofs/contract.md"]
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert [section.split(".")[0] for section in sections] == [str(n) for n in range(1, 13)]
    for section in sections:
        assert re.search(r"\{#[\w-]+\}", section)
        assert "*Tests:*" in section
