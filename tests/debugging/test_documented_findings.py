"""The pages of the documentation name findings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import noisewise.debugging

ROOT = Path(__file__).parents[2]
SOURCE = "".join(
    path.read_text("utf-8") for path in Path(noisewise.debugging.__file__).parent.glob("*.py")
)


def test_every_finding_that_the_pages_quote_is_one_that_the_code_can_make():
    quoted = set()
    for page in ("debugging.md", "debugging-mistakes.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        quoted |= set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    assert len(quoted) > 20
    # Names of options are put together from what the user calls them.
    composed = {"noise-depends-on-world-size"}
    missing = {name for name in quoted - composed if f'"{name}"' not in SOURCE}
    assert missing == set()
