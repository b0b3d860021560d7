"""The image experiment: runs are taken up where they stopped; the page shows what they found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def images(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import images

    return images


def test_a_finished_run_is_not_run_again_and_a_torn_line_is(images, tmp_path):
    file = tmp_path / "runs.jsonl"
    every = images.missing(file)
    assert len(set(every)) == len(every) > 100
    done = [json.dumps({**asdict(setting), "accuracy": 1.0}) for setting in every[:3]]
    file.write_text("\n".join(done)[:-9])
    assert images.missing(file) == every[2:]


def test_the_page_shows_what_was_measured(images):
    from images_pictures import NAMES, cells, table

    page = (ROOT / "docs" / "results-images.md").read_text("utf-8")
    found = cells(images.read(images.FILE))
    for data in NAMES:
        assert table(found, data) in page
    assert images.missing(images.FILE) == []
    assert min(map(len, found.values())) >= 3
