"""The image experiment: runs are taken up where they stopped; the page shows what they found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from noisewise.nn.models import convnet_fashion, convnet_mnist, convnet_thesis

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


@pytest.mark.parametrize(
    ("layout", "model"),
    [("paper", convnet_mnist), ("deep", convnet_fashion), ("thesis", convnet_thesis)],
)
def test_the_networks_have_the_size_of_the_papers(images, layout, model):
    from images_nets import LAYOUTS

    def sizes(of):
        return [tuple(weight.shape) for weight in of.parameters() if weight.dim() > 1]

    assert sizes(LAYOUTS[layout].plain()) == sizes(model()) == sizes(LAYOUTS[layout].lipschitz())


def test_shifts_move_every_image_by_itself_and_not_too_far(images):
    from images_nets import shifts

    torch.manual_seed(0)
    x = torch.rand(64, 2, 9, 9)
    moved = shifts(1)(x)
    steps = [(down, right) for down in range(3) for right in range(3)]
    found = [
        [step for step in steps if torch.equal(new[:, 1:-1, 1:-1], cut(old, *step))]
        for old, new in zip(x, moved, strict=True)
    ]
    assert all(len(step) == 1 for step in found)
    # Fewer than five of nine kinds in 64 independent draws: probability below 1e-20.
    assert len({step[0] for step in found}) > 4


def cut(image, down, right):
    return image[:, down : down + 7, right : right + 7]
