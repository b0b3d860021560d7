"""The certificate as a table, a frame, a picture, and compared with a sample."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import pytest
import torch
from matplotlib import pyplot
from torch import nn

from noisewise import nn as nw
from noisewise.bounds import certify


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nw.BoundedInput((1, 6, 6), 1.0),
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


def test_every_row_of_the_frame_states_its_layer_and_the_last_the_total() -> None:
    found = certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss())
    frame = found.to_frame()
    assert list(frame["layer"]) == ["0", "1", "1", "2", "3", "4", "4", "total"]
    assert frame["gradient"].iloc[-1] == pytest.approx(found.total)
    squares = frame["gradient"].iloc[:-1].dropna().pow(2).sum()
    assert found.total == pytest.approx(squares**0.5)


def test_the_printed_table_fits_and_says_where_the_input_bound_comes_from() -> None:
    text = str(certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss()))
    assert max(len(line) for line in text.splitlines()) <= 110
    assert "enforced by the model" in text
    assert "Conv2d" in text
    assert "add-remove" in text


def test_tightness_never_exceeds_one_and_says_that_it_reads_data() -> None:
    found = certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss())
    x, y = torch.randn(16, 1, 6, 6), torch.arange(16) % 3
    frame = found.tightness(x, y)
    assert set(frame["parameter"]) == set(found.gradients)
    assert (frame["largest_ratio"] <= 1 + 1e-5).all()
    assert (frame["largest_ratio"] > 0).all()
    assert "not private" in frame.attrs["note"]
    assert "Reads data" in (found.tightness.__doc__ or "")


def test_tightness_respects_the_loss_clip() -> None:
    found = certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss(), loss_clip=0.05)
    frame = found.tightness(torch.randn(8, 1, 6, 6), torch.arange(8) % 3)
    assert (frame["largest_ratio"] <= 1 + 1e-5).all()
    bias = frame.set_index("parameter").loc["4.bias"]
    assert bias["largest"] == pytest.approx(0.05, rel=1e-4)


def test_the_picture_has_one_bar_per_parameter() -> None:
    found = certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss())
    axes = found.plot()
    assert len(axes.patches) == len(found.gradients)
    assert "gradient" in axes.get_xlabel()
    pyplot.close(axes.figure)


def test_the_dictionary_is_plain() -> None:
    import json

    text = json.dumps(certify(model(), (1, 6, 6), loss=nn.CrossEntropyLoss()).to_dict())
    assert json.loads(text)["input_norm"] is None
